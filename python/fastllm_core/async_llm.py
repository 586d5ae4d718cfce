"""AsyncLLM: generation for asyncio, streamed as it is made."""

import asyncio
import itertools
import weakref
from collections.abc import AsyncIterator, Sequence

from fastllm_core import lifecycle
from fastllm_core._C import GenerationRequest, SamplingParams, StreamRelay
from fastllm_core.beam_search import BeamSearchOutput, BeamSearchParams, carry_on, new_beams, step_params
from fastllm_core.errors import InvalidArgumentError, of_request
from fastllm_core.inputs import Prompt, Scheduling, make_prompt
from fastllm_core.loading import load, sampling_defaults
from fastllm_core.logprobs import position
from fastllm_core.output_state import OutputState
from fastllm_core.outputs import RequestOutput, RequestOutputKind
from fastllm_core.streams import Dispatcher, Group
from fastllm_core.text_workers import TextWorkers


class AsyncLLM:
    """As LLM, for asyncio. Takes the same arguments.

    The engine runs in its own threads; this class is woken through the engine's eventfd and takes all pending news
    at once. It never polls, and no tokenizer runs in the event loop. One AsyncLLM may serve several event loops.
    """

    def __init__(self, model: str, *, tokenizer: str | None = None, skip_tokenizer_init: bool = False, **options):
        self._engine, self._tokenizer = load(model, tokenizer, skip_tokenizer_init, options)
        self._dispatcher = Dispatcher(self._engine)
        self._workers = TextWorkers(self._tokenizer, self._engine.info.max_model_len)
        self._groups: weakref.WeakValueDictionary[str, Group] = weakref.WeakValueDictionary()
        self._counter = itertools.count()
        self._finalizer = weakref.finalize(self, _shutdown, self._engine, self._workers)

    async def generate(
        self,
        prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        output_kind: RequestOutputKind | None = None,
        priority: int = 0,
        timeout_ms: int | None = None,
        max_queue_time_ms: int | None = None,
        data_parallel_rank: int | None = None,
        session_id: str = "",
    ) -> AsyncIterator[RequestOutput]:
        """Yields the state of one request whenever there is news; the last output has finished = True.

        output_kind: in place of the parameters'; CUMULATIVE (vLLM's default) holds everything so far, DELTA only what
        is new, FINAL_ONLY comes once. A slow reader gets several steps in one output. Closing or cancelling the
        generator ends the request.
        priority, timeout_ms, max_queue_time_ms: as in LLM.generate(). QueueFullError when too many requests wait.
        data_parallel_rank: the replica that must take it; session_id: requests of one session go to one replica while
        its load allows (both with data_parallel_size > 1).
        """
        params = self.get_default_sampling_params() if sampling_params is None else sampling_params
        if request_id is None:
            request_id = f"auto-{next(self._counter)}"
        self._check_free(request_id)
        asked = Scheduling(priority, timeout_ms, max_queue_time_ms, data_parallel_rank, session_id)
        made = await self._make_prompt(prompt, params, asked)
        self._check_free(request_id)  # once more: another may have taken it meanwhile
        kind = output_kind or params.output_kind
        group = self.submit([made.request], quiet=kind is RequestOutputKind.FINAL_ONLY)
        self._groups[request_id] = group
        try:
            state = OutputState(request_id, made, kind, self._tokenizer)
            while not state.finished:
                for _, piece in await group.get():
                    if piece.finish_reason == "error":
                        self._engine.check_health()  # says why when the whole engine is dead
                        raise of_request(request_id, piece)
                    state.take(piece)
                output = state.output()
                if output is not None:
                    yield output
        finally:
            self._groups.pop(request_id, None)
            group.close()

    def submit(self, requests: list[GenerationRequest], *, quiet: bool = False) -> Group:
        """Queues requests that were made by hand, all or none, and returns where their news come; for servers.

        quiet: no news before the end. Closing the group, or dropping it, ends what runs.
        """
        return self._dispatcher.submit(requests, quiet)

    def start_relay(self, gap_edges: Sequence[float], round_us: int = 0, per_output_us: int = 0) -> StreamRelay | None:
        """Lets the engine write running streams to their sockets itself (fastllm_core._C.StreamRelay); for servers,
        once and before any request. None when the tokenizer's text can only be made in Python. gap_edges: upper edges
        of the relay's counts of gaps between events, in seconds. round_us, and per_output_us for each output of which
        the last look brought news: least time from one look at the engine's news to the next; what comes within it is
        joined."""
        return self._dispatcher.start_relay(gap_edges, round_us, per_output_us)

    def validate(self, request: GenerationRequest) -> None:
        """Raises what submit() would find wrong with the values of one request."""
        self._engine.validate(request)

    def fail_open_requests(self, message: str) -> None:
        """Ends every open request with an error, without the engine: for one that is stalled. From any thread."""
        self._dispatcher.fail_all(message)

    @property
    def text_workers(self) -> TextWorkers:
        """Tokenizes and renders off the event loop."""
        return self._workers

    async def abort(self, request_id: str) -> None:
        """Ends a request; its generator yields a last output with finish_reason "abort". Unknown ids are ignored."""
        group = self._groups.get(request_id)
        if group is not None:
            group.abort()

    async def beam_search(self, prompt, params: BeamSearchParams) -> BeamSearchOutput:
        """As LLM.beam_search(), for one prompt. Cancelling it ends what runs."""
        step = step_params(params)
        first = await self._make_prompt(prompt, step, Scheduling())
        self._engine.validate(first.request)
        beams = new_beams(prompt, first, params, self._engine.info)
        while live := beams.live():
            requests = [make_prompt(carry_on(b.orig_prompt, b.tokens), step, None).request for b in live]
            group = self.submit(requests, quiet=True)
            try:
                pieces: dict[int, list] = {}
                while not group.finished or len(pieces) < len(live):
                    for slot, piece in await group.get():
                        if piece.finish_reason == "error":
                            self._engine.check_health()
                            raise of_request(f"beam {slot}", piece)
                        pieces.setdefault(slot, []).extend(piece.logprobs)
            finally:
                group.close()
            beams.advance([position(pieces[slot][0], self._tokenizer) for slot in range(len(live))])
        return beams.output(self._tokenizer)

    def get_default_sampling_params(self) -> SamplingParams:
        """As LLM.get_default_sampling_params()."""
        return self._engine.info.default_sampling_params

    def get_diff_sampling_param(self) -> dict:
        """As LLM.get_diff_sampling_param()."""
        return sampling_defaults(self._engine.info)

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

    def replicas(self):
        """ReplicaInfo of each engine: one, or data_parallel_size of them."""
        return self._engine.replicas()

    async def drain_replica(self, replica: int) -> None:
        """The replica takes no more requests; what it has runs to its end."""
        await asyncio.to_thread(self._engine.drain_replica, replica)

    async def resume_replica(self, replica: int) -> None:
        """It takes requests again."""
        await asyncio.to_thread(self._engine.resume_replica, replica)

    async def restart_replica(self, replica: int) -> None:
        """Makes a drained replica anew, in the background."""
        await asyncio.to_thread(self._engine.restart_replica, replica)

    def check_health_now(self) -> None:
        """check_health() for code that is not in a coroutine; takes no lock and does not wait."""
        self._engine.check_health()

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

    async def count_cached_tokens(self, prompt) -> int:
        """As LLM.count_cached_tokens()."""
        return await asyncio.to_thread(lifecycle.count_cached_tokens, self._engine, prompt, self._tokenizer)

    async def pin_prefix(self, prompt, *, priority: int = 1, ttl: float | None = None) -> int:
        """As LLM.pin_prefix()."""
        return await asyncio.to_thread(lifecycle.pin_prefix, self._engine, prompt, self._tokenizer, priority, ttl)

    def kv_events(self, most: int = 10000):
        """As LLM.kv_events()."""
        return self._engine.drain_kv_events(most)

    async def drain(self, timeout: float) -> bool:
        """As LLM.drain()."""
        return await asyncio.to_thread(self._engine.drain_and_shutdown, timeout)

    def shutdown(self) -> None:
        """Ends the engine. Requests that run end with finish_reason "abort"."""
        self._finalizer()

    def _check_free(self, request_id: str) -> None:
        if request_id in self._groups:
            raise InvalidArgumentError(f"request_id {request_id!r} is in use by a request that runs")

    async def _make_prompt(self, prompt, params: SamplingParams, asked: Scheduling) -> Prompt:
        """As make_prompt(), with the text tokenized in another thread."""
        text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
        given_ids = isinstance(prompt, dict) and prompt.get("prompt_token_ids") is not None
        if not isinstance(text, str) or given_ids or self._tokenizer is None:
            return make_prompt(prompt, params, self._tokenizer, asked)
        rest = prompt if isinstance(prompt, dict) else {"prompt": prompt}
        # An unknown key is an error before any work.
        make_prompt({**rest, "prompt_token_ids": [0]}, params, self._tokenizer, asked)
        ids = await self._workers.encode(text)
        return make_prompt({**rest, "prompt_token_ids": ids}, params, self._tokenizer, asked)


def _shutdown(engine, workers: TextWorkers) -> None:
    engine.shutdown()
    workers.shutdown()
