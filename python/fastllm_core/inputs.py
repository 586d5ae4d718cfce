"""Prompts as users give them -> requests for the engine."""

from collections.abc import Sequence
from dataclasses import dataclass

from fastllm_core._C import ExtraKeys, GenerationRequest, SamplingParams
from fastllm_core.errors import FastLLMError, InvalidArgumentError

_PROMPT_KEYS = {"prompt", "prompt_token_ids", "cache_salt"}


@dataclass
class Prompt:
    """One prompt: its text when it was given as text, and its ids."""

    text: str | None
    request: GenerationRequest


@dataclass(frozen=True)
class Scheduling:
    """What a request asks of the scheduler; None leaves a limit to the engine's options."""

    priority: int = 0
    timeout_ms: int | None = None
    max_queue_time_ms: int | None = None
    data_parallel_rank: int | None = None  # the replica that must take it
    session_id: str = ""  # requests of one session go to one replica while its load allows


def is_single(prompts) -> bool:
    """True for one prompt; False for a list of prompts. A list of int is one prompt of token ids."""
    if isinstance(prompts, (str, dict)):
        return True
    if not isinstance(prompts, Sequence):
        raise TypeError(f"prompts must be a str, a dict or a list of them, got {type(prompts).__name__}")
    return len(prompts) > 0 and hasattr(prompts[0], "__index__")


def make_prompt(prompt, params: SamplingParams, tokenizer, scheduling: Scheduling = Scheduling()) -> Prompt:
    """A str, a list of token ids, {"prompt": str} or {"prompt_token_ids": ids}; a dict may also hold cache_salt."""
    text, ids, salt = None, None, ""
    if isinstance(prompt, dict):
        unknown = sorted(str(k) for k in set(prompt) - _PROMPT_KEYS)
        if unknown:
            known = ", ".join(sorted(_PROMPT_KEYS))
            raise InvalidArgumentError(f"unknown key {unknown[0]!r} in prompt; known: {known}")
        text, ids, salt = prompt.get("prompt"), prompt.get("prompt_token_ids"), prompt.get("cache_salt") or ""
        if text is None and ids is None:
            raise InvalidArgumentError("a prompt dict needs the key 'prompt' or 'prompt_token_ids'")
    elif isinstance(prompt, str):
        text = prompt
    else:
        ids = prompt
    if not isinstance(salt, str):
        raise TypeError(f"cache_salt must be str, got {type(salt).__name__}")
    if ids is None:
        if tokenizer is None:
            raise InvalidArgumentError("a text prompt needs a tokenizer, but skip_tokenizer_init was given")
        ids = tokenizer.encode(text)
    request = GenerationRequest(
        ids,
        _with_tokens(params, tokenizer),
        ExtraKeys(cache_salt=salt),
        priority=scheduling.priority,
        timeout_ms=scheduling.timeout_ms,
        max_queue_time_ms=scheduling.max_queue_time_ms,
        data_parallel_rank=scheduling.data_parallel_rank,
        session_id=scheduling.session_id,
    )
    return Prompt(text, request)


def _with_tokens(params: SamplingParams, tokenizer) -> SamplingParams:
    """The parameters with what only the tokenizer knows: bad words as tokens, and its side of truncation."""
    if params.truncate_prompt_tokens is not None and params.truncation_side is None and tokenizer is not None:
        params = params.clone()
        params.truncation_side = tokenizer.truncation_side
    if not params.bad_words:
        return params
    if tokenizer is None:
        raise InvalidArgumentError("bad_words need a tokenizer, but skip_tokenizer_init was given")
    params = params.clone()
    params.bad_words_token_ids = params.bad_words_token_ids + bad_word_tokens(params.bad_words, tokenizer)
    params.bad_words = []
    return params


def bad_word_tokens(words: Sequence[str], tokenizer) -> list[list[int]]:
    """The token sequences of words, each also as it is written after a space when that is a word of its own: with as
    many tokens, the first of them another (vLLM's rule)."""
    out = []
    for word in words:
        plain = tokenizer.encode(word.lstrip(), add_special_tokens=False)
        if not plain:
            raise InvalidArgumentError(f"bad_words must not be empty or blank, got {word!r}")
        spaced = tokenizer.encode(" " + word.lstrip(), add_special_tokens=False)
        out.append(plain)
        if spaced[0] != plain[0] and len(spaced) == len(plain):
            out.append(spaced)
    return out


def schedulings(count: int, priority, timeout_ms, max_queue_time_ms) -> list[Scheduling]:
    """One for each prompt. priority: an int, one per prompt, or None."""
    if priority is None or hasattr(priority, "__index__"):
        priority = [priority or 0] * count
    elif not isinstance(priority, Sequence) or isinstance(priority, (str, bytes)):
        raise TypeError(f"priority must be an int or a list of them, got {type(priority).__name__}")
    if len(priority) != count:
        raise InvalidArgumentError(f"{len(priority)} priorities for {count} prompts")
    return [Scheduling(p, timeout_ms, max_queue_time_ms) for p in priority]


def make_prompts(prompts: Sequence, params, tokenizer, validate, scheduling: list[Scheduling]) -> list[Prompt]:
    """All prompts of a batch, checked; an error names the index of the prompt that is wrong."""
    if isinstance(params, SamplingParams):
        params = [params] * len(prompts)
    elif not isinstance(params, Sequence):
        raise TypeError(f"sampling_params must be SamplingParams or a list of them, got {type(params).__name__}")
    if len(params) != len(prompts):
        raise InvalidArgumentError(f"{len(params)} sampling_params for {len(prompts)} prompts")
    out = []
    for n, (prompt, p, s) in enumerate(zip(prompts, params, scheduling, strict=True)):
        try:
            if not isinstance(p, SamplingParams):
                raise TypeError(f"sampling_params must be SamplingParams, got {type(p).__name__}")
            made = make_prompt(prompt, p, tokenizer, s)
            validate(made.request)
        except (FastLLMError, TypeError) as e:
            raise at_index(e, n) from e
        out.append(made)
    return out


def at_index(error: Exception, index: int) -> Exception:
    """The same error, saying which prompt of the batch it is about."""
    return type(error)(f"prompt {index}: {error}")
