"""Tiny random Llamas and their relatives (Qwen2, Qwen3) with the logits that transformers computes for them.

Every parameter is re-drawn (norm weights away from 1, biases away from 0), because a model with default values hides
faults: see `redrawn.redraw`. One folder per case under OUT:

    OUT/<case>/hf/                config.json and model.safetensors, as transformers writes them
    OUT/<case>/sharded/           the same in shards with an index
    OUT/<case>/<TYPE>.gguf        F32, F16, Q8_0, Q4_1, Q6_K (cases with GGUF)
    OUT/<case>/ids.txt            token ids
    OUT/<case>/expected.f32       float32 logits [ids, vocab] of the HF weights
    OUT/<case>/expected_<TYPE>.f32   the same of the weights that the GGUF file holds, dequantised

    python make_tiny_llama.py OUT [case ...]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
from redrawn import redraw

NUM_IDS = 90
ROPE_THETA = 10000.0
BASE = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


def rope(**kwargs) -> dict:
    return {"rope_parameters": {"rope_theta": ROPE_THETA, **kwargs}}


CASES: dict[str, dict] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "head_dim": {"head_dim": 32, "num_attention_heads": 8},
    "mha": {"num_key_value_heads": 4},
    "linear": rope(rope_type="linear", factor=4.0),
    "llama3": rope(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=64,
    ),
    "yarn": rope(rope_type="yarn", factor=8.0, original_max_position_embeddings=64),
    "yarn_mscale": rope(
        rope_type="yarn",
        factor=8.0,
        original_max_position_embeddings=64,
        mscale=1.3,
        mscale_all_dim=0.7,
        beta_fast=16.0,
        beta_slow=2.0,
        truncate=False,
    ),
    "dynamic": rope(rope_type="dynamic", factor=2.0),
    "qwen2": {},
    "qwen3": {"head_dim": 128},  # heads * head_dim is not the hidden size
    "qwen3_tied": {"head_dim": 64, "tie_word_embeddings": True, "attention_bias": True},
}
GGUF_CASES = ("plain", "tied", "biases", "llama3", "linear", "qwen2", "qwen3")
GGUF_TYPES = ("F32", "F16", "Q8_0", "Q4_1", "Q6_K")


def family(case: str) -> str:
    """The prefix of the transformers classes; in lower case also the architecture of GGUF files."""
    return {"qwen2": "Qwen2", "qwen3": "Qwen3"}.get(case.split("_")[0], "Llama")


def read(folder: Path, name: str) -> tuple[list[int], np.ndarray]:
    """The ids of a folder that make() made, and logits that lie in it: [ids, vocabulary]."""
    ids = [int(t) for t in (folder / "ids.txt").read_text().split()]
    return ids, np.fromfile(folder / name, dtype=np.float32).reshape(len(ids), -1)


def logits(model, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].float().numpy()


def build(case: str):
    config = getattr(transformers, family(case) + "Config")(**{**BASE, **CASES[case]})
    model = getattr(transformers, family(case) + "ForCausalLM")._from_config(config, attn_implementation="eager")
    model = model.eval().float()
    redraw(model, seed=sum(case.encode()))
    if config.tie_word_embeddings:
        model.tie_weights()
    return model


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Row order of q and k in GGUF llama files: halves of a head become pairs."""
    shape = rows.shape
    return rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    shape = rows.shape
    return rows.reshape(heads, shape[0] // heads // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, rest = stem.split(".", 3)
        return f"blk.{layer}.{GGUF_NAMES[rest]}.{kind}"
    return f"{GGUF_NAMES[stem]}.{kind}"


def llama3_factors(config) -> np.ndarray:
    """What the llama converter stores in rope_freqs.weight: the divisor of each frequency."""
    p = config.rope_parameters
    dim = config.head_dim
    freqs = 1.0 / p["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    original = p["original_max_position_embeddings"]
    low, high = p["low_freq_factor"], p["high_freq_factor"]
    out = []
    for f in freqs:
        wavelength = 2 * np.pi / f
        if wavelength < original / high:
            out.append(1.0)
        elif wavelength > original / low:
            out.append(p["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            out.append(1 / ((1 - smooth) / p["factor"] + smooth))
    return np.array(out, dtype=np.float32)


def quantize_q6_k(rows: np.ndarray) -> np.ndarray:
    """Q6_K by plain rounding (the gguf package reads this type but does not write it).

    A block of 256 values: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 int8 scales, one float16 scale.
    """
    x = rows.reshape(-1, 16, 16).astype(np.float32)
    scales = np.abs(x).max(axis=2) / 31
    d = (scales.max(axis=1, keepdims=True) / 127).astype(np.float16)
    s = np.round(scales / np.maximum(d.astype(np.float32), 1e-30)).astype(np.int8)
    step = (d.astype(np.float32) * s)[:, :, None]
    q = np.clip(np.round(np.divide(x, step, out=np.zeros_like(x), where=step != 0)), -32, 31).astype(np.int32) + 32
    q = q.reshape(-1, 2, 4, 32)  # halves of 128 values, four groups of 32
    low = q & 15
    ql = np.concatenate([low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4], axis=2)
    high = q >> 4
    qh = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    n = len(q)
    parts = [ql.reshape(n, -1).astype(np.uint8), qh.reshape(n, -1).astype(np.uint8), s.view(np.uint8), d.view(np.uint8)]
    return np.concatenate(parts, axis=1).reshape(rows.shape[0], -1)


def quantize(rows: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    if kind == gguf.GGMLQuantizationType.Q6_K:
        return quantize_q6_k(rows)
    return gguf.quants.quantize(np.ascontiguousarray(rows), kind)


def write_gguf(model, path: Path, type_name: str, arch: str) -> dict[str, torch.Tensor]:
    """Writes the file and returns the HF state dict of the values it really holds."""
    c = model.config
    kind = gguf.GGMLQuantizationType[type_name]
    w = gguf.GGUFWriter(path, arch)
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    w.add_block_count(c.num_hidden_layers)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_rope_dimension_count(head_dim)
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_rope_freq_base(c.rope_parameters["rope_theta"])
    w.add_vocab_size(c.vocab_size)
    w.add_eos_token_id(2)
    rope_type = c.rope_parameters["rope_type"]
    if rope_type == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(c.rope_parameters["factor"])
    if rope_type == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_factors(c))
    held = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        value = tensor.numpy().astype(np.float32)
        heads = {"q_proj": c.num_attention_heads, "k_proj": c.num_key_value_heads}.get(name.split(".")[-2])
        heads = heads if arch == "llama" else None  # the others keep the row order of their checkpoints
        if heads:
            value = permute(value, heads)
        t = kind if value.ndim == 2 else gguf.GGMLQuantizationType.F32
        data = quantize(value, t)
        w.add_tensor(gguf_name(name), data, raw_dtype=t)
        restored = gguf.quants.dequantize(data, t)
        # A packing fault would otherwise only show as "a different model": what is read back must be near.
        assert np.abs(restored - value).max() <= (0.1 if value.ndim == 2 else 0.0) * np.abs(value).max()
        value = restored
        held[name] = torch.from_numpy(np.array(unpermute(value, heads) if heads else value, dtype=np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return held


def make(case: str, out: Path) -> None:
    folder = out / case
    folder.mkdir(parents=True, exist_ok=True)
    model = build(case)
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(3, BASE["vocab_size"], (NUM_IDS,), generator=generator).tolist()
    (folder / "ids.txt").write_text(" ".join(map(str, ids)))
    logits(model, ids).tofile(folder / "expected.f32")
    model.save_pretrained(folder / "hf")
    model.save_pretrained(folder / "sharded", max_shard_size="1MB")
    if case not in GGUF_CASES:
        return
    for type_name in GGUF_TYPES:
        held = write_gguf(model, folder / f"{type_name}.gguf", type_name, family(case).lower())
        twin = build(case)
        twin.load_state_dict(held, strict=False)
        if twin.config.tie_word_embeddings:
            twin.tie_weights()
        logits(twin, ids).tofile(folder / f"expected_{type_name}.f32")


def main(argv: list[str]) -> int:
    if len(argv) < 2:
        print(__doc__)
        return 1
    torch.set_num_threads(1)
    for case in argv[2:] or CASES:
        make(case, Path(argv[1]))
        print(json.dumps({"case": case, "changes": CASES[case]}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
