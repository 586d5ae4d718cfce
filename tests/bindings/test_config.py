"""SamplingParams and EngineConfig through the field visitor."""

import copy
import pickle

import pytest

from fastllm_core import EngineConfig, InvalidArgumentError, SamplingParams, UnknownOptionError


def test_defaults_are_those_of_the_field_list():
    p = SamplingParams()
    assert (p.temperature, p.top_p, p.top_k, p.min_p, p.seed, p.max_tokens) == (1.0, 1.0, 0, 0.0, None, 16)
    assert (p.stop, p.stop_token_ids, p.ignore_eos, p.detokenize) == ([], [], False, True)
    assert {f.name: f.default for f in SamplingParams.fields()} == p.to_dict()


def test_values_come_back():
    p = SamplingParams(temperature=0.9, top_p=0.95, top_k=50, seed=2**63 - 1, max_tokens=None, stop=["a", "é"])
    assert p.temperature == 0.9  # not the float32 neighbour 0.8999999761581421
    assert (p.top_p, p.top_k, p.seed, p.max_tokens, p.stop) == (0.95, 50, 2**63 - 1, None, ["a", "é"])


def test_one_stop_string_is_a_list_of_one():
    assert SamplingParams(stop="\n").stop == ["\n"]


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p)), lambda p: p.clone()]
)
def test_copies_are_equal_and_apart(again):
    p = SamplingParams(temperature=0.5, stop=["x"], stop_token_ids=[1, 2], seed=7)
    q = again(p)
    assert q == p
    q.temperature = 0.6
    assert q != p
    assert p.temperature == 0.5


def test_engine_config_round_trip():
    c = EngineConfig(model="m.gguf", block_size=32, max_model_len=100, enable_prefix_caching=False)
    assert EngineConfig.from_dict(c.to_dict()) == c
    assert pickle.loads(pickle.dumps(c)) == c
    assert (c.block_size, c.max_model_len, c.enable_prefix_caching, c.max_num_seqs) == (32, 100, False, None)


def test_repr_shows_what_differs_from_the_defaults():
    assert repr(SamplingParams()) == "SamplingParams()"
    assert repr(SamplingParams(temperature=0.0, stop="x")) == "SamplingParams(temperature=0.0, stop=['x'])"
    assert eval(repr(SamplingParams(top_k=3))) == SamplingParams(top_k=3)
    assert repr(EngineConfig(distributed_token="between us")) == "EngineConfig(distributed_token='***')"


def test_no_hash_because_values_change():
    with pytest.raises(TypeError, match="unhashable"):
        hash(SamplingParams())


@pytest.mark.parametrize(
    ("cls", "wrong", "near"),
    [(SamplingParams, "temprature", "temperature"), (EngineConfig, "max_num_seq", "max_num_seqs")],
)
def test_unknown_keyword_names_the_nearest(cls, wrong, near):
    with pytest.raises(UnknownOptionError, match=f"{wrong}.*{near}") as e:
        cls(**{wrong: 1})
    assert isinstance(e.value, (TypeError, ValueError))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_k", 1.5),
        ("top_k", 2**31),
        ("seed", 2**63),
        ("stop", [1, "a"]),
        ("stop", {"a"}),
        ("stop_token_ids", [-1]),
        ("ignore_eos", "yes"),
        ("max_tokens", 0),
    ],
)
def test_wrong_values_name_the_field_and_change_nothing(name, value):
    p = SamplingParams()
    with pytest.raises(InvalidArgumentError, match=name):
        setattr(p, name, value)
    assert p == SamplingParams()


def test_numbers_of_numpy():
    import numpy as np

    p = SamplingParams(temperature=np.float32(0.5), top_k=np.int64(4), stop_token_ids=[np.int32(3)])
    assert (p.temperature, p.top_k, p.stop_token_ids) == (0.5, 4, [3])


def test_field_descriptions_make_flags():
    by_name = {f.name: f for f in EngineConfig.fields()}
    assert by_name["block_size"].type == "int32"
    assert by_name["load_format"].choices == ["auto", "gguf", "safetensors", "dummy"]
    assert by_name["max_num_seqs"].optional
    assert by_name["block_size"].parse("32") == 32
    assert by_name["enable_prefix_caching"].parse("no") is False
    assert all(f.help.endswith(".") for f in by_name.values())


def test_vllm_keywords_may_state_what_is_the_case():
    assert SamplingParams(n=1, structured_outputs=None, logits_processors=None) == SamplingParams()
    with pytest.raises(InvalidArgumentError, match="structured_outputs"):
        SamplingParams(structured_outputs={"json": {}})
