"""Bad requests are refused with the value and the limit; the others go on."""

import math

import pytest
from smollm2_support import greedy, ids_of

import fastllm_core
from fastllm_core import LLM, SamplingParams

PROMPT = [504, 3575, 282, 4649, 314]  # "The capital of France is"
PARIS = [7042, 30, 198]


@pytest.fixture(scope="module")
def llm(make_llm) -> LLM:
    return make_llm(max_model_len=64, num_gpu_blocks_override=4)  # a pool of 48 tokens


def refused(llm: LLM, prompt, params, *words: str) -> None:
    """generate() raises a ValueError that holds every word, and the engine still answers."""
    with pytest.raises(ValueError) as error:
        llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    for word in words:
        assert word in str(error.value), str(error.value)
    assert ids_of(llm, [PROMPT], greedy(3)) == [PARIS]
    assert llm.stats().used_blocks == 0


def test_empty_prompt(llm):
    refused(llm, [], greedy(4), "prompt", "at least 1", "0")


@pytest.mark.parametrize("token", [49152, -1, 2**31 - 1])
def test_id_out_of_vocabulary(llm, token):
    refused(llm, [504, token], greedy(4), str(token), "[0, 49151]")


@pytest.mark.parametrize("token", [2**63, 1.5, "7", None])
def test_id_that_is_no_id(llm, token):
    with pytest.raises((ValueError, TypeError)):
        llm.generate([{"prompt_token_ids": [504, token]}], greedy(4), use_tqdm=False)
    assert ids_of(llm, [PROMPT], greedy(3)) == [PARIS]


def test_longer_than_context(llm):
    refused(llm, [504] * 65, greedy(4), "65", "64")


def test_longer_than_pool(llm):
    refused(llm, [504] * 60, greedy(4), "60", "48")


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_max_tokens(max_tokens):
    with pytest.raises(ValueError, match=f"max_tokens.*{max_tokens}"):
        SamplingParams(max_tokens=max_tokens)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", -0.1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_p", math.nan),
        ("top_k", -2),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", math.nan),
        ("min_tokens", -1),
        ("stop_token_ids", [-5]),
    ],
)
def test_sampling_values(field, value):
    with pytest.raises(ValueError, match=field):
        SamplingParams(**{field: value})


def test_unknown_sampling_field_names_the_nearest():
    with pytest.raises((TypeError, ValueError), match="temperature"):
        SamplingParams(temprature=0.5)


def test_unknown_engine_field_names_the_nearest():
    with pytest.raises((TypeError, ValueError), match="max_num_seqs"):
        LLM(model="smollm2", max_num_seq=4)


def test_one_bad_prompt_of_a_batch_stops_nothing_else(llm):
    with pytest.raises(ValueError, match="1"):
        llm.generate([{"prompt_token_ids": PROMPT}, {"prompt_token_ids": []}], greedy(3), use_tqdm=False)
    assert ids_of(llm, [PROMPT], greedy(3)) == [PARIS]
    assert llm.stats().used_blocks == 0


def test_max_tokens_is_cut_at_the_pool(llm):
    """Room for 48 tokens: a request for 100 runs to the end of the pool and says length."""
    (out,) = llm.generate([{"prompt_token_ids": PROMPT}], greedy(100), use_tqdm=False)
    assert len(out.outputs[0].token_ids) == 48 - len(PROMPT)
    assert out.outputs[0].finish_reason == "length"


def test_missing_model():
    with pytest.raises(FileNotFoundError, match="no-such-model"):
        LLM(model="/no-such-model.gguf")


def test_unknown_architecture(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["NoSuchForCausalLM"], "model_type": "nosuch"}')
    with pytest.raises(fastllm_core.FastLLMError, match="NoSuchForCausalLM"):
        LLM(model=str(tmp_path), load_format="dummy", skip_tokenizer_init=True)
