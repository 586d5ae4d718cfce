"""What generation returns. Shapes as in vLLM; fields that this version has no value for are left out."""

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastllm_core._C import RequestDelta
from fastllm_core.logprobs import Entry, PositionLogprobs

if TYPE_CHECKING:
    from fastllm_core._C import RequestMetrics


class RequestOutputKind(enum.Enum):
    """What each output of a stream holds."""

    CUMULATIVE = 0  # everything so far
    DELTA = 1  # only what is new
    FINAL_ONLY = 2  # one output, at the end


@dataclass
class CompletionOutput:
    """One continuation of a prompt."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None  # sum over token_ids, when logprobs were asked for
    logprobs: list[PositionLogprobs] | None = None  # {token id: Logprob} for each of token_ids, when asked for
    finish_reason: str | None = None  # "stop", "length", "abort"; None while it runs
    stop_reason: int | str | None = None  # the stop token id or stop string; None for the end of sequence
    # By token: where its text begins in the text of the whole output, in characters; empty without text.
    text_offsets: list[int] = field(default_factory=list)

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """The state, or with RequestOutputKind.DELTA the news, of one request."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0  # prompt tokens whose KV came from the prefix cache
    metrics: "RequestMetrics | None" = None  # times of the request; None until it has finished
    # When asked for: {token id: Logprob} for each prompt token, None for the first.
    prompt_logprobs: list[PositionLogprobs | None] | None = None


def join_deltas(first, second):
    """Two consecutive pieces of one output's news as one. `first` may be None."""
    return second if first is None else join_all((first, second))


def join_all(pieces):
    """Consecutive pieces of one output's news as one, in time that grows with their length."""
    if len(pieces) == 1:
        return pieces[0]
    # Nothing but a sign to look at the stream may follow an end.
    last = next((p for p in reversed(pieces) if p.finish_reason is not None), pieces[-1])
    return Piece(
        [i for p in pieces for i in p.token_ids],
        "".join([p.text for p in pieces]),
        last.finish_reason,
        last.stop_reason,
        last.error,
        last.num_cached_tokens,
        last.metrics,
        last.error_code,
        index=last.index,
        logprobs=[entries for p in pieces for entries in p.logprobs],
        prompt_logprobs=[entries for p in pieces for entries in p.prompt_logprobs],
        text_offsets=[o for p in pieces for o in p.text_offsets],
    )


@dataclass
class Piece:
    """News of one output of a request, taken out of the engine's RequestDelta."""

    token_ids: list[int]
    text: str
    finish_reason: str | None
    stop_reason: int | str | None
    error: str
    num_cached_tokens: int
    metrics: "RequestMetrics | None" = None
    error_code: str = "ok"
    index: int = 0  # of the output
    logprobs: list[list[Entry]] = field(default_factory=list)
    prompt_logprobs: list[list[Entry]] = field(default_factory=list)
    text_offsets: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, delta) -> "Piece":
        if type(delta) is RequestDelta:
            return cls(*delta.fields())
        return cls(  # text that was made in Python: library_text.py
            delta.token_ids,
            delta.text,
            delta.finish_reason,
            delta.stop_reason,
            delta.error,
            delta.num_cached_tokens,
            delta.metrics,
            delta.error_code,
            index=delta.index,
            logprobs=delta.logprobs,
            prompt_logprobs=delta.prompt_logprobs,
            text_offsets=delta.text_offsets,
        )
