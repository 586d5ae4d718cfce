"""A small HTTP/1.1 client on the standard library, for asyncio: the command line's clients and the load generator."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from fastllm_core.errors import FastLLMError

MAX_LINE = 1 << 20


class HttpError(FastLLMError):
    """An answer that is no success: its status and its text."""

    def __init__(self, status: int, text: str):
        super().__init__(f"HTTP {status}: {text[:500]}")
        self.status = status


class HttpClient:
    """Requests to one server, each on a connection of its own."""

    def __init__(self, url: str, api_key: str | None = None, timeout: float = 600.0):
        parts = urlsplit(url if "://" in url else "http://" + url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise FastLLMError(f"--url must be like http://127.0.0.1:8000, got {url!r}")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._timeout = timeout

    async def get_json(self, path: str) -> dict:
        return json.loads(await self._whole("GET", path, None))

    async def post_json(self, path: str, body: dict) -> dict:
        return json.loads(await self._whole("POST", path, body))

    async def stream(self, path: str, body: dict) -> AsyncIterator[dict]:
        """The events of a stream as JSON values, up to [DONE]. An event that is an error raises HttpError."""
        reader, writer = await self._send("POST", path, body)
        try:
            chunked = await self._head(reader)
            rest = b""
            async for part in _parts(reader, chunked):
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    if not line.startswith(b"data: "):
                        continue
                    data = line[6:].strip()
                    if data == b"[DONE]":
                        return
                    event = json.loads(data)
                    if event.get("error"):
                        raise HttpError(200, json.dumps(event["error"]))
                    yield event
        finally:
            writer.close()

    async def _whole(self, method: str, path: str, body: dict | None) -> bytes:
        reader, writer = await self._send(method, path, body)
        try:
            chunked = await self._head(reader)
            return b"".join([part async for part in _parts(reader, chunked)])
        finally:
            writer.close()

    async def _send(self, method: str, path: str, body: dict | None):
        data = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {self._base}{path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nConnection: close\r\n"
            f"{self._key}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        try:
            opening = asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=MAX_LINE)
            reader, writer = await asyncio.wait_for(opening, self._timeout)
        except (OSError, asyncio.TimeoutError) as e:
            raise FastLLMError(f"no server at {self._host}:{self._port}: {e}") from None
        writer.write(head.encode() + data)
        return reader, writer

    async def _head(self, reader) -> bool:
        """Reads status and headers; True for a chunked body. Raises HttpError for a status that is no success."""
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), self._timeout)
        except asyncio.IncompleteReadError:
            raise FastLLMError("the server closed the connection without an answer") from None
        except asyncio.TimeoutError:
            raise FastLLMError(f"no answer within {self._timeout:g} s") from None
        chunked = b"transfer-encoding: chunked" in head.lower()
        status = int(head.split(None, 2)[1])
        if status >= 300:
            text = b"".join([part async for part in _parts(reader, chunked)]).decode("utf-8", "replace")
            raise HttpError(status, _message(text))
        return chunked


async def _parts(reader, chunked: bool) -> AsyncIterator[bytes]:
    """The pieces of a body; the connection closes behind it."""
    if not chunked:
        while part := await reader.read(65536):
            yield part
        return
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)


def _message(text: str) -> str:
    try:
        return json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return text
