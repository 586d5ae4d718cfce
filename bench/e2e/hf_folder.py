"""Writes a Hugging Face folder of float32 weights from a Llama GGUF, so that transformers runs the very same model."""

from __future__ import annotations

import json
from pathlib import Path

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def hf_name(gguf_name: str) -> str | None:
    """blk.3.attn_q.weight → model.layers.3.self_attn.q_proj.weight; None for tensors that transformers computes."""
    parts = gguf_name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.{parts[3]}"
    return f"{TOP_NAMES[parts[0]]}.{parts[1]}" if parts[0] in TOP_NAMES else None


def config_of(fields: dict, tied: bool) -> dict:
    """config.json of a LlamaForCausalLM from GGUF metadata."""
    heads = int(fields["llama.attention.head_count"])
    hidden = int(fields["llama.embedding_length"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": int(fields["llama.feed_forward_length"]),
        "num_hidden_layers": int(fields["llama.block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(fields["llama.attention.head_count_kv"]),
        "head_dim": hidden // heads,
        "vocab_size": int(fields["llama.vocab_size"]),
        "max_position_embeddings": int(fields["llama.context_length"]),
        "rms_norm_eps": float(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(fields["llama.rope.freq_base"])},
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
        "bos_token_id": int(fields["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(fields["tokenizer.ggml.eos_token_id"]),
        "dtype": "float32",
    }


def halves_from_pairs(weight, heads: int):
    """Undoes the row order of GGUF's q and k: rotary pairs are neighbours there, half a head apart in transformers."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def make(gguf_path: Path, folder: Path) -> Path:
    """Fills `folder` once; later calls find it complete."""
    if (folder / "config.json").is_file():
        return folder
    import gguf
    import numpy as np
    from safetensors.numpy import save_file

    reader = gguf.GGUFReader(gguf_path)
    fields = {
        name: f.contents() for name, f in reader.fields.items() if name.startswith(("llama.", "tokenizer.ggml.b"))
    }
    fields["tokenizer.ggml.eos_token_id"] = reader.fields["tokenizer.ggml.eos_token_id"].contents()
    heads = {"attn_q": fields["llama.attention.head_count"], "attn_k": fields["llama.attention.head_count_kv"]}
    tensors = {}
    for tensor in reader.tensors:
        name = hf_name(tensor.name)
        if name is None:
            continue
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        kind = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
        if kind in heads and tensor.name.endswith("weight"):
            weight = halves_from_pairs(weight, int(heads[kind]))
        tensors[name] = np.ascontiguousarray(weight)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = config_of(fields, tied="lm_head.weight" not in tensors)
    # The config last: its presence says that the folder is complete.
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder
