"""LLM: offline generation. Give it prompts, get all results."""

import select
import threading
import weakref
from collections.abc import Sequence

from fastllm_core import lifecycle
from fastllm_core._C import SamplingParams
from fastllm_core.errors import FastLLMError, InternalError, InvalidArgumentError
from fastllm_core.inputs import Prompt, at_index, is_single, make_prompts
from fastllm_core.loading import load
from fastllm_core.outputs import CompletionOutput, RequestOutput


class LLM:
    """A model, ready to continue prompts.

    model: a .gguf file, a Hugging Face folder, or a short name (smollm2).
    tokenizer: another place to take the tokenizer from.
    skip_tokenizer_init: load none; prompts are then token ids.
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
    ) -> list[RequestOutput]:
        """Continues each prompt; results are in the order of the prompts.

        prompts: a str, a list of token ids, {"prompt": str}, {"prompt_token_ids": ids}, or a list of these. A dict may
        also hold cache_salt. Special tokens written out in a text prompt are special tokens, as in vLLM.
        sampling_params: one for all, or one per prompt.
        Every prompt is checked before any runs; an error names the prompt's index. Ctrl-C ends all of them.
        """
        batch = [prompts] if is_single(prompts) else prompts
        params = self.get_default_sampling_params() if sampling_params is None else sampling_params
        return self._run(make_prompts(batch, params, self._tokenizer, self._engine.validate), use_tqdm)

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
        single = len(messages) == 0 or isinstance(messages[0], dict)
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

    def get_tokenizer(self):
        """The tokenizer, or None with skip_tokenizer_init."""
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        return SamplingParams()

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

    def reset_prefix_cache(self) -> None:
        """Forgets all cached prefixes; InvalidStateError while a request holds blocks."""
        self._engine.reset_prefix_cache()

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
        with self._lock:
            outputs = [self._new_output(p) for p in prompts]
            handles: list[int] = []
            try:
                self._engine.submit_all([p.request for p in prompts], handles)
                self._collect(dict(zip(handles, outputs)), _progress(len(prompts), use_tqdm))
            except BaseException:
                self._abandon({h for h, out in zip(handles, outputs) if not out.finished})
                raise
            return outputs

    def _new_output(self, prompt: Prompt) -> RequestOutput:
        self._next_id += 1
        ids = prompt.request.prompt_token_ids
        return RequestOutput(str(self._next_id - 1), prompt.text, ids, [CompletionOutput(0)], False)

    def _collect(self, running: dict[int, RequestOutput], progress) -> None:
        """Takes deltas until nothing runs. Waits on the engine's eventfd, where Ctrl-C is heard at once."""
        waiter = select.poll()
        waiter.register(self._engine.event_fd, select.POLLIN)
        texts: dict[int, list[str]] = {handle: [] for handle in running}
        with progress:
            while running:
                waiter.poll()
                deltas = self._engine.drain()
                if not deltas:
                    self._engine.check_health()
                for delta in deltas:
                    out = running.get(delta.request_id)
                    if out is None:  # of a batch that was abandoned
                        continue
                    texts[delta.request_id].append(delta.text)
                    if delta.finish_reason == "error":
                        self._engine.check_health()  # says why when the whole engine is dead
                        raise InternalError(f"request {out.request_id}: {delta.error}")
                    if _take(out, delta):
                        out.outputs[0].text = "".join(texts.pop(delta.request_id))
                        del running[delta.request_id]
                        progress.update(1)

    def _abandon(self, running: set[int]) -> None:
        """Aborts what runs and waits until it is gone, so that the next batch starts on an idle engine."""
        for handle in running:
            self._engine.abort(handle)
        try:
            while running:
                self._engine.check_health()
                deltas = self._engine.drain(100)
                running.difference_update(d.request_id for d in deltas if d.finish_reason is not None)
                stats = self._engine.stats()
                if not deltas and stats.running == stats.waiting == 0:
                    return  # the last news of some went down with the exception
        except FastLLMError:
            return  # the engine is dead: nothing runs


def _take(out: RequestOutput, delta) -> bool:
    """Adds a delta's ids and reasons; True when it is the last one."""
    completion = out.outputs[0]
    completion.token_ids.extend(delta.token_ids)
    completion.text_offsets.extend(delta.text_offsets)
    out.num_cached_tokens = delta.num_cached_tokens
    if delta.finish_reason is None:
        return False
    completion.finish_reason, completion.stop_reason = delta.finish_reason, delta.stop_reason
    out.metrics = delta.metrics
    out.finished = True
    return True


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
