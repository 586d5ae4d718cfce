"""uvicorn's HTTP protocol with limits on the head of a request: its size, and the time it may take."""

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from fastllm_core.server.errors import ApiError


class LimitedProtocol(HttpToolsProtocol):
    """Use through limited_protocol()."""

    max_head_bytes = 64 << 10
    head_timeout_s = 60.0

    def connection_made(self, transport) -> None:
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc) -> None:
        self._head_done()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # The parser keeps a line until it is whole, so what it has not reported yet is counted here.
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self.max_head_bytes and not self.transport.is_closing():
                self._refuse(ApiError(431, f"the request head has more than {self.max_head_bytes} bytes"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > self.max_head_bytes:  # trailers included
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_done()
        super().on_headers_complete()
        self.scope["state"]["cycle"] = self.cycle  # for streams that are written past the framework

    def _expect_head(self) -> None:
        self._in_head = True
        self._head_bytes = self._header_bytes = 0
        if getattr(self, "_head_timer", None) is None and self.head_timeout_s > 0:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self._too_slow)

    def _head_done(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self._refuse(ApiError(408, f"the request head did not come within {self.head_timeout_s:g} s"))

    def _refuse(self, error: ApiError) -> None:
        body = error.body()
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[error.status] + head + body)
        self.transport.close()


def limited_protocol(config) -> type[LimitedProtocol]:
    """The protocol class with the limits of a ServerConfig."""
    limits = {"max_head_bytes": config.max_header_bytes, "head_timeout_s": config.body_timeout_s}
    return type("LimitedProtocol", (LimitedProtocol,), limits)
