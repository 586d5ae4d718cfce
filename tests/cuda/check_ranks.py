"""Two tensor ranks on two GPUs against one GPU and the CPU: logits and tokens of tiny re-drawn models, and refusals.

Needs two GPUs, torch, transformers and cupy; not a pytest file. Exit status 0 when all checks pass.

    python tests/cuda/check_ranks.py [OUT]
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from pathlib import Path

import check_engine as engine
import numpy as np


def check_rank_logits(case: str, folder: Path, ids: list[int]) -> None:
    from fastllm_core._C._core_testing import LogitProbe

    cpu = LogitProbe(str(folder)).logits(ids, len(ids))
    for dtype in ("float32", "bfloat16"):
        for chunk in (len(ids), 37, 1):
            got = LogitProbe(str(folder), device="cuda", dtype=dtype, tensor_parallel_size=2).logits(ids[:70], chunk)
            error = float(np.linalg.norm(got - cpu[:70]) / np.linalg.norm(cpu[:70]))
            engine.check(
                f"{case}: two ranks, {dtype}, chunks of {chunk}", error <= engine.LIMITS[dtype], f"relative {error:.2e}"
            )


def check_long_prompts(case: str, folder: Path) -> None:
    """Steps of 2048 rows and more are computed in two pieces, even ones and others."""
    from fastllm_core._C._core_testing import LogitProbe

    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    ids = np.random.default_rng(5).integers(3, engine.VOCAB, 3900).tolist()
    one = LogitProbe(str(folder), device="cuda", dtype="float32").logits(ids, len(ids))
    for dtype in ("float32", "bfloat16"):
        probe = LogitProbe(str(folder), device="cuda", dtype=dtype, tensor_parallel_size=2)
        for chunk in (3900, 2049, 2048, 700):
            got = probe.logits(ids, chunk)
            error = float(np.linalg.norm(got - one) / np.linalg.norm(one))
            engine.check(
                f"{case}: two ranks, {dtype}, a prompt of 3900 in chunks of {chunk}",
                error <= engine.LIMITS[dtype],
                f"relative {error:.2e}",
            )


def check_near_ties(what: str, folder: Path, one: list[list[int]], two: list[list[int]]) -> None:
    """Sums of two halves are others in their last bits: tokens may part where two logits are as near as that.

    The logits are the CPU's in float32; in bfloat16 they are 0.014 off, of their norm.
    """
    from fastllm_core._C._core_testing import LogitProbe

    probe = LogitProbe(str(folder))
    worst, parted = 0.0, 0
    for prompt, a, b in zip(engine.prompts(len(one)), one, two):
        at = next((i for i in range(len(a)) if a[i] != b[i]), None)
        if at is None:
            continue
        ids = prompt["prompt_token_ids"] + a[:at]
        logits = probe.logits(ids, len(ids))[-1]
        parted += 1
        worst = max(worst, abs(float(logits[a[at]] - logits[b[at]])) / float(np.sqrt(np.mean(logits**2))))
    engine.check(
        what, worst <= 0.1, f"{parted} of {len(one)} part, where logits are up to {worst:.3f} of their size apart"
    )


def check_rank_tokens(case: str, folder: Path) -> None:
    from fastllm_core import SamplingParams

    common = {"max_tokens": 40, "ignore_eos": True, "detokenize": False}
    greedy = SamplingParams(temperature=0.0, **common)
    drawn = SamplingParams(temperature=0.9, top_k=40, top_p=0.95, seed=11, **common)
    gpu = {"device": "cuda", "kv_cache_memory_bytes": 256 << 20, "distributed_timeout_seconds": 20}
    one = engine.generate(folder, greedy, dtype="float32", **gpu)
    for name, options in {"graphs": {}, "eager": {"enforce_eager": True}}.items():
        two = engine.generate(folder, greedy, dtype="float32", tensor_parallel_size=2, **gpu, **options)
        same = sum(a == b for a, b in zip(one, two))
        engine.check(f"{case}: tokens of two ranks in float32, {name}", same == len(one), f"{same} of {len(one)} equal")
    one = engine.generate(folder, greedy, dtype="bfloat16", **gpu)
    for name, options in {"graphs": {}, "synchronous": {"async_scheduling": False}}.items():
        two = engine.generate(folder, greedy, dtype="bfloat16", tensor_parallel_size=2, **gpu, **options)
        check_near_ties(f"{case}: tokens of two ranks in bfloat16, {name}", folder, one, two)
    one = engine.generate(folder, drawn, dtype="float32", **gpu)
    two = engine.generate(folder, drawn, dtype="float32", tensor_parallel_size=2, **gpu)
    same = sum(a == b for a, b in zip(one, two))
    engine.check(f"{case}: drawn tokens of two ranks in float32", same >= len(one) - 1, f"{same} of {len(one)} equal")


def check_rank_refusals(folder: Path) -> None:
    from fastllm_core import LLM

    for options, words in [
        ({"tensor_parallel_size": 4}, "tensor_parallel_size is 4"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size is 2"),
        ({"tensor_parallel_size": 2, "distributed_executor_backend": "processes"}, "ranks are threads"),
    ]:
        try:
            LLM(str(folder), skip_tokenizer_init=True, device="cuda", **options)
            message = "no error"
        except Exception as e:
            message = str(e)
        engine.check(f"refusal of {options}", words in message, message[:200])


SPIN = r"""extern "C" __global__ void spin(long long ns) {
  long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - begin < ns);
}"""


def check_rank_hang(folder: Path) -> None:
    """GPU 1 has no room for kernels for 15 s, as if it hung: the engine must fail with the name of its rank before."""
    import cupy

    from fastllm_core import LLM, SamplingParams

    with cupy.cuda.Device(1):
        stream = cupy.cuda.Stream(non_blocking=True)
        spin = cupy.RawKernel(SPIN, "spin")
        spin((1,), (1,), (1000,), stream=stream)  # compiled and loaded
        stream.synchronize()
    many = SamplingParams(temperature=0.0, max_tokens=900, ignore_eos=True, detokenize=False)
    caught: list[tuple[float, str]] = []

    def run(llm) -> None:
        try:
            llm.generate(engine.prompts(4000), many, use_tqdm=False)
            caught.append((time.monotonic(), "no error"))
        except Exception as e:
            caught.append((time.monotonic(), str(e)))

    options = {"dtype": "bfloat16", "kv_cache_memory_bytes": 2 << 30, "tensor_parallel_size": 2}
    with LLM(
        str(folder),
        skip_tokenizer_init=True,
        device="cuda",
        max_model_len=1024,
        distributed_timeout_seconds=3,
        **options,
    ) as llm:
        thread = threading.Thread(target=run, args=(llm,))
        thread.start()
        time.sleep(0.5)
        begin = time.monotonic()
        with cupy.cuda.Device(1):
            spin((264,), (1024,), (15_000_000_000,), stream=stream)
        thread.join(30)
        seconds = caught[0][0] - begin if caught else 30.0
        message = caught[0][1] if caught else "nothing came"
    named = "rank 1 (tp 1, pp 0) did not finish a step on its device within 3000 ms" in message
    engine.check("a GPU that hangs is named", named and seconds < 8, f"after {seconds:.1f} s: {message[:200]}")
    with cupy.cuda.Device(1):
        stream.synchronize()


def main(argv: list[str]) -> int:
    out = Path(argv[1]) if len(argv) > 1 else Path(tempfile.mkdtemp())
    for case in ("llama3-d128", "qwen3-d128"):
        ids, _ = engine.make(case, out / case)
        check_rank_logits(case, out / case, ids)
        check_long_prompts(case, out / case)
        check_rank_tokens(case, out / case)
    check_rank_refusals(out / "llama3-d128")
    check_rank_hang(out / "llama3-d128")
    print(f"{engine.failures} failed")
    return int(engine.failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
