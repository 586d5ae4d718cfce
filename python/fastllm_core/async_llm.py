"""AsyncLLM: generation for asyncio, streamed as it is made."""

import asyncio
import contextlib
import itertools
import threading
import weakref
from collections.abc import AsyncIterator

from fastllm_core import lifecycle
from fastllm_core._C import SamplingParams
from fastllm_core.errors import InternalError, InvalidArgumentError
from fastllm_core.inputs import Prompt, make_prompt
from fastllm_core.loading import load
from fastllm_core.outputs import CompletionOutput, Piece, RequestOutput, RequestOutputKind, join_deltas


class _Stream:
    """Where one request's news wait for their reader."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.loop = loop
        self._lock = threading.Lock()
        self._news: Piece | None = None
        self._waiter: asyncio.Future | None = None  # used in the thread of the loop alone

    def put(self, piece: Piece) -> None:
        """From any thread, in the order of the engine's deltas; wake() must follow."""
        with self._lock:
            self._news = join_deltas(self._news, piece)

    def wake(self) -> None:
        """In the thread of the loop."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _take(self) -> Piece | None:
        with self._lock:
            news, self._news = self._news, None
        return news

    async def get(self) -> Piece:
        """All news since the last call, waiting for some."""
        while (news := self._take()) is None:
            self._waiter = self.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return news


class _Dispatcher:
    """Carries the engine's deltas to their streams: one reader of the eventfd per event loop with open streams."""

    def __init__(self, engine):
        self._engine = engine
        self._lock = threading.Lock()  # loops may run in different threads
        self._streams: dict[int, _Stream] = {}
        self._open: dict[asyncio.AbstractEventLoop, int] = {}  # streams per loop that watches the eventfd

    def submit(self, request) -> tuple[int, _Stream]:
        loop = asyncio.get_running_loop()
        stream = _Stream(loop)
        with self._lock:  # the first delta must not be drained before its stream is known
            handle = self._engine.submit(request)
            self._streams[handle] = stream
            if self._open.get(loop, 0) == 0:
                loop.add_reader(self._engine.event_fd, self._on_readable)
            self._open[loop] = self._open.get(loop, 0) + 1
        return handle, stream

    def close(self, handle: int, stream: _Stream) -> None:
        with self._lock:
            self._streams.pop(handle, None)
            self._open[stream.loop] -= 1
            if self._open[stream.loop] == 0:
                del self._open[stream.loop]
                if not stream.loop.is_closed():
                    stream.loop.remove_reader(self._engine.event_fd)

    def _on_readable(self) -> None:
        # Put under the lock: a loop that drains later must not deliver earlier.
        fresh = []
        with self._lock:
            for delta in self._engine.drain():
                stream = self._streams.get(delta.request_id)
                if stream is not None:  # None: closed before its end
                    stream.put(Piece.of(delta))
                    fresh.append(stream)
        for stream in fresh:
            _wake(stream)


def _wake(stream: _Stream) -> None:
    if stream.loop is asyncio.get_running_loop():
        stream.wake()
    else:
        with contextlib.suppress(RuntimeError):  # its thread may close it at any time
            stream.loop.call_soon_threadsafe(stream.wake)


class AsyncLLM:
    """As LLM, for asyncio. Takes the same arguments.

    The engine runs in its own threads; this class is woken through the engine's eventfd and takes all pending news
    at once. It has no thread of its own and never polls. One AsyncLLM may serve several event loops.
    """

    def __init__(self, model: str, *, tokenizer: str | None = None, skip_tokenizer_init: bool = False, **options):
        self._engine, self._tokenizer = load(model, tokenizer, skip_tokenizer_init, options)
        self._dispatcher = _Dispatcher(self._engine)
        self._handles: dict[str, int] = {}
        self._counter = itertools.count()
        self._finalizer = weakref.finalize(self, self._engine.shutdown)

    async def generate(
        self,
        prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE,
    ) -> AsyncIterator[RequestOutput]:
        """Yields the state of one request whenever there is news; the last output has finished = True.

        output_kind: CUMULATIVE (vLLM's default) holds everything so far, DELTA only what is new, FINAL_ONLY comes
        once. A slow reader gets several steps in one output. Closing or cancelling the generator ends the request.
        """
        params = SamplingParams() if sampling_params is None else sampling_params
        if request_id is None:
            request_id = f"auto-{next(self._counter)}"
        if request_id in self._handles:
            raise InvalidArgumentError(f"request_id {request_id!r} is in use by a request that runs")
        made = make_prompt(prompt, params, self._tokenizer)
        handle, stream = self._dispatcher.submit(made.request)
        self._handles[request_id] = handle
        finished = False
        try:
            state = _OutputState(request_id, made, output_kind)
            while not finished:
                piece = await stream.get()
                finished = piece.finish_reason is not None
                if piece.finish_reason == "error":
                    self._engine.check_health()  # says why when the whole engine is dead
                    raise InternalError(f"request {request_id}: {piece.error}")
                output = state.take(piece)
                if output is not None:
                    yield output
        finally:
            del self._handles[request_id]
            self._dispatcher.close(handle, stream)
            if not finished:
                self._engine.abort(handle)

    async def abort(self, request_id: str) -> None:
        """Ends a request; its generator yields a last output with finish_reason "abort". Unknown ids are ignored."""
        if request_id in self._handles:
            self._engine.abort(self._handles[request_id])

    def get_tokenizer(self):
        """The tokenizer, or None with skip_tokenizer_init."""
        return self._tokenizer

    @property
    def info(self):
        """As LLM.info."""
        return self._engine.info

    def stats(self):
        """As LLM.stats()."""
        return self._engine.stats()

    async def check_health(self) -> None:
        """Raises EngineDeadError when the engine does not serve: shut down, failed, or stalled."""
        self._engine.check_health()

    async def pause_generation(self, *, mode: str = "abort", clear_cache: bool = True) -> None:
        """As LLM.pause_generation()."""
        await asyncio.to_thread(lifecycle.pause, self._engine, mode, clear_cache)

    async def resume_generation(self) -> None:
        """As LLM.resume_generation()."""
        await asyncio.to_thread(self._engine.resume)

    async def is_paused(self) -> bool:
        return self._engine.stats().paused

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """As LLM.sleep()."""
        await asyncio.to_thread(lifecycle.sleep, self._engine, level, mode)

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """As LLM.wake_up()."""
        await asyncio.to_thread(lifecycle.wake_up, self._engine, tags)

    async def is_sleeping(self) -> bool:
        return self._engine.stats().asleep

    async def reset_prefix_cache(self) -> None:
        """As LLM.reset_prefix_cache()."""
        await asyncio.to_thread(self._engine.reset_prefix_cache)

    async def drain(self, timeout: float) -> bool:
        """As LLM.drain()."""
        return await asyncio.to_thread(self._engine.drain_and_shutdown, timeout)

    def shutdown(self) -> None:
        """Ends the engine. Requests that run end with finish_reason "abort"."""
        self._finalizer()


class _OutputState:
    """Makes the outputs of one request from its news."""

    def __init__(self, request_id: str, prompt: Prompt, kind: RequestOutputKind):
        self._request_id = request_id
        self._prompt = prompt
        self._ids = prompt.request.prompt_token_ids
        self._kind = kind
        self._all: Piece | None = None

    def take(self, piece: Piece) -> RequestOutput | None:
        finished = piece.finish_reason is not None
        if self._kind is not RequestOutputKind.DELTA:
            self._all = piece = join_deltas(self._all, piece)
            if self._kind is RequestOutputKind.FINAL_ONLY and not finished:
                return None
        completion = CompletionOutput(
            0, piece.text, piece.token_ids, piece.finish_reason, piece.stop_reason, piece.text_offsets
        )
        return RequestOutput(
            self._request_id,
            self._prompt.text,
            self._ids,
            [completion],
            finished,
            piece.num_cached_tokens,
            piece.metrics,
        )
