"""Logits of tiny random Llamas against transformers in float32, at every position, from every file format."""

import pathlib
import shutil

import make_tiny_llama as maker
import numpy as np
import pytest
from fastllm_core._C._core_testing import LogitProbe

BOUND = 1e-3
HERE = pathlib.Path(__file__).parent
HF_RUNS = [(case, layout) for case in maker.CASES for layout in ("hf", "sharded")]
GGUF_RUNS = [(case, t) for case in maker.GGUF_CASES for t in maker.GGUF_TYPES]


def worst(path: pathlib.Path, ids: list[int], expected: np.ndarray, chunk: int) -> float:
    got = LogitProbe(str(path), cpu_precision="float32").logits(ids, chunk)
    assert got.shape == expected.shape
    return float(np.abs(got - expected).max())


@pytest.mark.parametrize(("case", "layout"), HF_RUNS)
def test_safetensors(made, case, layout):
    folder = made(case)
    shards = len(list((folder / layout).glob("*.safetensors")))
    assert (shards > 1) == (layout == "sharded")
    ids, expected = maker.read(folder, "expected.f32")
    for chunk in (7, len(ids)):
        assert worst(folder / layout, ids, expected, chunk) <= BOUND


@pytest.mark.parametrize(("case", "type_name"), GGUF_RUNS)
def test_gguf(made, case, type_name):
    folder = made(case)
    ids, expected = maker.read(folder, f"expected_{type_name}.f32")
    for chunk in (16, len(ids)):
        assert worst(folder / f"{type_name}.gguf", ids, expected, chunk) <= BOUND


# One tensor of each class that a loader could forget; zeroing it in our file must show.
TENSOR_CLASSES = [
    "model.embed_tokens.weight",
    "model.layers.1.self_attn.q_proj.weight",
    "model.layers.1.self_attn.q_proj.bias",
    "model.layers.1.self_attn.k_proj.weight",
    "model.layers.1.self_attn.k_proj.bias",
    "model.layers.1.self_attn.v_proj.weight",
    "model.layers.1.self_attn.v_proj.bias",
    "model.layers.1.self_attn.o_proj.weight",
    "model.layers.1.self_attn.o_proj.bias",
    "model.layers.1.mlp.gate_proj.weight",
    "model.layers.1.mlp.gate_proj.bias",
    "model.layers.1.mlp.up_proj.weight",
    "model.layers.1.mlp.up_proj.bias",
    "model.layers.1.mlp.down_proj.weight",
    "model.layers.1.mlp.down_proj.bias",
    "model.layers.1.input_layernorm.weight",
    "model.layers.1.post_attention_layernorm.weight",
    "model.norm.weight",
    "lm_head.weight",
]


def test_every_tensor_class_is_used(made, tmp_path):
    """The comparison above would see a forgotten tensor: with any class zeroed the logits leave the bound."""
    from safetensors.numpy import load_file, save_file

    folder = made("biases")
    ids, expected = maker.read(folder, "expected.f32")
    tensors = load_file(folder / "hf" / "model.safetensors")
    shutil.copy(folder / "hf" / "config.json", tmp_path)
    kinds = {name.replace("layers.0.", "layers.1.").replace("layers.2.", "layers.1.") for name in tensors}
    assert kinds == set(TENSOR_CLASSES)
    for name in TENSOR_CLASSES:
        changed = {**tensors, name: np.zeros_like(tensors[name])}
        save_file(changed, tmp_path / "model.safetensors", metadata={"format": "pt"})
        assert worst(tmp_path, ids, expected, len(ids)) > 10 * BOUND, name


def test_qwen3_head_norms_are_used(made, tmp_path):
    from safetensors.numpy import load_file, save_file

    folder = made("qwen3")
    ids, expected = maker.read(folder, "expected.f32")
    tensors = load_file(folder / "hf" / "model.safetensors")
    shutil.copy(folder / "hf" / "config.json", tmp_path)
    for name in ("model.layers.1.self_attn.q_norm.weight", "model.layers.1.self_attn.k_norm.weight"):
        changed = {**tensors, name: np.ones_like(tensors[name])}
        save_file(changed, tmp_path / "model.safetensors", metadata={"format": "pt"})
        assert worst(tmp_path, ids, expected, len(ids)) > 10 * BOUND, name


@pytest.mark.parametrize("case", ["plain", "biases", "llama3", "qwen2", "qwen3"])
def test_the_device_runner_on_the_cpu(made, case):
    """The runner of the GPU with the CPU as its device: the same logits."""
    folder = made(case)
    ids, expected = maker.read(folder, "expected.f32")
    for chunk in (7, len(ids)):
        got = LogitProbe(str(folder / "hf"), device_runner=True).logits(ids, chunk)
        assert float(np.abs(got - expected).max()) <= BOUND


def test_dummy_weights_need_a_config_alone(made, tmp_path):
    """load_format=dummy on a folder that holds config.json and nothing else: the seed decides."""
    from fastllm_core import LLM, SamplingParams

    shutil.copy(made("qwen3") / "hf" / "config.json", tmp_path)
    greedy = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, detokenize=False)
    runs = []
    for seed in (0, 0, 1):
        with LLM(str(tmp_path), skip_tokenizer_init=True, load_format="dummy", seed=seed, max_model_len=64) as llm:
            assert llm.info.architecture == "Qwen3ForCausalLM"
            runs.append(llm.generate([3, 4, 5], greedy, use_tqdm=False)[0].outputs[0].token_ids)
    assert runs[0] == runs[1] != runs[2]


def test_sixteen_bit_types_are_refused_on_the_cpu(made):
    from fastllm_core import LLM
    from fastllm_core.errors import FastLLMError

    for dtype in ("bfloat16", "float16"):
        with pytest.raises(FastLLMError, match=f'dtype is "{dtype}"; the CPU computes in float32'):
            LLM(str(made("plain") / "hf"), skip_tokenizer_init=True, device="cpu", dtype=dtype)
