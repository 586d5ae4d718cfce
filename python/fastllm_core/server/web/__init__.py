"""The web page at /: plain files beside this one, served as they are; they load nothing from other hosts."""

from pathlib import Path

from starlette.responses import Response

_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


def add_web_page(app) -> frozenset[str]:
    """Adds the page's routes; returns their paths. The files hold nothing of the server's state and need no key."""
    folder = Path(__file__).parent
    for path, (name, kind) in _FILES.items():
        content = (folder / name).read_bytes()
        app.add_route(path, _sender(content, kind), methods=["GET"], include_in_schema=False)
    return frozenset(_FILES)


def _sender(content: bytes, kind: str):
    async def send_file(request) -> Response:
        return Response(content, headers={"content-type": kind, **_HEADERS})

    return send_file
