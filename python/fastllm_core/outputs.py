"""What generation returns. Shapes as in vLLM; fields that this version has no value for are left out."""

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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


def join_deltas(first, second):
    """Two consecutive pieces of one request's news as one. `first` may be None."""
    if first is None:
        return second
    return Piece(
        first.token_ids + second.token_ids,
        first.text + second.text,
        second.finish_reason,
        second.stop_reason,
        second.error,
        second.num_cached_tokens,
        second.metrics,
        first.text_offsets + second.text_offsets,
    )


@dataclass
class Piece:
    """News of one request, taken out of the engine's RequestDelta."""

    token_ids: list[int]
    text: str
    finish_reason: str | None
    stop_reason: int | str | None
    error: str
    num_cached_tokens: int
    metrics: "RequestMetrics | None" = None
    text_offsets: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, delta) -> "Piece":
        return cls(
            delta.token_ids,
            delta.text,
            delta.finish_reason,
            delta.stop_reason,
            delta.error,
            delta.num_cached_tokens,
            delta.metrics,
            delta.text_offsets,
        )
