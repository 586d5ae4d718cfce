"""Shared pieces of the binding tests."""

import pathlib
import shutil

import pytest
from smollm2_support import smollm2_gguf


@pytest.fixture(scope="session")
def smollm2() -> str:
    return smollm2_gguf()


@pytest.fixture(scope="session")
def tokenizer(smollm2):
    from fastllm_core.tokenizer import load_tokenizer

    return load_tokenizer(smollm2)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> str:
    """A folder with the config.json of a 0.1 M parameter Llama, for load_format="dummy"."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    shutil.copy(pathlib.Path(__file__).parents[1] / "tiny_llama.json", folder / "config.json")
    return str(folder)


@pytest.fixture(scope="session")
def tiny_options(tiny_model) -> dict:
    return {
        "model": tiny_model,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "num_gpu_blocks_override": 400,
        "cpu_threads": 1,
    }
