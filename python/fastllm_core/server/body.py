"""Reading a request body: within limits, as JSON, and off the event loop when it is long."""

import asyncio
import json

from fastllm_core.server.config import ServerConfig
from fastllm_core.server.errors import ApiError, bad_request

_INLINE_BYTES = 1 << 16  # shorter bodies are parsed at once
_PLAIN = frozenset({int, float, bool, type(None)})  # what holds nothing else
_MAX_ITEMS = 1 << 20  # commas: parsing that many values holds the interpreter for 50 ms


class BodyReader:
    """Reads bodies of all requests of a server, and counts what is buffered for them."""

    def __init__(self, config: ServerConfig):
        self._config = config
        self._buffered = 0

    async def read_json(self, scope, receive) -> dict:
        """The body as a dict. ApiError: 400 no JSON object, 408 too slow, 413 too long, 415 not application/json,
        503 too many bodies at one time. ClientGone when the client goes before its end."""
        _check_content_type(scope)
        limit = self._config.body_timeout_s or None
        try:
            data = await asyncio.wait_for(self._read(scope, receive), limit)
        except asyncio.TimeoutError:
            raise ApiError(408, f"the request body did not come within {limit:g} s") from None
        if len(data) <= _INLINE_BYTES:
            return self._parse(data)
        return await asyncio.get_running_loop().run_in_executor(None, self._parse, data)

    async def _read(self, scope, receive) -> bytes:
        limit = self._config.max_body_bytes
        declared = _content_length(scope)
        if declared is not None and declared > limit:
            raise ApiError(413, f"the request body has {declared} bytes; the limit is {limit}")
        parts: list[bytes] = []
        size = 0
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part = message.get("body", b"")
                size += len(part)
                self._buffered += len(part)
                parts.append(part)
                if size > limit:
                    raise ApiError(413, f"the request body has more than {limit} bytes")
                if self._buffered > self._config.max_buffered_bytes:
                    retry = {"Retry-After": str(self._config.retry_after_s)}
                    raise ApiError(503, "too many long request bodies are being read", headers=retry)
                if not message.get("more_body", False):
                    return b"".join(parts)
        finally:
            self._buffered -= size

    def _parse(self, data: bytes) -> dict:
        if len(data) > _MAX_ITEMS and (items := data.count(b",")) > _MAX_ITEMS:
            raise ApiError(413, f"the request body lists about {items} values; the limit is {_MAX_ITEMS}")
        try:
            value = json.loads(data, parse_constant=_refuse_constant)
        except RecursionError:
            raise self._too_deep() from None
        except UnicodeDecodeError as e:
            raise bad_request(f"the request body is not UTF-8 at byte {e.start}") from None
        except ValueError as e:  # JSONDecodeError, or an integer of thousands of digits
            raise bad_request(f"the request body is not JSON: {str(e)[:200]}") from None
        if not isinstance(value, dict):
            raise bad_request(f"the request body must be a JSON object, got {type(value).__name__}")
        self._check(value, 1)
        return value

    def _check(self, value, depth: int) -> None:
        """Depth, and halves of surrogate pairs, which have no UTF-8 form."""
        if isinstance(value, str):
            if not value.isascii():
                _check_text(value)
            return
        if depth > self._config.max_json_depth:
            raise self._too_deep()
        if isinstance(value, list) and _PLAIN.issuperset(map(type, value)):
            return  # a prompt of ids
        if isinstance(value, dict):
            for key, item in value.items():
                self._check(key, depth)
                if isinstance(item, (str, dict, list)):
                    self._check(item, depth + 1)
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, (str, dict, list)):
                    self._check(item, depth + 1)

    def _too_deep(self) -> ApiError:
        return bad_request(f"the request body is nested more than {self._config.max_json_depth} levels deep")


class ClientGone(Exception):
    """The client closed its connection before the request was whole."""


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise bad_request(f"a string holds U+{ord(text[e.start]):04X}, half of a surrogate pair") from None


def _refuse_constant(name: str):
    raise ValueError(f"{name} is not a number of JSON")


def header(scope, name: bytes) -> str | None:
    """A request header, by its lower-case name."""
    for key, value in scope["headers"]:
        if key == name:
            return value.decode("latin-1")
    return None


def _content_length(scope) -> int | None:
    text = header(scope, b"content-length")
    return int(text) if text is not None and text.isdigit() else None


def _check_content_type(scope) -> None:
    """A browser sends no application/json to a foreign origin without asking first: this keeps web pages out."""
    kind = (header(scope, b"content-type") or "").split(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise ApiError(415, f"the Content-Type must be application/json, got {kind or 'none'!r}")
