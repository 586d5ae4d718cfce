"""8-bit floats in linear layers and KV cache: logits against the same arithmetic in torch, from floats and from stored
8-bit weights."""

import json
import pathlib

import make_tiny_llama as maker
import numpy as np
import pytest
import torch
from fastllm_core._C._core_testing import LogitProbe
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent
# Of a row of logits, before any value met the edge of a rounding: the same but for the order of sums.
ROW_BOUND = 1e-4
# A value that does meet one comes out a sixteenth away; its row and the rows that attend to it are then others. Of all
# logits, as a share of what 8 bits themselves change.
SHARE = 0.6
KV_BOUND = 5e-3


def to_fp8(x: torch.Tensor, dim: int | None = -1) -> tuple[torch.Tensor, torch.Tensor]:
    """float8_e4m3fn and the scales: of rows, or with dim None of all."""
    amax = x.abs().amax() if dim is None else x.abs().amax(dim, keepdim=True)
    scale = amax.clamp(min=1e-30) * torch.tensor(1 / 448, dtype=torch.float32)
    return (x * (1 / scale)).to(torch.float8_e4m3fn), scale


class Fp8Linear(torch.nn.Module):
    def __init__(self, linear: torch.nn.Linear, dim: int | None):
        super().__init__()
        self.weight, self.scale = to_fp8(linear.weight.data, dim)
        self.bias = linear.bias

    def forward(self, x):
        q, scale = to_fp8(x)
        y = q.float() @ self.weight.float().T * scale * self.scale.reshape(-1)
        return y if self.bias is None else y + self.bias


def quantize(model, dim: int | None = -1):
    """Replaces the linear layers of the decoder's layers; the head stays."""
    for parent in list(model.model.layers.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, torch.nn.Linear):
                setattr(parent, name, Fp8Linear(child, dim))
    return model


def ids_of(model) -> list[int]:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, model.config.vocab_size, (70,), generator=generator).tolist()


def difference(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def expect_close(got: np.ndarray, want: np.ndarray, floats: np.ndarray) -> None:
    assert min(difference(a, b) for a, b in zip(got, want, strict=True)) < ROW_BOUND
    assert min(difference(a, b) for a, b in zip(floats, want, strict=True)) > 100 * ROW_BOUND
    assert difference(got, want) < SHARE * difference(floats, want)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """saved(case) -> (folder, model, ids)"""
    out = tmp_path_factory.mktemp("fp8")
    known = {}

    def make(case: str):
        if case not in known:
            model = maker.build(case)
            model.save_pretrained(out / case)
            known[case] = out / case, ids_of(model)
        folder, ids = known[case]
        return folder, maker.build(case), ids

    return make


@pytest.mark.parametrize("device_runner", [False, True])
@pytest.mark.parametrize("case", ["plain", "biases", "tied", "qwen3", "qwen2"])
def test_logits_from_floats(saved, case, device_runner):
    folder, model, ids = saved(case)
    floats = maker.logits(model, ids)
    want = maker.logits(quantize(model), ids)
    probe = LogitProbe(str(folder), num_threads=2, quantization="fp8", device_runner=device_runner)
    for chunk in (70, 13):
        expect_close(probe.logits(ids, chunk), want, floats)


CHANNEL = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False},
            "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
        }
    },
    "ignore": ["lm_head"],
}
TENSOR = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def store(folder: pathlib.Path, out: pathlib.Path, config: dict, dim: int | None, extra: dict | None = None) -> str:
    """The checkpoint in `folder` with its linear layers in 8 bits."""
    out.mkdir()
    tensors = load_file(folder / "model.safetensors")
    for name in [n for n in tensors if ".layers." in n and n.endswith("proj.weight")]:
        tensors[name], scale = to_fp8(tensors[name], dim)
        tensors[name + "_scale"] = scale.reshape([-1, 1]) if dim is not None else scale
    tensors |= {name: torch.tensor(value) for name, value in (extra or {}).items()}
    save_file(tensors, out / "model.safetensors")
    whole = json.loads((folder / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(whole | ({"quantization_config": config} if config else {})))
    return str(out)


def test_stored_by_channel_is_what_loading_makes(saved, tmp_path):
    folder, _, ids = saved("plain")
    path = store(folder, tmp_path / "channel", CHANNEL, -1)
    made = LogitProbe(str(folder), quantization="fp8").logits(ids, 70)
    for quantization in ("", "compressed-tensors"):
        assert np.array_equal(LogitProbe(path, quantization=quantization).logits(ids, 70), made)


def test_stored_by_tensor(saved, tmp_path):
    folder, model, ids = saved("biases")
    path = store(folder, tmp_path / "tensor", TENSOR, None)
    got = LogitProbe(path).logits(ids, 70)
    floats = maker.logits(model, ids)
    expect_close(got, maker.logits(quantize(model, dim=None), ids), floats)


def test_refusals(saved, tmp_path):
    folder, _, _ = saved("plain")
    channel = store(folder, tmp_path / "channel", CHANNEL, -1)
    for path, quantization, words in [
        (str(folder), "awq", 'quantization is "awq"; known: int8, fp8, compressed-tensors'),
        (str(folder), "compressed-tensors", "no quantization_config"),
        (channel, "fp8", 'the checkpoint states "compressed-tensors"'),
    ]:
        with pytest.raises(Exception, match=words):
            LogitProbe(path, quantization=quantization)
    for change, words in [
        ({"quant_method": "fp8", "activation_scheme": "static"}, 'activation_scheme is "static"; known: dynamic'),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "weight_block_size"),
        (CHANNEL | {"ignore": ["lm_head", "model.layers.0.mlp.gate_proj"]}, "only lm_head may be left out"),
        ({"quant_method": "awq"}, '"awq"; known: fp8, compressed-tensors'),
    ]:
        path = store(folder, tmp_path / str(abs(hash(str(change)))), change, -1)
        with pytest.raises(Exception, match=words.replace("[", "\\[")):
            LogitProbe(path)
    plain = store(folder, tmp_path / "no-config", {}, -1)
    with pytest.raises(Exception, match=r"q_proj\.weight is F8_E4M3"):
        LogitProbe(plain)


@pytest.mark.parametrize("scales", [None, (0.03, 0.2)])
@pytest.mark.parametrize("device_runner", [False, True])
def test_kv_cache(saved, tmp_path, monkeypatch, scales, device_runner):
    """K and V rounded to 8 bits, with the checkpoint's scales or with 1."""
    import transformers.models.llama.modeling_llama as llama

    folder, model, ids = saved("plain")
    floats = maker.logits(model, ids)
    whole = llama.eager_attention_forward
    k_scale, v_scale = (torch.tensor(s, dtype=torch.float32) for s in scales or (1.0, 1.0))

    def rounded(module, query, key, value, *args, **kwargs):
        key, value = (
            (x * (1 / s)).clamp(-448, 448).to(torch.float8_e4m3fn).float() * s
            for x, s in ((key, k_scale), (value, v_scale))
        )
        return whole(module, query, key, value, *args, **kwargs)

    monkeypatch.setattr(llama, "eager_attention_forward", rounded)
    want = maker.logits(model, ids)
    path = str(folder)
    if scales is not None:
        names = [f"model.layers.{i}.self_attn." for i in range(model.config.num_hidden_layers)]
        extra = {n + w: s for n in names for w, s in (("k_scale", scales[0]), ("v_scale", scales[1]))}
        out = tmp_path / "scaled"
        out.mkdir()
        save_file(
            load_file(folder / "model.safetensors") | {n: torch.tensor(s) for n, s in extra.items()},
            out / "model.safetensors",
        )
        (out / "config.json").write_text((folder / "config.json").read_text())
        path = str(out)
    for name in ("fp8", "fp8_e4m3"):
        got = LogitProbe(path, num_threads=2, kv_cache_dtype=name, device_runner=device_runner).logits(ids, 19)
        assert difference(got, want) < KV_BOUND
    assert difference(floats, want) > 2 * KV_BOUND
