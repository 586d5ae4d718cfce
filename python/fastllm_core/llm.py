"""LLM: offline generation. Give it prompts, get all results."""

import select
import threading
import weakref
from collections.abc import Sequence

from fastllm_core import lifecycle
from fastllm_core._C import SamplingParams
from fastllm_core.beam_search import Beams, BeamSearchOutput, BeamSearchParams, carry_on, new_beams, step_params
from fastllm_core.errors import FastLLMError, InvalidArgumentError, QueueFullError, of_request
from fastllm_core.inputs import Prompt, at_index, is_single, make_prompt, make_prompts, schedulings
from fastllm_core.loading import load, sampling_defaults
from fastllm_core.logprobs import RequestLogprobs
from fastllm_core.outputs import CompletionOutput, RequestOutput


class LLM:
    """A model, ready to continue prompts.

    model: a .gguf file, a Hugging Face folder, or a short name (smollm2).
    tokenizer: another place to take the tokenizer from.
    skip_tokenizer_init: load none; prompts are then token ids.
    logits_processors: classes as fastllm_core.logits_processor.LogitsProcessor, or their names "module:Class".
    Further keywords: the fields of EngineConfig. Keywords of vLLM that this version does not have raise an error,
    unless they state what is the case anyway (fastllm_core/vllm_keywords.py).
    """

    def __init__(self, model: str, *, tokenizer: str | None = None, skip_tokenizer_init: bool = False, **options):
        self._engine, self._tokenizer = load(model, tokenizer, skip_tokenizer_init, options)
        self._lock = threading.Lock()  # one batch at a time takes the engine's deltas
        self._next_id = 0
        self._finalizer = weakref.finalize(self, self._engine.shutdown)

    def generate(
        self,
        prompts,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: int | Sequence[int] | None = None,
        timeout_ms: int | None = None,
        max_queue_time_ms: int | None = None,
    ) -> list[RequestOutput]:
        """Continues each prompt; results are in the order of the prompts.

        prompts: a str, a list of token ids, {"prompt": str}, {"prompt_token_ids": ids}, or a list of these. A dict may
        also hold cache_salt. Special tokens written out in a text prompt are special tokens, as in vLLM.
        sampling_params: one for all, or one per prompt.
        priority: lower comes first; one for all, or one per prompt. Needs scheduling_policy="priority".
        timeout_ms, max_queue_time_ms: limits of each request, as the engine's options of like names; a request beyond
        one raises RequestTimeoutError or QueueTimeoutError.
        Every prompt is checked before any runs; an error names the prompt's index. Ctrl-C ends all of them.
        """
        batch = [prompts] if is_single(prompts) else prompts
        params = self.get_default_sampling_params() if sampling_params is None else sampling_params
        asked = schedulings(len(batch), priority, timeout_ms, max_queue_time_ms)
        return self._run(make_prompts(batch, params, self._tokenizer, self._engine.validate, asked), use_tqdm)

    def chat(
        self,
        messages: Sequence[dict] | Sequence[Sequence[dict]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict] | None = None,
        chat_template_kwargs: dict | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation or a list of them, through the model's chat template."""
        if self._tokenizer is None:
            raise InvalidArgumentError("chat needs a tokenizer, but skip_tokenizer_init was given")
        many = isinstance(messages, Sequence) and not isinstance(messages, str) and len(messages) > 0
        single = not many or isinstance(messages[0], dict)
        prompts = []
        for n, conversation in enumerate([messages] if single else messages):
            try:
                prompts.append(
                    self._chat_prompt(
                        conversation,
                        chat_template=chat_template,
                        add_generation_prompt=add_generation_prompt,
                        continue_final_message=continue_final_message,
                        tools=tools,
                        **(chat_template_kwargs or {}),
                    )
                )
            except FastLLMError as e:
                raise at_index(e, n) from e
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def beam_search(
        self,
        prompts,
        params: BeamSearchParams,
        *,
        use_tqdm: bool = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """The params.beam_width best continuations of each prompt, best first; prompts as for generate().

        Every beam is one request per token, which finds the beam's tokens in the prefix cache. The engine must give
        2 * beam_width logprobs (option max_logprobs). concurrency_limit: prompts that are searched at a time.
        """
        if concurrency_limit is not None and concurrency_limit < 1:
            raise InvalidArgumentError(f"concurrency_limit must be at least 1, got {concurrency_limit}")
        batch = [prompts] if is_single(prompts) else prompts
        asked = schedulings(len(batch), None, None, None)
        made = make_prompts(batch, step_params(params), self._tokenizer, self._engine.validate, asked)
        limit = concurrency_limit or max(1, len(made))
        outputs: list[BeamSearchOutput] = []
        with _progress(len(made), use_tqdm) as progress:
            for first in range(0, len(made), limit):
                part = zip(batch[first : first + limit], made[first : first + limit])
                searches = [new_beams(given, prompt, params, self._engine.info) for given, prompt in part]
                outputs += self._search(searches, params)
                progress.update(len(outputs) - first)
        return outputs

    def _search(self, searches: list[Beams], params: BeamSearchParams) -> list[BeamSearchOutput]:
        step = step_params(params)
        while any(live := [search.live() for search in searches]):
            flat = [make_prompt(carry_on(b.orig_prompt, b.tokens), step, None) for beams in live for b in beams]
            results = iter(self._run(flat, use_tqdm=False))
            for search, beams in zip(searches, live):
                if beams:
                    search.advance([next(results).outputs[0].logprobs[0] for _ in beams])
        return [search.output(self._tokenizer) for search in searches]

    def get_tokenizer(self):
        """The tokenizer, or None with skip_tokenizer_init."""
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What a request gets that brings no parameters: the model's own defaults (option generation_config)."""
        return self._engine.info.default_sampling_params

    def get_diff_sampling_param(self) -> dict:
        """The parameters that the model itself states, by their names in SamplingParams."""
        return sampling_defaults(self._engine.info)

    @property
    def info(self):
        """Facts of the loaded engine: vocabulary, limits, derived configuration with reasons, start-up times."""
        return self._engine.info

    def stats(self):
        """A snapshot of the engine: requests, blocks, prefix hits."""
        return self._engine.stats()

    def pause_generation(self, mode: str = "abort", clear_cache: bool = True) -> None:
        """Returns when no step runs. Requests that come while paused are held until resume_generation().

        mode: what happens to the requests that are there. "abort" ends them, "wait" lets them finish, "keep" freezes
        them with their KV blocks until resume_generation().
        clear_cache: forget the cached prefixes as well (not with "keep").
        """
        lifecycle.pause(self._engine, mode, clear_cache)

    def resume_generation(self) -> None:
        """Ends a pause."""
        self._engine.resume()

    def is_paused(self) -> bool:
        return self._engine.stats().paused

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Pauses and frees device memory: level 1 keeps the weights in host memory, 2 drops them."""
        lifecycle.sleep(self._engine, level, mode)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Brings back "weights", "kv_cache", or by default everything, and then serves again."""
        lifecycle.wake_up(self._engine, tags)

    def is_sleeping(self) -> bool:
        return self._engine.stats().asleep

    def await_serving(self, timeout: float) -> None:
        """Returns when requests are taken: at once, or with restart_failed_engine when a failed engine is there again.

        Raises FastLLMError when that takes longer than `timeout` seconds, or nothing makes the engine anew.
        """
        self._engine.await_serving(timeout)

    def reset_prefix_cache(self) -> None:
        """Forgets all cached prefixes; InvalidStateError while a request holds blocks."""
        self._engine.reset_prefix_cache()

    def count_cached_tokens(self, prompt) -> int:
        """How many tokens of a prompt (as in generate()) its request would find in the prefix cache now."""
        return lifecycle.count_cached_tokens(self._engine, prompt, self._tokenizer)

    def pin_prefix(self, prompt, *, priority: int = 1, ttl: float | None = None) -> int:
        """Keeps what is cached of a prompt longer than what is not pinned; how many tokens that is.

        priority: 1 to 63, higher ones are kept longer; 0 ends a pin. ttl: seconds, or None for no end. A pinned block
        is still taken when no other is free.
        """
        return lifecycle.pin_prefix(self._engine, prompt, self._tokenizer, priority, ttl)

    def kv_events(self, most: int = 10000):
        """The oldest KV events since the last call (KvEventBatch). Needs kv_events_buffer_size."""
        return self._engine.drain_kv_events(most)

    def drain(self, timeout: float) -> bool:
        """Refuses new requests, gives those that run `timeout` seconds, then ends the engine.

        True when all of them finished; the others end with finish_reason "abort".
        """
        return self._engine.drain_and_shutdown(timeout)

    def shutdown(self) -> None:
        """Ends the engine; calls after it raise EngineDeadError."""
        self._finalizer()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.shutdown()

    def _chat_prompt(self, conversation, **options) -> dict:
        text = self._tokenizer.apply_chat_template(conversation, **options)
        return {"prompt": text, "prompt_token_ids": self._tokenizer.encode(text, add_special_tokens=False)}

    def _run(self, prompts: list[Prompt], use_tqdm: bool) -> list[RequestOutput]:
        self._engine.check_health()  # in a forked child the lock may be held for ever
        with self._lock:
            outputs = [self._new_output(p) for p in prompts]
            handles: list[int] = []
            try:
                self._collect([p.request for p in prompts], handles, outputs, _progress(len(prompts), use_tqdm))
            except BaseException:
                self._abandon({h: len(out.outputs) for h, out in zip(handles, outputs) if not out.finished})
                raise
            return outputs

    def _new_output(self, prompt: Prompt) -> RequestOutput:
        self._next_id += 1
        completions = [CompletionOutput(index) for index in range(prompt.request.sampling_params.n)]
        return RequestOutput(str(self._next_id - 1), prompt.text, [], completions, False)

    def _new_logprobs(self, params: SamplingParams) -> list[RequestLogprobs]:
        return [RequestLogprobs(params, self._tokenizer) for _ in range(params.n)]

    def _submit(self, requests: list, handles: list[int], outputs: list[RequestOutput]) -> dict[int, RequestOutput]:
        """Queues the requests that have no handle yet, as many as the queue takes; those that it took."""
        first = len(handles)
        try:
            self._engine.submit_all(requests, handles)
        except QueueFullError:
            if all(out.finished for out in outputs[: len(handles)]):
                raise  # nothing of ours will make room
        return dict(zip(handles[first:], outputs[first:]))

    def _collect(self, requests: list, handles: list[int], outputs: list[RequestOutput], progress) -> None:
        """Runs all requests to their end. Waits on the engine's eventfd, where Ctrl-C is heard at once."""
        waiter = select.poll()
        waiter.register(self._engine.event_fd, select.POLLIN)
        running: dict[int, RequestOutput] = {}
        logprobs: dict[int, list[RequestLogprobs]] = {}
        texts: dict[int, list[list[str]]] = {}
        left: dict[int, int] = {}  # outputs that are not finished
        with progress:
            while True:
                if len(handles) < len(requests):
                    first = len(handles)
                    fresh = self._submit(requests, handles, outputs)
                    running |= fresh
                    for (handle, out), request in zip(fresh.items(), requests[first:]):
                        # Here, as the engine is at work by now: long prompts take a while.
                        out.prompt_token_ids = request.prompt_token_ids
                        logprobs[handle] = self._new_logprobs(request.sampling_params)
                        texts[handle] = [[] for _ in out.outputs]
                        left[handle] = len(out.outputs)
                if not running:
                    return
                waiter.poll()
                deltas = self._engine.drain()
                if not deltas:
                    self._engine.check_health()
                for delta in deltas:
                    out = running.get(delta.request_id)
                    if out is None:  # of a batch that was abandoned
                        continue
                    texts[delta.request_id][delta.index].append(delta.text)
                    if delta.finish_reason == "error":
                        self._engine.check_health()  # says why when the whole engine is dead
                        raise of_request(out.request_id, delta)
                    logprobs[delta.request_id][delta.index].take(delta)
                    if _take(out, delta):
                        _set_logprobs(out, delta.index, logprobs[delta.request_id][delta.index])
                        out.outputs[delta.index].text = "".join(texts[delta.request_id][delta.index])
                        left[delta.request_id] -= 1
                        if left[delta.request_id] == 0:
                            out.finished = True
                            del running[delta.request_id], texts[delta.request_id], logprobs[delta.request_id]
                            progress.update(1)

    def _abandon(self, running: dict[int, int]) -> None:
        """Aborts what runs and waits until it is gone, so that the next batch starts on an idle engine.

        running: by handle, as many outputs as may still end.
        """
        for handle in running:
            self._engine.abort(handle)
        try:
            while running:
                self._engine.check_health()
                deltas = self._engine.drain(100)
                for delta in deltas:
                    if delta.finish_reason is not None and delta.request_id in running:
                        running[delta.request_id] -= 1
                        if running[delta.request_id] == 0:
                            del running[delta.request_id]
                stats = self._engine.stats()
                if not deltas and stats.running == stats.waiting == 0:
                    return  # the last news of some went down with the exception
        except FastLLMError:
            return  # the engine is dead: nothing runs


def _take(out: RequestOutput, delta) -> bool:
    """Adds a delta's ids and reasons; True when it is the last one of its output."""
    completion = out.outputs[delta.index]
    completion.token_ids.extend(delta.token_ids)
    completion.text_offsets.extend(delta.text_offsets)
    if delta.index == 0:  # the others find the prompt of the first in the cache
        out.num_cached_tokens = delta.num_cached_tokens
    if delta.finish_reason is None:
        return False
    completion.finish_reason, completion.stop_reason = delta.finish_reason, delta.stop_reason
    out.metrics = delta.metrics  # of the output that ends last
    return True


def _set_logprobs(out: RequestOutput, index: int, logprobs: RequestLogprobs) -> None:
    completion = out.outputs[index]
    completion.logprobs, completion.cumulative_logprob = logprobs.tokens, logprobs.cumulative
    if index == 0:  # the only one that has the prompt's
        out.prompt_logprobs = logprobs.prompt


class _NoProgress:
    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass

    def update(self, n: int) -> None:
        pass


def _progress(total: int, use_tqdm: bool):
    if not use_tqdm:
        return _NoProgress()
    from tqdm import tqdm

    return tqdm(total=total, desc="Processed prompts", unit="prompt", dynamic_ncols=True)
