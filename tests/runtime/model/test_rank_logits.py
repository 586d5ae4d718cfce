"""Tiny models over several ranks, from files: the logits of transformers, or of one rank for quantised blocks."""

import pathlib

import make_tiny_llama as maker
import numpy as np
import pytest
from fastllm_core._C._core_testing import LogitProbe

from fastllm_core.errors import FastLLMError

BOUND = 1e-3  # of transformers' logits
SAME = 1e-5  # relative, of one rank's
HERE = pathlib.Path(__file__).parent


def logits(path: pathlib.Path, ids: list[int], tensor: int, pipeline: int, **options) -> np.ndarray:
    probe = LogitProbe(str(path), tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, **options)
    return probe.logits(ids, chunk=40)


@pytest.mark.parametrize("case", ["biases", "qwen2", "qwen3", "qwen3_tied"])
@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (4, 1), (1, 2), (2, 2), (4, 2)])
def test_safetensors(made, case, tensor, pipeline):
    folder = made(case)
    ids, expected = maker.read(folder, "expected.f32")
    layout = "sharded" if pipeline > 1 else "hf"
    got = logits(folder / layout, ids, tensor, pipeline)
    assert float(np.abs(got - expected).max()) <= BOUND
    one = logits(folder / layout, ids, 1, 1)
    assert float(np.abs(got - one).max()) <= SAME * float(np.abs(one).max())


@pytest.mark.parametrize("type_name", ["F32", "F16", "Q8_0", "Q4_1"])
@pytest.mark.parametrize("cpu_precision", ["auto", "float32"])
@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (4, 2)])
def test_gguf(made, type_name, cpu_precision, tensor, pipeline):
    path = made("plain") / f"{type_name}.gguf"
    ids, _ = maker.read(made("plain"), "expected.f32")
    one = logits(path, ids, 1, 1, cpu_precision=cpu_precision, kv_cache_dtype="float32")
    got = logits(path, ids, tensor, pipeline, cpu_precision=cpu_precision, kv_cache_dtype="float32")
    # Activations are rounded to 8 bits where weights stay quantised, so a last bit may become a step of that rounding.
    quantised = cpu_precision == "auto" and type_name.startswith("Q")
    bound = 0.1 if quantised else SAME  # a wrong cut is off by the logits themselves
    assert float(np.abs(got - one).max()) <= bound * float(np.abs(one).max())


@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 0.01), ("float16", SAME)])
@pytest.mark.parametrize(("case", "tensor", "pipeline"), [("biases", 2, 1), ("qwen3_tied", 4, 2)])
def test_sixteen_bits_as_stored(tmp_path, case, dtype, bound, tensor, pipeline):
    """Activations are rounded to bfloat16 where weights are, so a last bit may become a step of that rounding."""
    import torch

    model = maker.build(case).to(getattr(torch, dtype))
    model.save_pretrained(tmp_path)
    ids = list(range(5, 90))
    one = logits(tmp_path, ids, 1, 1, kv_cache_dtype="float32")
    got = logits(tmp_path, ids, tensor, pipeline, kv_cache_dtype="float32")
    exact = logits(tmp_path, ids, 1, 1, cpu_precision="float32")
    scale = float(np.abs(one).max())
    assert float(np.abs(got - one).max()) <= bound * scale
    if dtype == "bfloat16":  # in which it differs from weights that became float32
        assert float(np.abs(got - exact).mean()) > 1e-4 * scale


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (2, 2)])
def test_int8_of_floats_is_cut_between_its_blocks(made, tensor, pipeline):
    folder = made("qwen2")  # its GGUF file keeps the row order of the checkpoint
    ids, _ = maker.read(folder, "expected.f32")
    online = logits(folder / "hf", ids, tensor, pipeline, quantization="int8")
    assert np.array_equal(online, logits(folder / "Q8_0.gguf", ids, tensor, pipeline))


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (4, 2)])
def test_fp8(made, tensor, pipeline):
    """Scales follow the rows; activations have one for each token and rank, so their rounding differs."""
    folder = made("plain") / "hf"
    ids, exact = maker.read(made("plain"), "expected.f32")
    one = logits(folder, ids, 1, 1, quantization="fp8")
    got = logits(folder, ids, tensor, pipeline, quantization="fp8")
    loss = float(np.abs(one - exact).mean())
    assert 0.3 * loss < float(np.abs(got - exact).mean()) < 1.3 * loss


def test_blocks_are_not_cut(made):
    """Q6_K has blocks of 256 values; the output projection's 256 inputs are one of them."""
    message = r"attn_output.weight: a rank's share of 128 of the 256 columns is not whole blocks of 256 \(Q6_K\)"
    with pytest.raises(FastLLMError, match=message):
        LogitProbe(str(made("plain") / "Q6_K.gguf"), tensor_parallel_size=2)


def test_heads_that_do_not_divide_are_refused(made):
    with pytest.raises(FastLLMError, match="tensor_parallel_size is 3, which does not divide the 4 attention heads"):
        LogitProbe(str(made("plain") / "hf"), tensor_parallel_size=3)
