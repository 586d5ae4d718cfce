"""Text for tokenizers whose decoder the engine's table cannot express: made in Python, on the way out of the engine."""

import threading
from dataclasses import dataclass

from fastllm_core.errors import InvalidArgumentError
from fastllm_core.tokenizer.stream import LibraryTextStream


class LibraryTextEngine:
    """An engine without a token table, with the text of a tokenizer put into its deltas.

    To LLM and AsyncLLM it is the engine: whatever is not here is the engine's own. Requests go to it without text and
    stop strings; when a stop string matches here, the request's sequence is aborted in the engine.
    """

    def __init__(self, engine, tokenizer):
        self._engine = engine
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._streams: dict[int, LibraryTextStream] = {}
        self._stopped: set[int] = set()  # ended here; their last delta is still to come out of the engine

    def __getattr__(self, name: str):
        return getattr(self._engine, name)

    def validate(self, request):
        return self._engine.validate(self._without_text(request))

    def submit(self, request) -> int:
        with self._lock:  # no delta of it is looked at before its stream is there
            handle = self._engine.submit(self._without_text(request))
            self._open(handle, request)
        return handle

    def submit_all(self, requests, handles: list[int]) -> None:
        known = len(handles)
        with self._lock:
            try:
                self._engine.submit_all([self._without_text(r) for r in requests], handles)
            finally:
                for handle, request in zip(handles[known:], requests):
                    self._open(handle, request)

    def drain(self, *args) -> list:
        deltas = self._engine.drain(*args)
        with self._lock:
            return [out for d in deltas if (out := self._with_text(d)) is not None]

    def _open(self, handle: int, request) -> None:
        if request.sampling_params.detokenize:
            self._streams[handle] = LibraryTextStream(
                self._tokenizer, request.prompt_token_ids, request.sampling_params
            )

    def _without_text(self, request):
        params = request.sampling_params
        if not params.detokenize:
            return request  # the engine refuses stop strings
        for n, stop in enumerate(params.stop):
            if not stop:
                raise InvalidArgumentError(f"stop[{n}] must not be empty")
        return request.without_text()

    def _with_text(self, delta):
        handle = delta.request_id
        if handle in self._stopped:
            if delta.finish_reason is not None:
                self._stopped.discard(handle)
            return None
        stream = self._streams.get(handle)
        if stream is None:
            return delta
        text, offsets, stop = stream.append(delta.token_ids, delta.finish_reason)
        out = _Delta(delta, delta.token_ids[: len(offsets)], text, offsets)
        if delta.finish_reason is not None or stop is not None:
            del self._streams[handle]
        if stop is not None:
            out.stop(stop)
            if delta.finish_reason is None:
                self._stopped.add(handle)
                self._engine.abort(handle)
        return out


@dataclass
class _Delta:
    """A RequestDelta with text; what is not here is the engine's."""

    _delta: object
    token_ids: list[int]
    text: str
    text_offsets: list[int]
    _stop: str | None = None

    def __getattr__(self, name: str):
        return getattr(self._delta, name)

    def stop(self, stop_string: str) -> None:
        self._stop = stop_string

    @property
    def finish_reason(self) -> str | None:
        return self._delta.finish_reason if self._stop is None else "stop"

    @property
    def stop_reason(self) -> int | str | None:
        return self._delta.stop_reason if self._stop is None else self._stop
