"""The instances of attention and dense products that are compiled, each with what needs it.

    python cuda/instances/manifest.py check              the .cu files instantiate exactly these
    python cuda/instances/manifest.py ledger [BUILD_DIR] seconds and bytes of every object (compiles afresh)

FlashInfer's are in the ledger where FLASHINFER_DATA names the package's folder flashinfer/data.

An instance that no model here needs is not compiled. Adding a model with another head_dim means a line here, the
explicit instantiations in cuda/launch/attention_*_<dtype>.cu and an entry in cuda/launch/attention.cu.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "cuda" / "launch"
FLASHINFER = os.environ.get("FLASHINFER_DATA")
_FLASHINFER_INCLUDES = ["cccl/cub", "cccl/libcudacxx/include", "cccl/thrust", "include", "cutlass/include"]
_FLASHINFER_INCLUDES += ["cutlass/tools/util/include"]


@dataclass(frozen=True)
class Instance:
    # decode | prefill | flashinfer_decode | flashinfer_prefill; prefill holds a second kernel for soft caps where
    # kHasSoftcap says so
    kernel: str
    dtype: str  # bf16 | f16, or with kv8 behind: over a cache of fp8
    head_dim: int
    model: str


_MODELS = {
    64: "Llama-3.2-1B, Qwen2-0.5B, SmolLM2",
    96: "Phi-3-mini",
    128: "Llama-3.1, Qwen2, Qwen3, Mistral; two head tiles for Qwen3-235B and GLM-4",
    256: "Gemma",
}
_DTYPES = ("bf16", "f16", "bf16kv8", "f16kv8")
INSTANCES = [Instance(k, t, d, m) for k in ("decode", "prefill") for t in _DTYPES for d, m in _MODELS.items()]
# The second backend; its Hopper kernel has no head_dim 96.
INSTANCES += [
    Instance(k, "bf16", d, _MODELS[d]) for k in ("flashinfer_decode", "flashinfer_prefill") for d in (64, 128, 256)
]

# Tiles of dense_linear, (rows of the weight, rows of x): which rows of Llama-3.1-8B's products take it. Each is
# compiled twice, plain and gated.
DENSE = {
    (128, 32): "gate_up, down and o, 17 to 32 rows",
    (128, 64): "gate_up and down, 33 to 64",
    (128, 128): "gate_up and down, 65 to 128",
    (128, 256): "gate_up, 129 to 256",
    (256, 128): "gate_up, from 897 on",
}


def dense_instantiated() -> set[tuple[int, int]]:
    """Tiles that cuda/launch/dense_linear.cu launches."""
    text = (LAUNCH / "dense_linear.cu").read_text()
    return {(128 * int(atoms), int(tokens)) for atoms, tokens in re.findall(r"DenseShape<(\d), (\d+),", text)}


def instantiated() -> set[tuple[str, str, int]]:
    """(kernel, dtype, head_dim) of every explicit instantiation in cuda/launch."""
    found = set()
    for path in LAUNCH.glob("attention_*_*.cu"):
        _, kernel, dtype = path.stem.split("_")
        for head_dim in re.findall(r"^template void Launch\w+<\w+, (\d+)>", path.read_text(), re.MULTILINE):
            found.add((kernel, dtype, int(head_dim)))
    for path in LAUNCH.glob("flashinfer_*_*.cu"):
        kernel = path.stem.rsplit("_", 1)[0]
        for head_dim in re.findall(r"^template cudaError_t RunFlashInfer\w+<(\d+)>", path.read_text(), re.MULTILINE):
            found.add((kernel, "bf16", int(head_dim)))
    return found


def check() -> int:
    wanted = {(i.kernel, i.dtype, i.head_dim) for i in INSTANCES}
    found = instantiated()
    for extra in sorted(found - wanted):
        print(f"instantiated, but no model needs it: {extra}")
    for missing in sorted(wanted - found):
        print(f"in the manifest, but not instantiated: {missing}")
    for tile in sorted(dense_instantiated() ^ DENSE.keys()):
        print(f"dense_linear: {tile} is in the manifest or instantiated, not both")
    return int(found != wanted or dense_instantiated() != DENSE.keys())


def ledger(build: Path) -> int:
    build.mkdir(parents=True, exist_ok=True)
    total_seconds, total_bytes = 0.0, 0
    print("| file | seconds | object bytes |\n|---|---|---|")
    for source in sorted(LAUNCH.glob("*.cu")):
        target = build / (source.stem + ".o")
        command = ["nvcc", "-O3", "-DNDEBUG", "-DFASTLLM_SM90A=1", "-gencode=arch=compute_90a,code=sm_90a"]
        command += ["-I.", "-Icpp", "-Icpp/include", "-Xcompiler=-fPIC"]
        if not source.stem.startswith("flashinfer_"):
            command.append("-std=c++20")
        elif FLASHINFER:
            command += ["-std=c++17", "--expt-relaxed-constexpr", "-w", "-DFASTLLM_FLASHINFER=1"]
            command += ["-DFLASHINFER_ENABLE_BF16", "-DFLASHINFER_ENABLE_F16"]
            command += [f"-I{FLASHINFER}/{folder}" for folder in _FLASHINFER_INCLUDES]
        else:
            continue
        start = time.monotonic()
        subprocess.run([*command, "-c", str(source), "-o", str(target)], cwd=ROOT, check=True)
        seconds, size = time.monotonic() - start, target.stat().st_size
        total_seconds, total_bytes = total_seconds + seconds, total_bytes + size
        print(f"| {source.name} | {seconds:.1f} | {size:,} |")
    print(f"| all | {total_seconds:.1f} | {total_bytes:,} |")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["ledger"]:
        sys.exit(ledger(Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "build" / "ledger"))
    sys.exit(check())
