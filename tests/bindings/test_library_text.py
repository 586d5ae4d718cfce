"""Generation with a tokenizer whose decoder the engine's table cannot express: its text is made in Python."""

import pytest
from trained_tokenizers import bpe_suffix, wordpiece

from fastllm_core import LLM, AsyncLLM, InvalidArgumentError, SamplingParams
from fastllm_core.library_text import LibraryTextEngine
from fastllm_core.outputs import RequestOutputKind


@pytest.fixture(scope="module")
def kind(tmp_path_factory):
    return bpe_suffix(tmp_path_factory.mktemp("odd") / "tokenizer")


@pytest.fixture(scope="module")
def options(tiny_options, kind, tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("odd-file")
    kind.tokenizer._backend.save(str(folder / "tokenizer.json"))
    return {**tiny_options, "skip_tokenizer_init": False, "tokenizer": str(folder / "tokenizer.json")}


@pytest.fixture(scope="module")
def llm(options):
    with LLM(**options) as llm:
        yield llm


def sampled(seed: int, **more) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=40, ignore_eos=True, **more)


PROMPT = [5, 6]
SEEDS = range(8)


def text_after_prompt(kind, ids) -> str:
    both, before = kind.decode(PROMPT + ids, True), kind.decode(PROMPT, True)
    assert both.startswith(before)
    return both[len(before) :]


def test_text_is_that_of_the_library(llm, kind):
    assert isinstance(llm._engine, LibraryTextEngine)
    outs = llm.generate([PROMPT] * len(SEEDS), [sampled(s) for s in SEEDS], use_tqdm=False)
    for out in outs:
        completion = out.outputs[0]
        # The model's vocabulary is larger than the tokenizer's: ids without text are among the output.
        assert len(completion.token_ids) == len(completion.text_offsets) == 40
        assert completion.text == text_after_prompt(kind, completion.token_ids)
        assert completion.finish_reason == "length"
    assert any(i >= kind.tokenizer.vocab_size for out in outs for i in out.outputs[0].token_ids)


def test_stop_strings_end_the_request_in_the_engine(llm):
    (whole,) = llm.generate(PROMPT, sampled(1), use_tqdm=False)
    text = whole.outputs[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    end = text.index(stop)
    for include in (False, True):
        params = sampled(1, stop=[stop], include_stop_str_in_output=include)
        out = llm.generate([PROMPT] * 3, params, use_tqdm=False)[1].outputs[0]
        assert (out.text, out.finish_reason, out.stop_reason) == (text[:end] + (stop if include else ""), "stop", stop)
        assert out.token_ids == whole.outputs[0].token_ids[: len(out.token_ids)]
        assert len(out.token_ids) < 40
    (again,) = llm.generate(PROMPT, sampled(1), use_tqdm=False)  # nothing of the aborted ones is left over
    assert again.outputs[0].text == text
    assert llm.stats().running == llm.stats().used_blocks == 0


def test_each_of_n_outputs_stops_by_itself(llm):
    (whole,) = llm.generate(PROMPT, sampled(1, n=3), use_tqdm=False)
    text = whole.outputs[1].text
    stop = next(text[i : i + 3] for i in range(4, len(text)) if text[i : i + 3] not in whole.outputs[0].text)
    (out,) = llm.generate(PROMPT, sampled(1, n=3, stop=[stop]), use_tqdm=False)
    for got, full in zip(out.outputs, whole.outputs):
        assert got.text == full.text.split(stop)[0]
        assert got.finish_reason == ("stop" if stop in full.text else "length")
    assert out.outputs[1].stop_reason == stop
    assert out.outputs[0].text == whole.outputs[0].text
    llm.generate(PROMPT, sampled(2), use_tqdm=False)
    assert llm.stats().running == 0


async def test_a_stream_joins_to_the_same_text(options, kind):
    engine = AsyncLLM(**options)
    try:
        for seed in SEEDS:
            kinds = {}
            for output_kind in (RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY):
                stream = engine.generate({"prompt_token_ids": PROMPT}, sampled(seed), output_kind=output_kind)
                outputs = [o.outputs[0] async for o in stream]
                ids = [i for o in outputs for i in o.token_ids]
                kinds[output_kind] = ("".join(o.text for o in outputs), ids, outputs[-1].finish_reason)
            assert kinds[RequestOutputKind.DELTA] == kinds[RequestOutputKind.FINAL_ONLY]
            assert kinds[RequestOutputKind.DELTA][0] == text_after_prompt(kind, ids)
    finally:
        engine.shutdown()


def test_refusals_are_the_engine_s(llm):
    with pytest.raises(InvalidArgumentError, match=r"stop\[1\] must not be empty"):
        llm.generate(PROMPT, sampled(1, stop=["a", ""]), use_tqdm=False)
    with pytest.raises(InvalidArgumentError, match="stop strings need detokenize"):
        llm.generate(PROMPT, sampled(1, stop=["a"], detokenize=False), use_tqdm=False)
    (out,) = llm.generate(PROMPT, sampled(1, detokenize=False), use_tqdm=False)
    assert (out.outputs[0].text, out.outputs[0].text_offsets) == ("", [])


def test_wordpiece_is_made_by_the_engine(tiny_options, tmp_path):
    kind = wordpiece(tmp_path / "tokenizer")
    path = str(tmp_path / "tokenizer" / "tokenizer.json")
    with LLM(**{**tiny_options, "skip_tokenizer_init": False, "tokenizer": path}) as llm:
        assert not isinstance(llm._engine, LibraryTextEngine)
        params = [sampled(s, stop=["x"]) for s in SEEDS]
        for out in llm.generate([PROMPT] * len(SEEDS), params, use_tqdm=False):
            text = text_after_prompt(kind, out.outputs[0].token_ids)
            assert out.outputs[0].text == text.split("x")[0]
            assert (out.outputs[0].stop_reason == "x") == ("x" in text)
