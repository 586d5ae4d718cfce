"""Logits of tiny random Llamas against transformers in float32, at every position, from every file format."""

import importlib.util
import pathlib
import shutil

import numpy as np
import pytest
from fastllm_core._C._core_testing import LogitProbe

BOUND = 1e-3
HERE = pathlib.Path(__file__).parent


def load_maker():
    spec = importlib.util.spec_from_file_location("make_tiny_llama", HERE / "make_tiny_llama.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


maker = load_maker()
HF_RUNS = [(case, layout) for case in maker.CASES for layout in ("hf", "sharded")]
GGUF_RUNS = [(case, t) for case in maker.GGUF_CASES for t in maker.GGUF_TYPES]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """made(case) -> its folder, built at first use."""
    out = tmp_path_factory.mktemp("tiny-llamas")

    def make(case: str) -> pathlib.Path:
        if not (out / case).exists():
            maker.make(case, out)
        return out / case

    return make


def read(folder: pathlib.Path, name: str) -> tuple[list[int], np.ndarray]:
    ids = [int(t) for t in (folder / "ids.txt").read_text().split()]
    return ids, np.fromfile(folder / name, dtype=np.float32).reshape(len(ids), -1)


def worst(path: pathlib.Path, ids: list[int], expected: np.ndarray, chunk: int) -> float:
    got = LogitProbe(str(path), cpu_precision="float32").logits(ids, chunk)
    assert got.shape == expected.shape
    return float(np.abs(got - expected).max())


@pytest.mark.parametrize(("case", "layout"), HF_RUNS)
def test_safetensors(made, case, layout):
    folder = made(case)
    shards = len(list((folder / layout).glob("*.safetensors")))
    assert (shards > 1) == (layout == "sharded")
    ids, expected = read(folder, "expected.f32")
    for chunk in (7, len(ids)):
        assert worst(folder / layout, ids, expected, chunk) <= BOUND


@pytest.mark.parametrize(("case", "type_name"), GGUF_RUNS)
def test_gguf(made, case, type_name):
    folder = made(case)
    ids, expected = read(folder, f"expected_{type_name}.f32")
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
    ids, expected = read(folder, "expected.f32")
    tensors = load_file(folder / "hf" / "model.safetensors")
    shutil.copy(folder / "hf" / "config.json", tmp_path)
    kinds = {name.replace("layers.0.", "layers.1.").replace("layers.2.", "layers.1.") for name in tensors}
    assert kinds == set(TENSOR_CLASSES)
    for name in TENSOR_CLASSES:
        changed = {**tensors, name: np.zeros_like(tensors[name])}
        save_file(changed, tmp_path / "model.safetensors", metadata={"format": "pt"})
        assert worst(tmp_path, ids, expected, len(ids)) > 10 * BOUND, name
