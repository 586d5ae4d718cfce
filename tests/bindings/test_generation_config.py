"""Sampling defaults that a model brings: generation_config.json, and the option generation_config."""

import json
import shutil

import pytest

from fastllm_core import LLM, InvalidArgumentError, ModelNotFoundError, SamplingParams


@pytest.fixture
def folder(tiny_model, tmp_path):
    """folder(generation config) -> a model folder with it."""

    def make(generation: dict | None, name: str = "model"):
        made = tmp_path / name
        made.mkdir()
        shutil.copy(f"{tiny_model}/config.json", made)
        if generation is not None:
            (made / "generation_config.json").write_text(json.dumps(generation))
        return str(made)

    return make


def load(tiny_options, model: str, **options) -> LLM:
    return LLM(**{**tiny_options, "model": model, **options})


STATED = {
    "temperature": 0.5,
    "top_k": 20,
    "top_p": 0.75,
    "min_p": 0.25,
    "repetition_penalty": 1.5,
    "max_new_tokens": 3,
    "do_sample": True,
    "bos_token_id": 1,
    "eos_token_id": [2, 7],
}


def test_the_model_states_defaults(folder, tiny_options):
    with load(tiny_options, folder(STATED)) as llm:
        params = llm.get_default_sampling_params()
        assert params == SamplingParams(
            temperature=0.5, top_k=20, top_p=0.75, min_p=0.25, repetition_penalty=1.5, max_tokens=3
        )
        assert llm.get_diff_sampling_param() == {
            "temperature": 0.5,
            "top_k": 20,
            "top_p": 0.75,
            "min_p": 0.25,
            "repetition_penalty": 1.5,
            "max_tokens": 3,
        }
        assert llm.info.eos_token_ids == [2, 7]
        # A request that brings none runs with them; what is returned is the caller's to change.
        params.max_tokens = 5
        (output,) = llm.generate([{"prompt_token_ids": [5, 6]}], use_tqdm=False)
        assert len(output.outputs[0].token_ids) <= 3


def test_the_second_end_of_sequence_id_is_a_stop_id(folder, tiny_options):
    greedy = {"temperature": 0.0, "max_new_tokens": 8}
    with load(tiny_options, folder(greedy, "plain")) as llm:
        (free,) = llm.generate([{"prompt_token_ids": [5, 6]}], use_tqdm=False)
        free = free.outputs[0].token_ids
    extra = next(t for t in free if t != 2)
    with load(tiny_options, folder({**greedy, "eos_token_id": [2, extra]})) as llm:
        (output,) = llm.generate([{"prompt_token_ids": [5, 6]}], use_tqdm=False)
        output = output.outputs[0]
        assert list(output.token_ids) == list(free[: free.index(extra) + 1])
        assert (output.finish_reason, output.stop_reason) == ("stop", extra)
        # With "vllm" the end-of-sequence ids count all the same, as there.
    with load(tiny_options, folder({**greedy, "eos_token_id": [2, extra]}, "other"), generation_config="vllm") as llm:
        assert llm.info.eos_token_ids == [2, extra]
        assert llm.get_default_sampling_params() == SamplingParams()
        assert llm.get_diff_sampling_param() == {}


def test_another_folder_takes_the_place_of_the_models(folder, tiny_options, tmp_path):
    other = tmp_path / "defaults"
    other.mkdir()
    (other / "generation_config.json").write_text(json.dumps({"temperature": 0.25, "eos_token_id": 9}))
    with load(tiny_options, folder(STATED), generation_config=str(other)) as llm:
        assert llm.get_diff_sampling_param() == {"temperature": 0.25}
        assert llm.info.eos_token_ids == [2, 9]  # config.json's, then the other file's


def test_no_file_no_defaults(folder, tiny_options):
    with load(tiny_options, folder(None)) as llm:
        assert llm.get_diff_sampling_param() == {}


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ({"top_p": 1.5}, "generation_config.json: top_p: top_p must be in .0, 1., got 1.5"),
        ({"temperature": "hot"}, "generation_config.json: temperature: must be a number, got string"),
        ({"max_new_tokens": 0}, "generation_config.json: max_new_tokens: max_tokens must be at least 1, got 0"),
    ],
)
def test_bad_values_are_named(folder, tiny_options, generation, message):
    with pytest.raises(InvalidArgumentError, match=message):
        load(tiny_options, folder(generation))
    with load(tiny_options, folder(generation, "again"), generation_config="vllm"):
        pass  # nobody asks for them


def test_a_folder_without_the_file_is_an_error(folder, tiny_options, tmp_path):
    with pytest.raises(ModelNotFoundError, match="generation_config must be auto, vllm or a folder with"):
        load(tiny_options, folder(None), generation_config=str(tmp_path))
