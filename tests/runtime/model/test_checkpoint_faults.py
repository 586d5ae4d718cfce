"""Checkpoints that peers load wrongly, by the ids of the project's list of public reports (A64 to A71)."""

import json
import shutil

import gguf
import make_tiny_llama as maker
import numpy as np
import pytest
import torch
from fastllm_core._C._core_testing import LogitProbe
from safetensors.numpy import load_file, save_file

from fastllm_core import FastLLMError, ModelNotFoundError, UnsupportedError

BOUND = 1e-3
IDS = torch.randint(3, maker.BASE["vocab_size"], (40,), generator=torch.Generator().manual_seed(9)).tolist()
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """saved(case) -> (a folder with its checkpoint, transformers' logits)."""
    made: dict = {}

    def save(case: str):
        if case not in made:
            folder = tmp_path_factory.mktemp(case)
            model = maker.build(case)
            model.save_pretrained(folder)
            made[case] = folder, maker.logits(model, IDS)
        return made[case]

    return save


def rewritten(folder, out, change):
    """A copy of the checkpoint whose tensors went through change()."""
    shutil.copytree(folder, out, dirs_exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, out / "model.safetensors")
    return str(out)


@pytest.mark.parametrize("case", ["tied", "qwen3_tied"])
@pytest.mark.parametrize("names", [(EMBED,), (HEAD,), (EMBED, HEAD)])
def test_a_tied_matrix_under_any_of_its_names(saved, tmp_path, case, names):
    """A66: whichever name it was saved under."""
    folder, expected = saved(case)

    def change(tensors):
        matrix = tensors.pop(EMBED)
        tensors.pop(HEAD, None)
        tensors.update({name: matrix.copy() for name in names})

    got = LogitProbe(rewritten(folder, tmp_path, change)).logits(IDS, len(IDS))
    assert np.abs(got - expected).max() <= BOUND


def test_a_tied_checkpoint_with_neither_is_refused(saved, tmp_path):
    folder, _ = saved("tied")
    with pytest.raises(FastLLMError, match=EMBED):
        LogitProbe(rewritten(folder, tmp_path, lambda tensors: tensors.pop(EMBED)))


def test_an_untied_head_is_never_made_up(saved, tmp_path):
    """A66: absent though untied; and a head is no embedding then."""
    folder, _ = saved("plain")
    with pytest.raises(ModelNotFoundError, match=r"lm_head\.weight is missing, and tie_word_embeddings is false"):
        LogitProbe(rewritten(folder, tmp_path / "head", lambda tensors: tensors.pop(HEAD)))
    with pytest.raises(FastLLMError, match=EMBED):
        LogitProbe(rewritten(folder, tmp_path / "embed", lambda tensors: tensors.pop(EMBED)))


@pytest.mark.parametrize(
    ("case", "change", "words"),
    [
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window is true"),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ("plain", {"quantization_config": {"quant_method": "gptq", "bits": 4, "desc_act": True}}, "gptq"),
        ("plain", {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(saved, tmp_path, case, change, words):
    """A69, A70, A71"""
    folder, _ = saved(case)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    if "rope_scaling" in change:
        config.pop("rope_parameters", None)
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(UnsupportedError, match=words):
        LogitProbe(str(tmp_path))


@pytest.mark.parametrize(("window", "loads"), [(64, False), (maker.BASE["max_position_embeddings"], True)])
def test_a_window_in_a_gguf_file_is_not_passed_over(tmp_path, window, loads, monkeypatch):
    """A65: one that the context fits into says nothing."""
    model = maker.build("plain")
    add_vocab_size = gguf.GGUFWriter.add_vocab_size

    def with_window(self, size):
        add_vocab_size(self, size)
        self.add_sliding_window(window)

    monkeypatch.setattr(gguf.GGUFWriter, "add_vocab_size", with_window)
    path = tmp_path / "window.gguf"
    maker.write_gguf(model, path, "F32", "llama")
    if loads:
        got = LogitProbe(str(path)).logits(IDS, len(IDS))
        assert np.abs(got - maker.logits(model, IDS)).max() <= BOUND
    else:
        with pytest.raises(UnsupportedError, match=r"llama\.attention\.sliding_window is 64"):
            LogitProbe(str(path))
