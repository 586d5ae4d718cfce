"""Where the steps of a mixed run on a GPU spend their time.

gpu_steps.py MODEL [--requests 512] [--max-seqs 256] [--tokens 8192] [--curve]

MODEL is a folder with config.json; weights are dummies. 512 requests of 64 to 1024 tokens, 64 to 512 more each, all at
once (the mixed run of offline.py), under torch's profiler. Prints one line for each kind of step (which attention
kernels it has, and its time on the device): how many, milliseconds, how much of it nothing runs, and the milliseconds
of each kind of kernel; then the same for all, and the dense products by the kernel's name. --curve also times prompts
of 64 to 2304 tokens, one at a time: what a step of so many tokens takes.
"""

import argparse
import bisect
import collections
import json
import pathlib
import random
import time
from dataclasses import dataclass, field

# Part of a kernel's name -> what it is called here; the first that fits.
KINDS = {
    "PrefillKernel": "attention, prefill",
    "DecodeKernel": "attention, decode",
    "RmsNorm": "norm",
    "SiluMul": "silu_mul",
    "Rope": "rope",
    "FeedTokens": "feed",
    "KeepTokens": "keep",
    "CopyRows": "embedding, gather",
    "Sample": "sampling",
    "Memcpy": "copy",
    "Memset": "zero",
    "Skinny": "product, ours",
    "gemm": "product",
    "nvjet": "product",
    "cutlass": "product",
    "splitK": "product, sums",
}
EDGES = (5, 8, 12, 16, 24, 60)  # milliseconds


def kind_of(name: str) -> str:
    for part, kind in KINDS.items():
        if part.lower() in name.lower():
            return kind
    return name[:40]


@dataclass(frozen=True)
class Event:
    """One kernel or copy, in nanoseconds."""

    start: int
    end: int
    name: str


@dataclass
class Group:
    """Steps of one kind, in milliseconds."""

    steps: int = 0
    span: float = 0.0
    idle: float = 0.0  # within steps
    before: float = 0.0  # between a step and the one before it
    kernels: dict[str, float] = field(default_factory=lambda: collections.defaultdict(float))


def steps_of(events: list[Event]) -> list[list[Event]]:
    """Each step begins with the kernel that feeds its ids; what comes before the first is left out."""
    steps: list[list[Event]] = []
    for event in sorted(events, key=lambda e: e.start):
        if kind_of(event.name) == "feed":
            steps.append([])
        if steps:
            steps[-1].append(event)
    return steps


def name_of(step: list[Event]) -> str:
    kinds = {kind_of(e.name) for e in step}
    prefill, decode = "attention, prefill" in kinds, "attention, decode" in kinds
    what = "mixed" if prefill and decode else "prefill" if prefill else "decode"
    span = (max(e.end for e in step) - step[0].start) / 1e6
    at = bisect.bisect_right(EDGES, span)
    low, high = (0, *EDGES)[at], (*EDGES, None)[at]
    return f"{what} {low} to {high}" if high is not None else f"{what} from {low}"


def grouped(steps: list[list[Event]]) -> dict[str, Group]:
    groups: dict[str, Group] = collections.defaultdict(Group)
    last = None
    for step in steps:
        group = groups[name_of(step)]
        begin, at, idle = step[0].start, step[0].start, 0
        for e in step:
            idle += max(0, e.start - at)
            at = max(at, e.end)
            group.kernels[kind_of(e.name)] += (e.end - e.start) / 1e6
        group.steps += 1
        group.span += (at - begin) / 1e6
        group.idle += idle / 1e6
        group.before += max(0, begin - last) / 1e6 if last is not None else 0.0
        last = at
    return dict(groups)


def report(events: list[Event]) -> list[str]:
    steps = steps_of(events)
    groups = grouped(steps)
    lines = []
    for name, g in sorted(groups.items()):
        parts = sorted(g.kernels.items(), key=lambda p: -p[1])
        lines.append(
            f"{name} ms: {g.steps} steps, {g.span:.0f} ms, each {g.span / g.steps:.2f}, idle {g.idle / g.steps:.3f}, "
            f"before {g.before / g.steps:.3f}; " + ", ".join(f"{k} {v / g.steps:.3f}" for k, v in parts)
        )
    total: dict[str, float] = collections.defaultdict(float)
    products: dict[str, list[float]] = collections.defaultdict(list)
    for step in steps:
        for e in step:
            total[kind_of(e.name)] += (e.end - e.start) / 1e6
            if kind_of(e.name).startswith("product"):
                products[e.name[:80]].append((e.end - e.start) / 1e3)
    total["idle"] = sum(g.idle for g in groups.values())
    total["between"] = sum(g.before for g in groups.values())
    lines.append("all, ms: " + ", ".join(f"{k} {v:.0f}" for k, v in sorted(total.items(), key=lambda p: -p[1])))
    for name, us in sorted(products.items(), key=lambda p: -sum(p[1]))[:20]:
        lines.append(f"{name}: {len(us)} x {sum(us) / len(us):.1f} us = {sum(us) / 1e3:.0f} ms")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--max-seqs", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--curve", action="store_true")
    args = parser.parse_args()

    import torch
    from torch.profiler import ProfilerActivity, profile

    from fastllm_core import LLM, SamplingParams

    vocab = json.loads((args.model / "config.json").read_text())["vocab_size"]
    rng, sizes = random.Random(1), random.Random(7)

    def prompt(n: int) -> dict:
        return {"prompt_token_ids": [rng.randrange(10, vocab - 10) for _ in range(n)]}

    def greedy(n: int) -> SamplingParams:
        return SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True, detokenize=False)

    lengths = [(sizes.randint(64, 1024), sizes.randint(64, 512)) for _ in range(args.requests)]
    with LLM(
        model=str(args.model),
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="bfloat16",
        max_model_len=4096,
        max_num_seqs=args.max_seqs,
        max_num_batched_tokens=args.tokens,
    ) as llm:

        def seconds(prompts: list[dict], params) -> float:
            begin = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            return time.perf_counter() - begin

        seconds([prompt(128) for _ in range(4)], greedy(8))
        prompts = [prompt(n) for n, _ in lengths]
        with profile(activities=[ProfilerActivity.CUDA]) as run:
            print(f"mixed, with the profiler: {seconds(prompts, [greedy(n) for _, n in lengths]):.2f} s")
        events = [
            Event(e.start_ns(), e.start_ns() + e.duration_ns(), e.name())
            for e in run.profiler.kineto_results.events()
            if e.device_type() == torch.autograd.DeviceType.CUDA
        ]
        print("\n".join(report(events)))
        for n in [*range(64, 1281, 64), *range(1408, 2305, 128)] if args.curve else []:
            print(f"prompt of {n}: {1e3 * min(seconds([prompt(n)], greedy(1)) for _ in range(4)):.2f} ms")


if __name__ == "__main__":
    main()
