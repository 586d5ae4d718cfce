"""SmolLM2-135M on a GPU: greedy tokens against transformers' and the CPU's, up to near-ties.

Needs a GPU and the model's GGUF file; not a pytest file. Exit status 0 when all checks pass.

    python tests/cuda/check_smollm2.py MODEL.gguf
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

GOLDENS = Path(__file__).resolve().parents[1] / "e2e" / "data" / "smollm2_greedy.json"
# Where two continuations part, the reference's own logits of the two tokens may differ by this much: what rounding to
# the type at every step leaves in a logit of this model.
NEAR_TIE = {"float32": 2e-3, "bfloat16": 0.6}
failures = 0


def check(what: str, ok: bool, detail: str = "") -> None:
    global failures
    failures += not ok
    print(f"{'ok    ' if ok else 'FAILED'} {what} {detail}", flush=True)


def part(got: list[int], prompt: dict, limit: float) -> str | None:
    """Nothing where the tokens are the reference's, or leave them at a near-tie; else what happened."""
    want, top5 = prompt["hf_fp32"]["ids"], prompt["hf_fp32"]["top5"]
    if len(got) != len(want):
        return f"{len(got)} tokens instead of {len(want)}"
    at = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), None)
    if at is None:
        return None
    logits = {int(i): float(x) for i, x in top5[at]}
    gap = logits[want[at]] - logits[got[at]] if got[at] in logits else float("inf")
    return None if gap <= limit else f"token {at} is {got[at]} instead of {want[at]}, {gap:.2f} below"


def main(argv: list[str]) -> int:
    from fastllm_core import LLM, SamplingParams

    if len(argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    prompts = json.loads(GOLDENS.read_text())["prompts"]
    ids = [{"prompt_token_ids": p["prompt_ids"]} for p in prompts]
    params = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True, detokenize=False)
    cpu = None
    for dtype, more in (("float32", {}), ("bfloat16", {}), ("bfloat16", {"enforce_eager": True})):
        name = f"{dtype}, {'eager' if more else 'graphs'}"
        with LLM(argv[1], device="cuda", dtype=dtype, max_model_len=1024, kv_cache_memory_bytes=1 << 30, **more) as llm:
            together = [o.outputs[0].token_ids for o in llm.generate(ids, params, use_tqdm=False)]
            alone = [llm.generate([p], params, use_tqdm=False)[0].outputs[0].token_ids for p in ids]
        for way, got in (("in one batch", together), ("alone", alone)):
            wrong = [f"{p['name']}: {w}" for p, g in zip(prompts, got) if (w := part(list(g), p, NEAR_TIE[dtype]))]
            same = sum(list(g) == p["hf_fp32"]["ids"] for p, g in zip(prompts, got))
            check(f"{name}, {way}", not wrong, f"{same} of {len(prompts)} equal; {'; '.join(wrong)}")
        if dtype == "float32":
            with LLM(argv[1], device="cpu", cpu_precision="float32", max_model_len=1024) as llm:
                cpu = [list(o.outputs[0].token_ids) for o in llm.generate(ids, params, use_tqdm=False)]
            same = sum(a == list(b) for a, b in zip(cpu, together))
            check("float32 equals the CPU's float32", same >= len(cpu) - 1, f"{same} of {len(cpu)}")
    print(f"{failures} failed")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
