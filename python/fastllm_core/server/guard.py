"""The one middleware: request ids, API keys, the access log, and errors for routes that do not exist."""

import hashlib
import hmac
import json
import logging
import re
import time
import uuid
from collections.abc import Callable

from fastllm_core.server.body import header
from fastllm_core.server.endpoint import send_error
from fastllm_core.server.errors import ApiError
from fastllm_core.server.state import ServerState

_log = logging.getLogger("fastllm.access")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
OPEN_PATHS = frozenset({"/health", "/ping", "/version"})


class Guard:
    """ASGI middleware around the whole application. `direct`: by method and path, applications for routes that are
    called often, past the framework's layers."""

    def __init__(self, app, state: ServerState, open_paths: frozenset[str], direct: dict[tuple[str, str], Callable]):
        self._app = app
        self._direct = direct
        self._state = state
        self._open_paths = OPEN_PATHS | open_paths
        self._keys = [_digest(key) for key in state.config.api_key]

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1003})
                return
            await self._app(scope, receive, send)
            return
        wanted = header(scope, b"x-request-id")
        request_id = wanted if wanted and _REQUEST_ID.fullmatch(wanted) else None
        note: dict = {}
        answer = _Answer(send, request_id or uuid.uuid4().hex, self._state.config.return_request_id)
        scope.setdefault("state", {}).update(request_id=request_id, note=note, answer=answer)
        start = time.perf_counter()
        try:
            if self._keys and scope["path"] not in self._open_paths and not self._allowed(scope):
                error = ApiError(401, "a valid API key is required", headers={"WWW-Authenticate": "Bearer"})
                await send_error(scope, answer, error)
            else:
                app = self._direct.get((scope["method"], scope["path"]), self._app)
                await app(scope, receive, answer)
        finally:
            if self._state.config.access_log != "off":
                self._write_log(scope, answer, note, time.perf_counter() - start)

    def _allowed(self, scope) -> bool:
        """Compares with every key, each in constant time."""
        given = header(scope, b"authorization") or ""
        scheme, _, token = given.partition(" ")
        if scheme.lower() != "bearer":
            token = header(scope, b"x-api-key") or ""  # Anthropic's clients
        digest = _digest(token.strip())
        found = False
        for key in self._keys:
            found |= hmac.compare_digest(digest, key)
        return found

    def _write_log(self, scope, answer: "_Answer", note: dict, seconds: float) -> None:
        """One line. It never holds a query string, a header, or content."""
        client = scope.get("client")
        fields = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "client": client[0] if client else None,
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": answer.status,
            "bytes": answer.bytes,
            "ms": round(seconds * 1e3, 1),
            "request_id": answer.request_id,
            **note,
        }
        if self._state.config.access_log == "json":
            _log.info("%s", json.dumps(fields))
        else:
            _log.info("%s", " ".join(f"{k}={json.dumps(v)}" for k, v in fields.items()))


class _Answer:
    """send(), noting what was sent."""

    __slots__ = ("_show_id", "bytes", "request_id", "send", "status")

    def __init__(self, send, request_id: str, show_id: bool):
        self.send = send
        self.request_id = request_id
        self.status = 499  # until there is an answer: the client left before
        self.bytes = 0
        self._show_id = show_id

    async def __call__(self, message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._show_id:
                message["headers"] = [*message["headers"], (b"x-request-id", self.request_id.encode())]
        else:
            self.bytes += len(message.get("body", b""))
        await self.send(message)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
