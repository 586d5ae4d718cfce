"""Tiny re-drawn models for check_engine.py, and what transformers computes with them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from redrawn import redraw

VOCAB = 1024
BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_theta": 500000.0,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES = {
    "llama": ("Llama", {}),
    "llama3-d128": ("Llama", {"head_dim": 128, "rope_parameters": LLAMA3}),
    "llama-bias-tied": ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {}),
    "qwen3-d128": ("Qwen3", {"head_dim": 128}),
}
# More heads to a KV head than our decode kernel takes, and as many as another backend may take decodes of.
WIDE = {
    "llama-24x1": ("Llama", {"hidden_size": 384, "num_attention_heads": 24, "num_key_value_heads": 1}),
    "llama-16x1-d128": ("Llama", {"num_attention_heads": 16, "num_key_value_heads": 1, "head_dim": 128}),
}


def root_mean_square(logits: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(logits))))


def make(case: str, folder: Path) -> tuple[list[int], np.ndarray]:
    """Writes the model; token ids and the logits that transformers computes for them in float32."""
    import torch
    import transformers

    family, changes = {**CASES, **WIDE}[case]
    config = getattr(transformers, family + "Config")(**{**BASE, **changes})
    model = getattr(transformers, family + "ForCausalLM")._from_config(config, attn_implementation="eager")
    model = model.eval().float()
    redraw(model, sum(case.encode()))
    if config.tie_word_embeddings:
        model.tie_weights()
    model.save_pretrained(folder)
    ids = torch.randint(3, VOCAB, (150,), generator=torch.Generator().manual_seed(7)).tolist()
    with torch.no_grad():
        return ids, model(torch.tensor([ids])).logits[0].float().numpy()
