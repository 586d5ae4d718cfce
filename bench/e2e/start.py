"""From the start of a process to its first output: `fastllm generate`, the C++ host, llama-cpp-python (low-level API).

SmolLM2-135M as shipped, file cache warm, two threads, a prompt of a few tokens. The clock runs from before the process
is made until the first byte of its standard output. Contenders take turns, the first turn does not count.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from e2e.peers import HERE, PEERS_PYTHON, ROOT, ending, has, llamacpp_options
from e2e.smollm2 import gguf_path, missing
from figure import Figure, note

ROUNDS = 7
PROMPT = "The capital of France is"
PROMPT_IDS = [504, 3575, 282, 4649, 314]
BUILD = Path(os.environ.get("FASTLLM_BENCH_BUILD", ROOT / "build" / "dev"))
HOST = BUILD / "cpp" / "tools" / "example_host"
# What worker.py of the peer is told on its standard input; its answer is one line.
ORDER = '{"batch": 1, "prompt_tokens": 16, "new_tokens": 2}\n'
PEER = "llama-cpp-python"
NAMES = ["cpu/start/python", "cpu/start/host"]


def commands() -> dict[str, list[str]]:
    """Of what this machine has."""
    model = str(gguf_path())
    generate = ["--model", model, "--max-tokens", "4", "--temperature", "0", PROMPT]
    found = {"cpu/start/python": [sys.executable, "-m", "fastllm_core", "generate", *generate]}
    if HOST.is_file():
        found["cpu/start/host"] = [str(HOST), model, "4", *map(str, PROMPT_IDS)]
    else:
        note(f"{HOST}: not built (cmake --build --preset dev --target example_host)")
    if has("llamacpp"):
        found[PEER] = [str(PEERS_PYTHON), str(HERE / "worker.py"), "llamacpp", model, "2"]
        found[PEER].append(llamacpp_options(gguf_path()))
    else:
        note("peer llamacpp is not installed (bench/e2e/peers.py says how)")
    return found


def seconds_to_first_byte(command: list[str]) -> float:
    start = time.perf_counter()
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=none, text=True) as process:
        process.stdin.write(ORDER)  # the others do not read it
        process.stdin.close()
        first = process.stdout.read(1)
        seconds = time.perf_counter() - start
        process.stdout.read()
    if not first or process.returncode != 0:
        raise RuntimeError(f"{command[0]} {ending(process.returncode)} after {len(first)} characters")
    return seconds


def measure(name_filter: str = "") -> Iterator[Figure]:
    if not any(name_filter in name for name in NAMES):
        return
    found = commands()
    times: dict[str, list[float]] = {name: [] for name in found}
    for turn in range(ROUNDS + 1):
        for name, command in list(found.items()):
            try:
                taken = seconds_to_first_byte(command)
            except RuntimeError as error:
                if name != PEER:
                    raise
                note(f"  left out: {error}")
                del found[PEER], times[PEER]
                continue
            if turn > 0:
                times[name].append(taken)
    for name, taken in times.items():
        note(f"  {name}: " + ", ".join(f"{s:.3f}" for s in taken))
    middle = {name: statistics.median(taken) for name, taken in times.items()}
    for name in NAMES:
        if name in middle:
            yield Figure(name, middle[name], "s", middle.get(PEER), higher_is_better=False)


__all__ = ["NAMES", "measure", "missing"]
