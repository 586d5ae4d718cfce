"""Workers of our engine and of its peers, and rounds in which they take turns.

Peers live in an environment of their own, so that their packages do not meet ours:
    python -m venv build/peers
    CMAKE_ARGS="-DGGML_NATIVE=ON -DCMAKE_BUILD_TYPE=Release" build/peers/bin/pip install llama-cpp-python  # compiles
    build/peers/bin/pip install openvino-genai
What is not there is left out and named; transformers comes from the tests' environment.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from figure import note

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PEERS_PYTHON = ROOT / "build" / "peers" / "bin" / "python"
MODULES = {"openvino": "openvino_genai", "llamacpp": "llama_cpp", "transformers": "transformers"}


@functools.cache
def has(engine: str) -> bool:
    """Whether the engine's package is installed where its worker looks for it."""
    if engine in ("fastllm", "transformers"):
        return importlib.util.find_spec(MODULES.get(engine, "fastllm_core")) is not None
    if not PEERS_PYTHON.is_file():
        return False
    probe = [str(PEERS_PYTHON), "-c", f"import {MODULES[engine]}"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@dataclass(frozen=True)
class Contender:
    """An engine with a model; `label` is how notes call it."""

    engine: str
    model: Path
    label: str
    options: str = "{}"


class Worker:
    """One contender in a process of its own; answers an order per line of JSON."""

    def __init__(self, contender: Contender, threads: int):
        self.label = contender.label
        python = str(PEERS_PYTHON) if contender.engine in ("openvino", "llamacpp") else sys.executable
        arguments = [contender.engine, str(contender.model), str(threads), contender.options]
        command = [python, str(HERE / "worker.py"), *arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def seconds(self, batch: int, prompt_tokens: int, new_tokens: int) -> float:
        order = {"batch": batch, "prompt_tokens": prompt_tokens, "new_tokens": new_tokens}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)["seconds"]
        raise RuntimeError(f"the worker of {self.label} ended with status {self.process.wait()}")

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=60)


def medians(contenders: list[Contender], threads: int, rounds: int, measure) -> dict[str, float]:
    """label -> median of measure(worker) over rounds in which the contenders take turns, after one round unmeasured."""
    workers = [Worker(c, threads) for c in contenders]
    values: dict[str, list[float]] = {w.label: [] for w in workers}
    try:
        for turn in range(rounds + 1):
            for worker in workers:
                value = measure(worker)
                if turn > 0:
                    values[worker.label].append(value)
    finally:
        for worker in workers:
            worker.close()
    for label, seen in values.items():
        note(f"  {label}: " + ", ".join(f"{v:.1f}" for v in seen))
    return {label: statistics.median(seen) for label, seen in values.items()}
