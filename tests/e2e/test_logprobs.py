"""Log probabilities in vLLM's shapes, against transformers' recorded logits and against themselves."""

import math
import pathlib

import pytest
from smollm2_support import EXACT, greedy

from fastllm_core import LLM, AsyncLLM, RequestOutputKind, SamplingParams

OPTIONS = {"max_num_seqs": 16, "batch_invariant": True}


def run(llm, prompt, params):
    return llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)[0]


def test_shapes_and_values(make_llm, golden):
    llm = make_llm(**OPTIONS)
    prompt = golden[0]["prompt_ids"]
    for count in (0, 1, 5):
        completion = run(llm, prompt, greedy(6, logprobs=count)).outputs[0]
        assert len(completion.logprobs) == 6
        for token, position in zip(completion.token_ids, completion.logprobs):
            assert next(iter(position)) == token, "the sampled token comes first"
            assert len(position) == max(count, 1)  # greedy: it is also the first of the top
            assert position[token].rank == 1
            assert position[token].logprob == max(e.logprob for e in position.values())
            assert sorted(e.rank for e in position.values()) == list(range(1, max(count, 1) + 1))
            assert position[token].decoded_token == llm.get_tokenizer().token_text(token)
        total = sum(p[t].logprob for t, p in zip(completion.token_ids, completion.logprobs))
        assert completion.cumulative_logprob == pytest.approx(total, abs=1e-6)
    bare = run(llm, prompt, greedy(6))
    assert (bare.outputs[0].logprobs, bare.outputs[0].cumulative_logprob, bare.prompt_logprobs) == (None, None, None)


def test_a_token_that_was_not_the_likeliest_is_one_more(make_llm, golden):
    llm = make_llm(**OPTIONS)
    params = SamplingParams(temperature=2.0, seed=11, max_tokens=16, ignore_eos=True, logprobs=2)
    completion = run(llm, golden[0]["prompt_ids"], params).outputs[0]
    ranks = [p[t].rank for t, p in zip(completion.token_ids, completion.logprobs)]
    assert max(ranks) > 2
    for rank, position in zip(ranks, completion.logprobs):
        assert len(position) == (2 if rank <= 2 else 3)
        assert all(e.logprob <= 0 for e in position.values())


def test_whole_vocabulary_sums_to_one(make_llm, golden):
    llm = make_llm(**OPTIONS, max_logprobs=-1)
    out = run(llm, golden[0]["prompt_ids"][:5], greedy(1, logprobs=-1, prompt_logprobs=-1))
    size = llm.info.vocab_size
    for position in [*out.outputs[0].logprobs, *out.prompt_logprobs[1:]]:
        assert len(position) == size
        assert math.fsum(math.exp(e.logprob) for e in position.values()) == pytest.approx(1.0, abs=1e-5)


def test_logprob_token_ids(make_llm, golden):
    llm = make_llm(**OPTIONS, max_logprobs=-1)
    prompt = golden[0]["prompt_ids"]
    full = run(llm, prompt, greedy(3, logprobs=-1)).outputs[0]
    some = run(llm, prompt, greedy(3, logprob_token_ids=[7, 300, 7])).outputs[0]
    for token, whole, few in zip(some.token_ids, full.logprobs, some.logprobs):
        assert list(few) == [token, 7, 300]
        assert few[7].rank is None
        for t in few:
            assert few[t].logprob == pytest.approx(whole[t].logprob, abs=1e-6)


def test_prompt_logprobs_are_the_next_tokens_and_do_not_read_the_cache(make_llm, golden):
    """A01 and A11: the same request again gives the same numbers, however much of its prompt is cached."""
    llm = make_llm(**OPTIONS)
    prompt = golden[1]["prompt_ids"][:60]
    first = run(llm, prompt, greedy(4, prompt_logprobs=3, logprobs=3))
    assert first.prompt_logprobs[0] is None
    assert len(first.prompt_logprobs) == len(prompt)
    for token, position in zip(prompt[1:], first.prompt_logprobs[1:]):
        assert next(iter(position)) == token
        assert len(position) == (3 if position[token].rank <= 3 else 4)
    again = run(llm, prompt, greedy(4, prompt_logprobs=3, logprobs=3))
    assert again.num_cached_tokens == 0
    assert again.prompt_logprobs == first.prompt_logprobs
    cached = run(llm, prompt, greedy(4, logprobs=3))
    assert cached.num_cached_tokens > 0
    assert cached.outputs[0].token_ids == first.outputs[0].token_ids
    for a, b in zip(cached.outputs[0].logprobs, first.outputs[0].logprobs):
        assert {t: e.logprob for t, e in a.items()} == pytest.approx({t: e.logprob for t, e in b.items()}, abs=1e-4)


def test_prompt_logprobs_equal_the_output_logprobs_of_the_same_tokens(make_llm, golden):
    """What was generated, given as a prompt, has the same logprobs: exactly the float that is the maximum."""
    llm = make_llm(**OPTIONS)
    prompt = golden[0]["prompt_ids"]
    out = run(llm, prompt, greedy(8, logprobs=1)).outputs[0]
    echo = run(llm, prompt + out.token_ids, greedy(1, prompt_logprobs=1, logprobs=1))
    for token, made, read in zip(out.token_ids, out.logprobs, echo.prompt_logprobs[len(prompt) :]):
        assert read[token].rank == 1
        assert read[token].logprob == max(e.logprob for e in read.values())
        assert read[token].logprob == pytest.approx(made[token].logprob, abs=1e-4)


@pytest.mark.parametrize("chunk", [7, 64])
def test_prompt_logprobs_do_not_depend_on_chunks(make_llm, golden, chunk):
    prompt = golden[1]["prompt_ids"][:50]
    whole = run(make_llm(**OPTIONS), prompt, greedy(1, prompt_logprobs=2))
    cut = run(
        make_llm(**{**OPTIONS, "max_num_seqs": 4}, max_num_batched_tokens=chunk), prompt, greedy(1, prompt_logprobs=2)
    )
    for a, b in zip(whole.prompt_logprobs[1:], cut.prompt_logprobs[1:]):
        assert {t: e.logprob for t, e in a.items()} == pytest.approx({t: e.logprob for t, e in b.items()}, abs=1e-4)


def test_raw_values_are_those_of_transformers(make_llm, golden):
    """The five best of the first steps, in float32; logprobs by the sum that transformers had."""
    logits = make_llm(**OPTIONS, **EXACT, logprobs_mode="raw_logits")
    logprobs = make_llm(**OPTIONS, **EXACT)
    for case in golden[:4]:
        want = case["hf_fp32"]["top5"][:3]
        out = run(logits, case["prompt_ids"], greedy(3, logprobs=5)).outputs[0]
        assert out.token_ids == case["hf_fp32"]["ids"][:3]
        for position, top in zip(out.logprobs, want):
            assert {t: e.logprob for t, e in position.items()} == pytest.approx(dict(top), abs=5e-3)
        total = case["hf_fp32"]["first_step_logits_stats"]["logsumexp"]
        first = run(logprobs, case["prompt_ids"], greedy(1, logprobs=5)).outputs[0].logprobs[0]
        assert {t: e.logprob for t, e in first.items()} == pytest.approx({t: v - total for t, v in want[0]}, abs=5e-3)


def test_pieces_of_characters_are_their_own(make_llm):
    """A23, A24: each entry is its own token; the bytes of the output's tokens are the text's."""
    llm = make_llm(**OPTIONS)
    tokenizer = llm.get_tokenizer()
    wanted = "😀日本語"
    forced = tokenizer.encode(wanted, add_special_tokens=False)
    produced = []
    for token in forced:
        out = run(llm, [1, 300, *produced], greedy(1, allowed_token_ids=[token], logprobs=4)).outputs[0]
        assert out.token_ids == [token]
        produced += out.token_ids
        for t, entry in out.logprobs[0].items():
            assert entry.decoded_token == tokenizer.token_bytes(t).decode("utf-8", errors="replace")
    assert b"".join(tokenizer.token_bytes(t) for t in produced).decode() == wanted


def test_special_tokens_among_the_alternatives(make_llm, golden):
    """A46: they have a text of their own like any other."""
    llm = make_llm(**OPTIONS, logprobs_mode="processed_logprobs")
    params = greedy(2, logprobs=4, allowed_token_ids=[0, 1, 2, 500])
    for position in run(llm, golden[0]["prompt_ids"], params).outputs[0].logprobs:
        assert set(position) == {0, 1, 2, 500}
        assert all(e.decoded_token for e in position.values())


def test_limits(make_llm, golden):
    """A84: what would take prompt x vocabulary is refused by name unless the engine was told to allow it."""
    llm = make_llm(**OPTIONS)
    prompt = golden[0]["prompt_ids"]
    for options, message in [
        ({"logprobs": 21}, r"logprobs must be at most max_logprobs \(20\), got 21"),
        ({"prompt_logprobs": -1}, "got -1, the whole vocabulary"),
        ({"prompt_logprobs": 10**6}, "prompt_logprobs must be at most max_logprobs"),
        ({"logprobs": -2}, "logprobs must be at least -1, got -2"),
        ({"logprob_token_ids": [1] * 129}, "logprob_token_ids must hold at most 128"),
    ]:
        with pytest.raises(ValueError, match=message):
            run(llm, prompt, SamplingParams(**options))
    assert len(run(llm, prompt, greedy(1, logprobs=20)).outputs[0].logprobs[0]) == 20


def peak_kib() -> int:
    status = pathlib.Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def test_long_prompts_take_bounded_memory(tmp_path, tiny_model):
    """A13: four prompts of 2,000 tokens, 20 logprobs each; all logits at once would be 1.6 GB."""
    import json

    config = json.loads((pathlib.Path(tiny_model) / "config.json").read_text())
    config.update(vocab_size=50000, max_position_embeddings=2100)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with LLM(
        str(tmp_path), load_format="dummy", skip_tokenizer_init=True, num_gpu_blocks_override=600, max_num_seqs=4
    ) as llm:
        prompts = [{"prompt_token_ids": [(i * 37 + k * 101) % 50000 for i in range(2000)]} for k in range(4)]
        llm.generate(prompts[0], SamplingParams(max_tokens=1), use_tqdm=False)
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        before = peak_kib()
        outputs = llm.generate(prompts, SamplingParams(max_tokens=1, prompt_logprobs=20), use_tqdm=False)
        assert all(len(o.prompt_logprobs) == 2000 for o in outputs)
        assert peak_kib() - before < 300 * 1024


@pytest.mark.parametrize("kind", list(RequestOutputKind))
async def test_streams_hold_what_the_whole_holds(make_llm, golden, kind):
    prompt = golden[0]["prompt_ids"]
    options = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True, "logprobs": 2, "prompt_logprobs": 1}
    whole = run(make_llm(**OPTIONS), prompt, SamplingParams(**options))
    params = SamplingParams(**options, output_kind=kind)
    assert params.output_kind is kind
    llm = AsyncLLM(model="smollm2", **OPTIONS)
    try:
        outputs = [o async for o in llm.generate({"prompt_token_ids": prompt}, params)]
    finally:
        llm.shutdown()
    if kind is RequestOutputKind.DELTA:
        logprobs = [p for o in outputs for p in o.outputs[0].logprobs]
        assert [o.prompt_logprobs is not None for o in outputs] == [True] + [False] * (len(outputs) - 1)
    else:
        logprobs = outputs[-1].outputs[0].logprobs
        assert outputs[-1].prompt_logprobs == whole.prompt_logprobs
    assert kind is not RequestOutputKind.FINAL_ONLY or len(outputs) == 1
    assert logprobs == whole.outputs[0].logprobs
    assert outputs[-1].outputs[0].cumulative_logprob == pytest.approx(whole.outputs[0].cumulative_logprob)
