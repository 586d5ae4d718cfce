"""Shared pieces of the end-to-end tests: the real model, its goldens, and engines made once per configuration."""

import json

import pytest

from fastllm_core import LLM


@pytest.fixture(scope="module")
def make_llm():
    """make_llm(**options) -> LLM on SmolLM2, cached per module and shut down at its end."""
    made: dict[str, LLM] = {}

    def make(**options) -> LLM:
        key = json.dumps(options, sort_keys=True)
        if key not in made:
            made[key] = LLM(model="smollm2", **options)
        return made[key]

    yield make
    for llm in made.values():
        llm.shutdown()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> str:
    """A folder with the config.json of a 0.2 M parameter Llama, for load_format="dummy"."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)
