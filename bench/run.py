"""The front door of every benchmark:  python bench/run.py core|sampling|cpu|gpu|server [name filter]

Each figure is one line on standard output:
    RESULT {"name": ..., "value": ..., "unit": ..., "reference": ..., "ratio": ...}
`reference` is the same quantity measured on the thing compared with, in the same run, or null; `ratio` is above 1 when
ours is better. Everything else (what the reference is, warnings) goes to standard error. A benchmark is a C++ program
that prints such lines and takes the name filter as its only argument, or a Python function that yields Figures.
Exit status: 0, or 1 when a benchmark fails, 2 when nothing could be run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))
from figure import Figure, note  # noqa: E402

BUILD = Path(os.environ.get("FASTLLM_BENCH_BUILD", ROOT / "build" / "dev"))
KEYS = {"name", "value", "unit", "reference", "ratio"}


@dataclass
class Program:
    """A C++ benchmark program; `keep` takes the figures of this group by name."""

    path: str
    keep: Callable[[str], bool] = lambda name: True

    def missing(self) -> str | None:
        if (BUILD / self.path).is_file():
            return None
        return f"{BUILD / self.path}: not built (cmake --preset dev && cmake --build --preset dev)"

    def run(self, name_filter: str) -> int:
        """Prints the figures that match; returns how many."""
        command = [str(BUILD / self.path), *([name_filter] if name_filter else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{self.path} ended with status {done.returncode}")
        count = 0
        for line in done.stdout.splitlines():
            if not line.startswith("RESULT "):
                note(line)
                continue
            result = json.loads(line.removeprefix("RESULT "))
            if absent := KEYS - result.keys():
                raise RuntimeError(f"{self.path}: a RESULT line lacks {sorted(absent)}: {line}")
            if self.keep(result["name"]) and name_filter in result["name"]:
                print(line, flush=True)
                count += 1
        return count


@dataclass
class Function:
    """A Python benchmark: `names` are the figures it yields, `needs` says what this machine lacks for it."""

    names: list[str]
    measure: Callable[[str], Iterable[Figure]]  # of the name filter: what it does not match need not be measured
    needs: Callable[[], str | None]

    def missing(self) -> str | None:
        return self.needs()

    def run(self, name_filter: str) -> int:
        if not any(name_filter in name for name in self.names):
            return 0
        count = 0
        for figure in self.measure(name_filter):
            if name_filter in figure.name:
                print(figure.line(), flush=True)
                count += 1
        return count


@dataclass
class Group:
    """Benchmarks of one kind; `absent` says why there are none."""

    benchmarks: list[Program | Function] = field(default_factory=list)
    absent: str = ""


def groups() -> dict[str, Group]:
    import detokenize
    import sampling_torch
    from e2e import smollm2, start, steps

    def samples(name: str) -> bool:
        return name.startswith("ops.sample")

    ops = "bench/ops/ops_bench"
    return {
        "core": Group(
            [
                Program("bench/core/core_bench"),
                Program("bench/core/engine_bench"),
                Program(ops, lambda name: not samples(name)),
            ]
        ),
        "sampling": Group(
            [
                Function(
                    sampling_torch.NAMES, lambda _: sampling_torch.measure(BUILD), lambda: sampling_torch.missing(BUILD)
                ),
                Function(detokenize.NAMES, lambda _: detokenize.measure(BUILD), lambda: detokenize.missing(BUILD)),
                Program(ops, samples),
            ]
        ),
        "cpu": Group(
            [
                Function(smollm2.NAMES, smollm2.measure, smollm2.missing),
                Function(start.NAMES, start.measure, start.missing),
                Function(steps.NAMES, steps.measure, steps.missing),
            ]
        ),
        "gpu": Group([Program("tests/cuda/cuda_bench", "cuda.")]),  # of a build with FASTLLM_CUDA=ON
        "server": Group(absent="this version has no HTTP server, so there is nothing to measure"),
    }


def warn_of_load() -> None:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > 0.3 * cores:
        note(f"warning: load average is {load:.1f} on {cores} cores; figures of a busy machine mean little")


def main() -> int:
    known = groups()
    parser = argparse.ArgumentParser(description="Runs the benchmarks of one group.")
    parser.add_argument("group", help=", ".join(known))
    parser.add_argument("filter", nargs="?", default="", help="only figures whose name contains this")
    args = parser.parse_args()
    if args.group not in known:
        note(f"unknown group {args.group!r}; known groups: {', '.join(known)}")
        return 2
    group = known[args.group]
    if not group.benchmarks:
        note(f"group {args.group}: {group.absent}")
        return 2
    warn_of_load()
    count, failed = 0, False
    for benchmark in group.benchmarks:
        if reason := benchmark.missing():
            note(f"group {args.group}: missing: {reason}")
            continue
        try:
            count += benchmark.run(args.filter)
        except (RuntimeError, ValueError, OSError) as error:
            note(f"group {args.group}: failed: {error}")
            failed = True
    if count == 0 and not failed:
        note(f"group {args.group}: no figure" + (f" whose name contains {args.filter!r}" if args.filter else ""))
    return 1 if failed else 0 if count else 2


if __name__ == "__main__":
    sys.exit(main())
