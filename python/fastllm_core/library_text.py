"""Text for tokenizers whose decoder the engine's table cannot express: made in Python, on the way out of the engine."""

import threading
from dataclasses import dataclass, field

from fastllm_core.errors import InvalidArgumentError
from fastllm_core.tokenizer.stream import LibraryTextStream


class LibraryTextEngine:
    """An engine without a token table, with the text of a tokenizer put into its deltas.

    To LLM and AsyncLLM it is the engine: whatever is not here is the engine's own. Requests go to it without text and
    stop strings; when a stop string has matched here in every output that still runs, the request is aborted in the
    engine.
    """

    def __init__(self, engine, tokenizer):
        self._engine = engine
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._open: dict[int, _Open] = {}  # requests with text, by handle

    def __getattr__(self, name: str):
        return getattr(self._engine, name)

    def validate(self, request) -> None:
        plain = self._without_text(request)
        self._engine.validate(plain)
        request.set_prompt_of(plain)  # which may have been truncated

    def submit(self, request) -> int:
        plain = self._without_text(request)
        with self._lock:  # no delta of it is looked at before its stream is there
            handle = self._engine.submit(plain)
            self._add(handle, request, plain)
        return handle

    def submit_all(self, requests, handles: list[int]) -> None:
        known = len(handles)
        plain = [self._without_text(r) for r in requests]
        with self._lock:
            try:
                self._engine.submit_all(plain, handles)
            finally:
                for handle, request, made in zip(handles[known:], requests[known:], plain[known:]):
                    self._add(handle, request, made)

    def drain(self, *args) -> list:
        deltas = self._engine.drain(*args)
        with self._lock:
            return [out for d in deltas if (out := self._with_text(d)) is not None]

    def _add(self, handle: int, request, plain) -> None:
        params = request.sampling_params
        if params.detokenize:
            prompt = list(plain.prompt_token_ids)
            streams = {i: LibraryTextStream(self._tokenizer, prompt, params) for i in range(params.n)}
            self._open[handle] = _Open(streams)

    def _without_text(self, request):
        params = request.sampling_params
        if not params.detokenize:
            return request  # the engine refuses stop strings
        for n, stop in enumerate(params.stop):
            if not stop:
                raise InvalidArgumentError(f"stop[{n}] must not be empty")
        return request.without_text()

    def _with_text(self, delta):
        handle, index = delta.request_id, delta.index
        request = self._open.get(handle)
        if request is None:
            return delta
        ended = delta.finish_reason is not None
        if index in request.stopped:
            if ended:
                request.stopped.discard(index)
                self._drop_if_done(handle)
            return None
        text, offsets, stop = request.streams[index].append(delta.token_ids, delta.finish_reason)
        out = _Delta(delta, delta.token_ids[: len(offsets)], text, offsets)
        if ended or stop is not None:
            del request.streams[index]
        if stop is not None:
            out.stop(stop)
            if not ended:
                request.stopped.add(index)
        if not request.streams and request.stopped:
            self._engine.abort(handle)  # all that still run have ended here
        self._drop_if_done(handle)
        return out

    def _drop_if_done(self, handle: int) -> None:
        if not self._open[handle].streams and not self._open[handle].stopped:
            del self._open[handle]


@dataclass
class _Open:
    """A request with text: the streams of its outputs, and the outputs that ended here and not yet in the engine."""

    streams: dict[int, LibraryTextStream]
    stopped: set[int] = field(default_factory=set)


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
    def logprobs(self) -> list:
        return self._delta.logprobs[: len(self.token_ids)]

    @property
    def finish_reason(self) -> str | None:
        return self._delta.finish_reason if self._stop is None else "stop"

    @property
    def stop_reason(self) -> int | str | None:
        return self._delta.stop_reason if self._stop is None else self._stop
