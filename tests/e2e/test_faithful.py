"""The default mode, which computes with the quantised weights as stored, against transformers in float32.

Teacher forcing: the model reads prompt and reference continuation, and its logits at each step are compared with the
recorded ones of the reference's five best tokens. The bounds are what llama.cpp shows on the same file.
"""

import numpy as np
import pytest
from fastllm_core._C._core_testing import LogitProbe
from smollm2_support import smollm2_gguf

MEAN, P99 = 0.18, 0.62


def top5_errors(probe, prompt: dict, chunk: int) -> np.ndarray:
    reference = prompt["hf_fp32"]
    first = len(prompt["prompt_ids"]) - 1
    logits = probe.logits(prompt["prompt_ids"] + reference["ids"], chunk=chunk)
    errors = [
        abs(float(logits[first + step][token]) - value)
        for step, top in enumerate(reference["top5"])
        for token, value in top
    ]
    return np.array(errors)


# Steps of 8 tokens are computed as those of one are, longer ones may be computed otherwise (batch_invariant).
@pytest.mark.parametrize("chunk", [8, 16, 512])
def test_logits_are_near_those_of_float32(golden, chunk):
    probe = LogitProbe(smollm2_gguf(), num_threads=2)
    errors = np.concatenate([top5_errors(probe, p, chunk) for p in golden])
    assert len(errors) == 8 * 48 * 5
    assert 0.01 < errors.mean() <= MEAN  # not exact: the test would then measure the other mode
    assert np.quantile(errors, 0.99) <= P99


@pytest.mark.parametrize("kv_cache_dtype", ["float32", "float16", "bfloat16", "int8"])
def test_float32_mode_with_each_cache(golden, kv_cache_dtype):
    """Rounding of the cache alone costs little, and none at all in float32."""
    bound = {"float32": 2e-3, "float16": 0.02, "bfloat16": 0.2, "int8": 0.45}[kv_cache_dtype]
    probe = LogitProbe(smollm2_gguf(), num_threads=2, cpu_precision="float32", kv_cache_dtype=kv_cache_dtype)
    errors = np.concatenate([top5_errors(probe, p, chunk=512) for p in golden[:3]])
    assert np.quantile(errors, 0.99) <= bound


@pytest.mark.parametrize("kv_cache_dtype", ["float32", "float16", "bfloat16", "int8"])
def test_bits_do_not_depend_on_chunks(golden, kv_cache_dtype):
    probe = LogitProbe(smollm2_gguf(), num_threads=2, kv_cache_dtype=kv_cache_dtype, batch_invariant=True)
    ids = golden[1]["prompt_ids"][:60]
    whole = probe.logits(ids, chunk=60)
    for chunk in (1, 7, 13):
        assert np.array_equal(probe.logits(ids, chunk=chunk), whole), chunk
