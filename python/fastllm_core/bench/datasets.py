"""Requests to measure with: random, with a shared prefix, or from a JSONL file."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

from fastllm_core.errors import InvalidArgumentError

DATASETS = ("random", "shared-prefix", "jsonl")


@dataclass
class Sample:
    """One request: a text or token ids, and how many tokens to ask for."""

    prompt: str | list[int]
    output_len: int


def make_samples(args) -> list[Sample]:
    """args.num_prompts samples of args.dataset; the same seed gives the same samples."""
    rng = random.Random(args.seed)
    if args.dataset == "jsonl":
        return _from_file(Path(args.dataset_path), args)
    lo, hi = args.token_range
    if not 0 <= lo < hi:
        raise InvalidArgumentError(f"--token-range must be two ids, the first below the second, got {lo} {hi}")

    def ids(count: int) -> list[int]:
        return [rng.randrange(lo, hi) for _ in range(count)]

    prefix = min(args.prefix_len, args.input_len) if args.dataset == "shared-prefix" else 0
    head = ids(prefix)
    out = []
    for _ in range(args.num_prompts):
        length = max(prefix + 1, _spread(rng, args.input_len, args.range_ratio))
        out.append(Sample(head + ids(length - prefix), _spread(rng, args.output_len, args.range_ratio)))
    return out


def _spread(rng: random.Random, length: int, ratio: float) -> int:
    """A length within ratio of `length`, evenly."""
    return max(1, round(length * rng.uniform(1 - ratio, 1 + ratio)))


def _from_file(path: Path, args) -> list[Sample]:
    out = []
    with open(path, encoding="utf-8") as file:
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
                prompt, length = line["prompt"], int(line.get("output_len", args.output_len))
            except (ValueError, KeyError, TypeError) as e:
                raise InvalidArgumentError(f"{path.name}:{number}: needs an object with a prompt: {e}") from None
            out.append(Sample(prompt, length))
    if not out:
        raise InvalidArgumentError(f"{path.name} holds no prompt")
    return [out[n % len(out)] for n in range(args.num_prompts)]
