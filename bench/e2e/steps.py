"""Where a decode step of SmolLM2-135M spends its time, by part, for one stream and for 64 (bench/ops/step_bench.cc)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from e2e.peers import ROOT
from e2e.smollm2 import missing as missing_packages
from e2e.smollm2 import weights
from figure import Figure, note

PROGRAM = Path(os.environ.get("FASTLLM_BENCH_BUILD", ROOT / "build" / "dev")) / "bench" / "ops" / "step_bench"
KINDS = {"q4_1": "Q4_1", "q8_0": "Q8_0"}
PARTS = ["linear", "head", "attention", "rope_kv_write", "norm", "silu_mul", "sampling", "rest"]
NAMES = [f"cpu/step{n}/{kind}/{part}" for n in (1, 64) for kind in KINDS for part in [*PARTS, "scheduling", "step"]]


def missing() -> str | None:
    return missing_packages() or (None if PROGRAM.is_file() else f"{PROGRAM}: not built")


def measure(name_filter: str = "") -> Iterator[Figure]:
    for kind, stored in KINDS.items():
        if not any(name_filter in name for name in NAMES if f"/{kind}/" in name):
            continue
        note(f"cpu/step, {kind}: streams, part, us of a step, share")
        done = subprocess.run([str(PROGRAM), str(weights(stored))], stdout=subprocess.PIPE, text=True, check=True)
        for line in done.stdout.splitlines():
            fields = json.loads(line.removeprefix("RESULT "))
            streams, part = fields["name"].removeprefix("cpu/").split("/")
            yield Figure(f"cpu/{streams}/{kind}/{part}", fields["value"], fields["unit"], higher_is_better=False)
