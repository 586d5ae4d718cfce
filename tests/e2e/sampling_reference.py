"""What sampling parameters do to logits, in float64 and as plainly as can be: the reference of the whole-path tests."""

import numpy as np


def penalize(logits, prompt: list[int], output: list[int], params) -> np.ndarray:
    """Logits of the next token after everything that SamplingParams asks to be done to them, before temperature."""
    x = np.array(logits, dtype=np.float64)
    if params.allowed_token_ids is not None:
        kept = np.full_like(x, -np.inf)
        kept[params.allowed_token_ids] = x[params.allowed_token_ids]
        x = kept
    for word in params.bad_words_token_ids:
        if word[:-1] == output[len(output) - len(word) + 1 :] or len(word) == 1:
            x[word[-1]] = -np.inf
    for token, bias in params.logit_bias.items():
        x[token] += bias
    for token in set(prompt) | set(output):
        factor = params.repetition_penalty
        x[token] = x[token] / factor if x[token] > 0 else x[token] * factor
    for token in set(output):
        x[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    return x


def dry(logits, history: list[int], params, breakers: set[int]) -> np.ndarray:
    """DRY by its definition, quadratic."""
    x = np.array(logits, dtype=np.float64)
    if params.dry_range > 0:
        history = history[-params.dry_range :]
    longest: dict[int, int] = {}
    for end in range(len(history) - 1):
        length = 0
        while length <= end and history[end - length] == history[-1 - length] and history[end - length] not in breakers:
            length += 1
        token = history[end + 1]
        if token not in breakers:
            longest[token] = max(longest.get(token, 0), length)
    for token, length in longest.items():
        if length >= max(1, params.dry_allowed_length):
            x[token] -= params.dry_multiplier * params.dry_base ** (length - params.dry_allowed_length)
    return x


def log_softmax(x) -> np.ndarray:
    x = np.asarray(x, dtype=np.float64)
    shifted = x - x.max()
    return shifted - np.log(np.exp(shifted).sum())


def row(position, size: int) -> np.ndarray:
    """{token: Logprob} of the whole vocabulary as an array."""
    out = np.full(size, np.nan)
    for token, entry in position.items():
        out[token] = entry.logprob
    assert not np.isnan(out).any()
    return out
