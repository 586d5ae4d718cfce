"""Weights of tiny test models, drawn anew."""

from __future__ import annotations


def redraw(model, seed: int) -> None:
    """Norms 1 + 0.3 N, biases 0.3 N, matrices scaled so that hidden states stay near 1. `model`: a torch module."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        r = torch.randn(p.shape, generator=generator)
        if "norm" in name:
            p.data.copy_(1 + 0.3 * r)
        elif p.ndim == 1:
            p.data.copy_(0.3 * r)
        else:
            p.data.copy_(r * (1.0 if "embed" in name else 1.2 / p.shape[1] ** 0.5))
