"""Public reports of faults in stop handling and UTF-8, tried on the real model; the list with ids is in README.md."""

import json
import pathlib

import pytest

from fastllm_core import LLM, AsyncLLM, InvalidArgumentError, SamplingParams
from fastllm_core.model_path import resolve_model
from fastllm_core.outputs import RequestOutputKind

ABC = "Here is the English alphabet: A B C D"
NUM = "1 2 3 4 5"
EMOJI = "😀😀😀😀😀😀😀😀😀😀😀😀"
SMILE = [10813, 242, 218]  # 😀
OPTIONS = {"max_model_len": 512, "num_gpu_blocks_override": 200}


def greedy(n: int = 20, **more) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=n, **more)


@pytest.fixture(scope="module")
def llm():
    with LLM(model="smollm2", **OPTIONS) as llm:
        yield llm


def one(llm, prompt, params):
    (out,) = llm.generate(prompt, params, use_tqdm=False)
    return out.outputs[0]


@pytest.fixture(autouse=True)
def serves_afterwards(llm):
    yield
    assert one(llm, NUM, greedy()).text == " 6 7 8 9 10 11 12 13"
    assert llm.stats().used_blocks == 0


async def streamed(prompt, params, **options):
    """The outputs of a stream of news."""
    engine = AsyncLLM(**({"model": "smollm2"} | OPTIONS | options))
    try:
        return [o.outputs[0] async for o in engine.generate(prompt, params, output_kind=RequestOutputKind.DELTA)]
    finally:
        engine.shutdown()


@pytest.mark.parametrize("tag", ["A14", "A17"])
async def test_a14_a17_a_stream_shows_nothing_of_a_stop_string_and_is_not_held_up(tag):
    outputs = await streamed(ABC, greedy(stop=["H I J"]))
    assert "".join(o.text for o in outputs) == " E F G "
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == ("stop", "H I J")
    if tag == "A17":
        # Held back is only what may begin the stop string: " H", " I" are the tokens that show nothing new.
        assert sum(not o.text for o in outputs[:-1]) <= 2


def test_a16_the_stop_string_is_left_out_or_included(llm):
    out = one(llm, NUM, greedy(stop=["9"]))
    assert (out.text, out.finish_reason, out.stop_reason) == (" 6 7 8 ", "stop", "9")
    assert one(llm, NUM, greedy(stop=["9"], include_stop_str_in_output=True)).text == " 6 7 8 9"


@pytest.mark.parametrize("stop", [[""], "", ["x", ""]])
def test_a18_an_empty_stop_string_is_refused(llm, stop):
    with pytest.raises(InvalidArgumentError, match=r"stop\[\d\] must not be empty"):
        llm.generate(NUM, greedy(stop=stop), use_tqdm=False)


def test_a19_the_text_of_a_special_token_stops(llm):
    chat = [{"role": "user", "content": "Say only: hi"}]

    def answer(**more):
        (out,) = llm.chat(chat, greedy(60, **more), use_tqdm=False)
        return out.outputs[0]

    eos = answer()
    assert (eos.finish_reason, eos.stop_reason, eos.token_ids[-1]) == ("stop", None, 2)
    by_text = answer(stop=["<|im_end|>"], ignore_eos=True)
    assert (by_text.finish_reason, by_text.stop_reason) == ("stop", "<|im_end|>")
    by_id = answer(stop_token_ids=[2], ignore_eos=True)
    assert (by_id.finish_reason, by_id.stop_reason) == ("stop", 2)
    for out in (by_text, by_id):
        assert (out.text, out.token_ids) == (eos.text, eos.token_ids)
        assert "<|" not in out.text


def test_a20_an_output_that_ends_inside_a_character(llm):
    texts = {}
    for n in (1, 2, 3, 4):
        out = one(llm, EMOJI, greedy(n, ignore_eos=True))
        assert out.token_ids == (SMILE * 2)[:n]  # the model goes on with the same character
        assert out.finish_reason == "length"
        texts[n] = out.text
    assert texts == {1: "\ufffd", 2: "\ufffd", 3: "😀", 4: "😀\ufffd"}


async def test_a22_a_character_of_several_tokens_is_whole_in_a_stream(llm):
    outputs = await streamed(EMOJI, greedy(12, ignore_eos=True))
    assert "".join(o.text for o in outputs) == "😀😀😀😀" == one(llm, EMOJI, greedy(12, ignore_eos=True)).text
    assert not any("\ufffd" in o.text for o in outputs)
    assert [at for o in outputs for at in o.text_offsets] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


@pytest.fixture(scope="module")
def wild_model(tmp_path_factory) -> str:
    """Dummy weights on SmolLM2's vocabulary: near-uniform ids, so bytes that are no text."""
    folder = tmp_path_factory.mktemp("wild")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 49152,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
    }
    (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
    return str(folder)


async def test_a21_odd_bytes_at_high_temperature(wild_model, tokenizer):
    options = {
        "model": wild_model,
        "load_format": "dummy",
        "tokenizer": resolve_model("smollm2"),
        "num_gpu_blocks_override": 900,
    }
    params = [SamplingParams(temperature=2.0, top_k=-1, seed=s, max_tokens=100, ignore_eos=True) for s in range(50)]
    with LLM(**options) as engine:
        whole = [o.outputs[0] for o in engine.generate([NUM] * 50, params, use_tqdm=False)]
    assert any("\ufffd" in out.text for out in whole)
    for out in whole:
        assert len(out.token_ids) == 100
        assert json.loads(json.dumps(out.text).encode()) == out.text
        assert out.text == tokenizer.decode(out.token_ids)
    engine = AsyncLLM(**options)
    try:
        for seed in range(0, 50, 10):
            kind = RequestOutputKind.DELTA
            outputs = [o.outputs[0] async for o in engine.generate(NUM, params[seed], output_kind=kind)]
            assert "".join(o.text for o in outputs) == whole[seed].text
    finally:
        engine.shutdown()


@pytest.fixture(scope="module")
def tokenizer():
    from fastllm_core.tokenizer import load_tokenizer

    return load_tokenizer(resolve_model("smollm2"))


def test_a23_a24_the_bytes_of_tokens_are_their_own(tokenizer):
    ids = [23274, 115, 40993, 179, 120, 248]  # 日本語, by transformers
    table = tokenizer.token_table()
    assert b"".join(table.bytes_of(i) for i in ids) == "日本語".encode()
    assert len({table.bytes_of(i) for i in ids}) == len(ids)  # none is borrowed from a neighbour
    assert tokenizer.decode(ids) == "日本語"
