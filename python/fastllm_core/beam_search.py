"""Beam search over an engine's requests. Names, shapes and scores are vLLM's."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from fastllm_core._C import SamplingParams
from fastllm_core.errors import InvalidArgumentError


@dataclass
class BeamSearchParams:
    """How many beams are kept, and how far they go.

    A beam's score is its cumulative log probability divided by its length, the prompt included and the end of sequence
    not, to the power of length_penalty.
    """

    beam_width: int  # beams kept at each token, and sequences returned
    max_tokens: int
    ignore_eos: bool = False  # go on after the end of sequence
    temperature: float = 0.0  # of the log probabilities with logprobs_mode processed_*; raw ones do not depend on it
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False  # keep the end-of-sequence token in `tokens`

    def __post_init__(self):
        for name in ("beam_width", "max_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be int, got {type(value).__name__}")
            if value < 1:
                raise InvalidArgumentError(f"{name} must be at least 1, got {value}")
        SamplingParams(temperature=self.temperature)  # its limits
        if not abs(self.length_penalty) < float("inf"):
            raise InvalidArgumentError(f"length_penalty must be a finite number, got {self.length_penalty}")


@dataclass
class BeamSearchSequence:
    """One beam."""

    orig_prompt: object  # the prompt as it was given
    tokens: list[int]  # of prompt and output
    logprobs: list[dict] = field(default_factory=list)  # for each output token, what it was chosen from
    cum_logprob: float = 0.0
    text: str | None = None  # of `tokens`; None without a tokenizer
    finish_reason: str | None = None  # "stop", "length"
    stop_reason: int | str | None = None  # the end-of-sequence id


@dataclass
class BeamSearchOutput:
    """The best sequences of one prompt, best first."""

    sequences: list[BeamSearchSequence]


def step_params(params: BeamSearchParams) -> SamplingParams:
    """Of the requests that carry each beam on by one token. Twice as many candidates as beams: when half of them end
    their sequence, there are still enough to go on with."""
    return SamplingParams(
        max_tokens=1, temperature=params.temperature, logprobs=2 * params.beam_width, detokenize=False, ignore_eos=True
    )


def carry_on(prompt, tokens: list[int]) -> dict:
    """The prompt of a beam's next request: as the first one, with the beam's tokens."""
    given = {k: v for k, v in prompt.items() if k != "prompt"} if isinstance(prompt, dict) else {}
    return {**given, "prompt_token_ids": tokens}


class Beams:
    """The beams of one prompt. Each round, one request for each of live(); then advance() with what came back."""

    def __init__(
        self, prompt, prompt_ids: list[int], params: BeamSearchParams, eos_token_ids: Iterable[int], room: int
    ):
        """room: tokens that fit behind the prompt."""
        self._params = params
        self._eos = frozenset(() if params.ignore_eos else eos_token_ids)
        self._rounds_left = min(params.max_tokens, room)
        self._live = [BeamSearchSequence(prompt, list(prompt_ids))]
        self._completed: list[tuple[float, BeamSearchSequence]] = []

    def live(self) -> list[BeamSearchSequence]:
        """The beams that go on; none when the search is over."""
        return self._live if self._rounds_left > 0 else []

    def advance(self, positions: list[dict]) -> None:
        """positions: for each of live(), {token id: Logprob} of its next token."""
        self._rounds_left -= 1
        candidates = []
        for beam, position in zip(self._live, positions, strict=True):
            for token, logprob in position.items():
                if logprob.rank is not None and logprob.rank > 2 * self._params.beam_width:
                    continue  # the token that was drawn, which counts for nothing here
                total = beam.cum_logprob + logprob.logprob
                if token in self._eos:
                    self._complete(beam, position, token, total)
                else:
                    candidates.append((self._score(len(beam.tokens) + 1, total), beam, position, token, total))
        candidates.sort(key=lambda c: c[0], reverse=True)
        self._live = [
            BeamSearchSequence(beam.orig_prompt, [*beam.tokens, token], [*beam.logprobs, position], total)
            for _, beam, position, token, total in candidates[: self._params.beam_width]
        ]

    def output(self, tokenizer) -> BeamSearchOutput:
        """The best sequences, those that were cut at max_tokens included."""
        for beam in self._live:
            beam.finish_reason = "length"
            self._completed.append((self._score(len(beam.tokens), beam.cum_logprob), beam))
        self._completed.sort(key=lambda c: c[0], reverse=True)
        sequences = [beam for _, beam in self._completed[: self._params.beam_width]]
        for beam in sequences:
            beam.text = None if tokenizer is None else tokenizer.decode(beam.tokens, skip_special_tokens=False)
        return BeamSearchOutput(sequences)

    def _complete(self, beam: BeamSearchSequence, position: dict, token: int, total: float) -> None:
        tokens = [*beam.tokens, token] if self._params.include_stop_str_in_output else list(beam.tokens)
        done = BeamSearchSequence(beam.orig_prompt, tokens, [*beam.logprobs, position], total, None, "stop", token)
        self._completed.append((self._score(len(beam.tokens), total), done))

    def _score(self, length: int, cum_logprob: float) -> float:
        return cum_logprob / length**self._params.length_penalty


def new_beams(given, prompt, params: BeamSearchParams, info) -> Beams:
    """The search of a prompt as it was given, and made (inputs.Prompt); info: EngineInfo."""
    ids = prompt.request.prompt_token_ids
    room = min(info.max_model_len, (info.num_kv_blocks - 1) * info.block_size) - len(ids)
    return Beams(given, ids, params, info.eos_token_ids, room)
