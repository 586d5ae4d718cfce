"""Weights of 16 bits computed with as they are stored, and float weights that become 8-bit blocks when they are loaded.

The yardstick of the 16-bit types is transformers' own bfloat16 run of the same weights: what it loses against float32
is what may be lost here. Online int8 has an exact reference: the file that the gguf package quantises from the same
weights.
"""

import pathlib

import make_tiny_llama as maker
import numpy as np
import pytest
import torch
from fastllm_core._C._core_testing import LogitProbe

HERE = pathlib.Path(__file__).parent
EXACT_BOUND = 1e-3
CASES = ["plain", "tied", "biases", "head_dim", "qwen2", "qwen3_tied"]
IDS = torch.randint(3, maker.BASE["vocab_size"], (90,), generator=torch.Generator().manual_seed(7)).tolist()


def cast(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """In place, parameters only: buffers (the rotary frequencies) stay float32, as when a checkpoint is loaded."""
    for p in model.parameters():
        p.data = p.data.to(dtype)
    return model


@pytest.fixture(scope="module")
def rounded(tmp_path_factory):
    """rounded(case, dtype) -> (folder of the checkpoint, its logits in float32, those of transformers in dtype)."""
    out = tmp_path_factory.mktemp("stored")
    made: dict = {}

    def make(case: str, dtype: torch.dtype):
        if (case, dtype) not in made:
            model = cast(maker.build(case), dtype)
            folder = out / f"{case}-{str(dtype).split('.')[1]}"
            model.save_pretrained(folder)
            own = maker.logits(model, IDS)
            made[case, dtype] = (folder, maker.logits(cast(model, torch.float32), IDS), own)
        return made[case, dtype]

    return make


def errors(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    assert got.shape == expected.shape
    return np.abs(got - expected)


@pytest.mark.parametrize("case", CASES)
def test_bfloat16_checkpoints(rounded, case):
    folder, expected, of_torch = rounded(case, torch.bfloat16)
    got = LogitProbe(str(folder)).logits(IDS, len(IDS))
    lost, allowed = errors(got, expected), errors(of_torch, expected)
    assert 0 < lost.mean() <= allowed.mean()  # zero would be the mode below
    assert lost.max() <= 1.5 * allowed.max()
    exact = LogitProbe(str(folder), cpu_precision="float32").logits(IDS, 16)
    assert errors(exact, expected).max() <= EXACT_BOUND


@pytest.mark.parametrize("case", ["plain", "qwen3_tied"])
def test_float16_checkpoints(rounded, case):
    """Float16 weights meet float32 activations: what is lost is the bfloat16 of the KV cache, and none with float32."""
    folder, expected, _ = rounded(case, torch.float16)
    bfloat_loss = errors(rounded(case, torch.bfloat16)[2], rounded(case, torch.bfloat16)[1])
    assert errors(LogitProbe(str(folder)).logits(IDS, 16), expected).mean() <= bfloat_loss.mean()
    probe = LogitProbe(str(folder), kv_cache_dtype="float32")
    assert errors(probe.logits(IDS, 16), expected).max() <= EXACT_BOUND


@pytest.mark.parametrize("type_name", ["F16", "BF16"])
def test_gguf_of_sixteen_bits(made, tmp_path, type_name):
    model = maker.build("plain")
    held = maker.write_gguf(model, tmp_path / "model.gguf", type_name, "llama")
    twin = maker.build("plain")
    twin.load_state_dict(held, strict=False)
    expected = maker.logits(twin, IDS)
    allowed = errors(maker.logits(cast(twin, torch.bfloat16), IDS), expected)
    lost = errors(LogitProbe(str(tmp_path / "model.gguf")).logits(IDS, 32), expected)
    assert 0 < lost.mean() <= allowed.mean()
    exact = LogitProbe(str(tmp_path / "model.gguf"), cpu_precision="float32").logits(IDS, 32)
    assert errors(exact, expected).max() <= EXACT_BOUND


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bits_do_not_depend_on_chunks_or_threads(rounded, dtype):
    folder, _, _ = rounded("biases", dtype)
    whole = LogitProbe(str(folder), num_threads=1).logits(IDS, len(IDS))
    probe = LogitProbe(str(folder), num_threads=2)
    for chunk in (1, 7, 16, 33):
        assert np.array_equal(probe.logits(IDS, chunk), whole), chunk


@pytest.mark.parametrize("case", ["qwen2", "qwen3"])  # their GGUF files keep the row order of the checkpoint
def test_online_int8_equals_the_file_that_gguf_quantises(made, case):
    folder = made(case)
    online = LogitProbe(str(folder / "hf"), quantization="int8").logits(IDS, 32)
    assert np.array_equal(online, LogitProbe(str(folder / "Q8_0.gguf")).logits(IDS, 32))


def test_online_int8_of_bfloat16(tmp_path):
    model = cast(maker.build("qwen2"), torch.bfloat16)
    model.save_pretrained(tmp_path / "hf")
    maker.write_gguf(cast(model, torch.float32), tmp_path / "Q8_0.gguf", "Q8_0", "qwen2")
    online = LogitProbe(str(tmp_path / "hf"), quantization="int8").logits(IDS, 32)
    assert np.array_equal(online, LogitProbe(str(tmp_path / "Q8_0.gguf")).logits(IDS, 32))


def test_online_int8_through_the_engine(rounded, made):
    from fastllm_core import LLM, SamplingParams
    from fastllm_core.errors import InvalidArgumentError

    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)
    options = {"skip_tokenizer_init": True, "max_model_len": 128, "cpu_threads": 1}
    folder = str(rounded("plain", torch.bfloat16)[0])
    with LLM(folder, quantization="int8", **options) as llm:
        ids = llm.generate([{"prompt_token_ids": IDS[:20]}], greedy, use_tqdm=False)[0].outputs[0].token_ids
    logits = LogitProbe(folder, quantization="int8").logits(IDS[:20] + list(ids[:-1]), 8)
    assert logits[19:].argmax(axis=1).tolist() == list(ids)
    with LLM(folder, quantization="int8", load_format="dummy", **options) as llm:
        assert len(llm.generate([{"prompt_token_ids": [3, 4]}], greedy, use_tqdm=False)[0].outputs[0].token_ids) == 8
    with pytest.raises(InvalidArgumentError, match=r'quantization is "int8" and cpu_precision "float32"'):
        LLM(folder, quantization="int8", cpu_precision="float32", **options)
    with pytest.raises(InvalidArgumentError, match=r'quantization is "int8", but .* no matrix of floats'):
        LLM(str(made("plain") / "Q8_0.gguf"), quantization="int8", **options)
