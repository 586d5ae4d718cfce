"""From the news of a request to what a stream yields."""

from fastllm_core.inputs import Prompt
from fastllm_core.logprobs import RequestLogprobs
from fastllm_core.outputs import CompletionOutput, Piece, RequestOutput, RequestOutputKind, join_deltas


class _Completion:
    """One output as it grows."""

    def __init__(self, params, kind: RequestOutputKind, tokenizer):
        self.finished = False
        self.logprobs = RequestLogprobs(params, tokenizer)
        self._kind = kind
        self._all: Piece | None = None

    def take(self, piece: Piece) -> CompletionOutput:
        self.finished = piece.finish_reason is not None
        logprobs = self.logprobs.take(piece)
        if self._kind is not RequestOutputKind.DELTA:
            self._all = piece = join_deltas(self._all, piece)
            logprobs = None if logprobs is None else list(self.logprobs.tokens)
        return CompletionOutput(
            piece.index,
            piece.text,
            piece.token_ids,
            self.logprobs.cumulative,
            logprobs,
            piece.finish_reason,
            piece.stop_reason,
            piece.text_offsets,
        )


class OutputState:
    """Makes the RequestOutputs of one request. take() what comes, then output(); as vLLM, an output of a stream holds
    those of the request's n outputs that have news, and one at the end holds all of them."""

    def __init__(self, request_id: str, prompt: Prompt, kind: RequestOutputKind, tokenizer):
        params = prompt.request.sampling_params
        self._request_id = request_id
        self._prompt = prompt
        self._ids = prompt.request.prompt_token_ids
        self._kind = kind
        self._completions = [_Completion(params, kind, tokenizer) for _ in range(params.n)]
        self._fresh: dict[int, CompletionOutput] = {}
        self._left = params.n
        self._told_prompt = False  # its logprobs
        self._num_cached_tokens = 0
        self._metrics = None

    @property
    def finished(self) -> bool:
        return self._left == 0

    def take(self, piece: Piece) -> None:
        """News of one output."""
        completion = self._completions[piece.index]
        fresh = completion.take(piece)
        if self._kind is RequestOutputKind.FINAL_ONLY and not completion.finished:
            return
        self._fresh[piece.index] = fresh
        if piece.index == 0:  # the others find the prompt of the first in the cache
            self._num_cached_tokens = piece.num_cached_tokens
        if completion.finished:
            self._left -= 1
            self._metrics = piece.metrics

    def output(self) -> RequestOutput | None:
        """What to yield now; None when there is nothing."""
        if not self._fresh or (self._kind is RequestOutputKind.FINAL_ONLY and not self.finished):
            return None
        outputs = [self._fresh[index] for index in sorted(self._fresh)]
        self._fresh = {}
        prompt_logprobs = self._completions[0].logprobs.prompt  # the only one that has them
        if self._kind is RequestOutputKind.DELTA and self._told_prompt:
            prompt_logprobs = None
        self._told_prompt = self._told_prompt or prompt_logprobs is not None
        return RequestOutput(
            self._request_id,
            self._prompt.text,
            self._ids,
            outputs,
            self.finished,
            self._num_cached_tokens,
            self._metrics if self.finished else None,
            prompt_logprobs,
        )
