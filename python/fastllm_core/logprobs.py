"""Log probabilities in vLLM's shapes, made from the engine's tuples."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Entry = tuple[int, float, int | None]  # token id, logprob, rank: as RequestDelta has them


@dataclass(slots=True)
class Logprob:
    """One token at one position. rank 1 is the likeliest; None where it is not known (logprob_token_ids)."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PositionLogprobs = dict[int, Logprob]  # token id -> Logprob, the token that is there first


def position(entries: Iterable[Entry], tokenizer) -> PositionLogprobs:
    """One position. decoded_token is the token's own text, None without a tokenizer."""
    text = tokenizer.token_text if tokenizer is not None else lambda token: None
    return {token: Logprob(logprob, rank, text(token)) for token, logprob, rank in entries}


def positions(entries: Sequence[Sequence[Entry]], tokenizer) -> list[PositionLogprobs]:
    return [position(e, tokenizer) for e in entries]


def prompt_positions(entries: Sequence[Sequence[Entry]], tokenizer) -> list[PositionLogprobs | None]:
    """As positions(); nothing comes before the first prompt token, so that its entry is None."""
    return [position(e, tokenizer) if e else None for e in entries]


class RequestLogprobs:
    """The logprobs of one request, as its news come in. What was not asked for stays None."""

    def __init__(self, params, tokenizer):
        asked = params.logprobs is not None or params.logprob_token_ids is not None
        self.tokens: list[PositionLogprobs] | None = [] if asked else None
        self.cumulative: float | None = 0.0 if asked else None
        self.prompt: list[PositionLogprobs | None] | None = None
        self._tokenizer = tokenizer
        self._prompt_asked = params.prompt_logprobs is not None

    def take(self, news) -> list[PositionLogprobs] | None:
        """Adds the logprobs of a RequestDelta or Piece; returns those of its tokens."""
        if self._prompt_asked and self.prompt is None and news.prompt_logprobs:
            self.prompt = prompt_positions(news.prompt_logprobs, self._tokenizer)
        if self.tokens is None:
            return None
        fresh = positions(news.logprobs, self._tokenizer)
        self.tokens += fresh
        self.cumulative += sum(entries[0][1] for entries in news.logprobs)
        return fresh
