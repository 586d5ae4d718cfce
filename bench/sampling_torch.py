"""Logits of 256 rows to tokens and logprobs: bench/ops/sampling_bench against the same in torch ops.

Both take turns, two threads each, and the best call of all turns counts: other work on the machine can only slow a
call. The torch side has what it needs ready (dense counts of tokens, index tensors); only the work of a step is timed.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from figure import Figure, note

ROWS, THREADS, TURNS, DEVIATION = 256, 2, 3, 4.0
VOCABS = (49152, 152064)
CASES = ("greedy", "top_p", "penalties_bias_top_k", "logprobs_5")
NAMES = [f"sampling/{case}.{ROWS}x{vocab}" for vocab in VOCABS for case in CASES]


def missing(build: Path) -> str | None:
    if not _program(build).is_file():
        return f"{_program(build)}: not built (cmake --preset dev && cmake --build --preset dev)"
    return None if importlib.util.find_spec("torch") else "the torch package, to compare with"


def _program(build: Path) -> Path:
    return build / "bench" / "ops" / "sampling_bench"


def measure(build: Path) -> Iterator[Figure]:
    ours: dict[str, float] = {}
    theirs: dict[str, float] = {}
    for vocab in VOCABS:
        torch_cases = _torch_cases(vocab)
        for turn in range(TURNS):
            for name, value in _ours(build, vocab).items():
                ours[name] = min(value, ours.get(name, value))
            for case, call in torch_cases.items():
                value = _best_of(1 if case == "top_p" else 5, call)
                name = f"sampling/{case}.{ROWS}x{vocab}"
                theirs[name] = min(value, theirs.get(name, value))
            note(f"vocabulary {vocab}: turn {turn + 1} of {TURNS}")
    for name in NAMES:
        yield Figure(name, ours[name], "ms", theirs[name], higher_is_better=False)


def _ours(build: Path, vocab: int) -> dict[str, float]:
    command = [str(_program(build)), f".{ROWS}x{vocab}", str(THREADS)]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    results = [json.loads(line.removeprefix("RESULT ")) for line in lines if line.startswith("RESULT ")]
    return {result["name"]: result["value"] for result in results}


def _best_of(calls: int, call: Callable[[], object]) -> float:
    """Milliseconds of the best call."""
    best = float("inf")
    for _ in range(calls):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best * 1000


def _torch_cases(vocab: int) -> dict[str, Callable[[], object]]:
    import torch

    torch.set_num_threads(THREADS)
    torch.manual_seed(vocab)
    logits = torch.randn(ROWS, vocab) * DEVIATION
    rows = torch.arange(ROWS).unsqueeze(1)
    seen_ids = torch.stack([torch.randperm(vocab)[:600] for _ in range(ROWS)])
    outputs = torch.zeros(ROWS, vocab)
    outputs[rows, seen_ids[:, :200]] = 2.0
    seen = torch.zeros(ROWS, vocab, dtype=torch.bool)
    seen[rows, seen_ids] = True
    biased = seen_ids[:, ::30]
    tokens = logits.argmax(-1, keepdim=True)

    def race(probs: torch.Tensor) -> torch.Tensor:
        return (probs / torch.empty_like(probs).exponential_()).argmax(-1, keepdim=True)

    def top_p() -> torch.Tensor:
        ordered, index = (logits / 0.8).sort(dim=-1)
        left_out = ordered.softmax(-1).cumsum(-1) <= 1 - 0.9
        left_out[:, -1] = False
        ordered.masked_fill_(left_out, float("-inf"))
        return race(ordered.scatter(-1, index, ordered).softmax(-1))

    def penalties() -> torch.Tensor:
        x = torch.where(seen, torch.where(logits > 0, logits / 1.1, logits * 1.1), logits)
        x -= 0.3 * outputs
        x -= 0.2 * (outputs > 0)
        x[rows, biased] += 1.5
        values, index = x.topk(50, dim=-1)
        return index.gather(-1, race((values / 0.8).softmax(-1)))

    def logprobs() -> tuple[torch.Tensor, ...]:
        x = logits.log_softmax(-1)
        values, index = x.topk(5, dim=-1)
        chosen = x.gather(-1, tokens)
        return values, index, chosen, (x > chosen).sum(-1) + 1

    calls = (lambda: logits.argmax(-1), top_p, penalties, logprobs)
    return dict(zip(CASES, calls, strict=True))
