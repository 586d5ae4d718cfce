"""SamplingParams.n: several outputs of one prompt."""

import pytest
from fastllm_core._C import Engine, EngineConfig, GenerationRequest

from fastllm_core import LLM, InvalidArgumentError, SamplingParams

PROMPT = {"prompt_token_ids": [5, 17, 200, 33, 8]}


@pytest.fixture(scope="module")
def llm(tiny_options):
    with LLM(**tiny_options) as made:
        yield made


def one(llm, params):
    (output,) = llm.generate([PROMPT], params, use_tqdm=False)
    return output


def ids(output):
    return [list(o.token_ids) for o in output.outputs]


def test_outputs_of_a_seed_are_those_of_the_seeds_behind_it(llm):
    together = one(llm, SamplingParams(n=4, seed=7, max_tokens=12, ignore_eos=True))
    assert [o.index for o in together.outputs] == [0, 1, 2, 3]
    assert together.finished
    assert all(o.finish_reason == "length" for o in together.outputs)
    alone = [ids(one(llm, SamplingParams(seed=7 + i, max_tokens=12, ignore_eos=True)))[0] for i in range(4)]
    assert ids(together) == alone
    assert len({tuple(i) for i in alone}) == 4


def test_greedy_outputs_are_all_the_same(llm):
    alone = ids(one(llm, SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)))[0]
    assert ids(one(llm, SamplingParams(n=3, temperature=0.0, max_tokens=8, ignore_eos=True))) == [alone] * 3


def test_outputs_without_a_seed_differ(llm):
    assert len({tuple(i) for i in ids(one(llm, SamplingParams(n=4, max_tokens=12, ignore_eos=True)))}) == 4


def test_outputs_end_on_their_own(llm):
    params = SamplingParams(n=4, seed=7, max_tokens=12, ignore_eos=True)
    second = ids(one(llm, params))[1]
    params.stop_token_ids = [second[3]]
    output = one(llm, params)
    assert output.outputs[1].token_ids == second[:4]
    assert (output.outputs[1].finish_reason, output.outputs[1].stop_reason) == ("stop", second[3])
    others = [o for o in output.outputs if second[3] not in o.token_ids]
    assert others and all(len(o.token_ids) == 12 for o in others)


def test_prompts_with_several_and_with_one_output_run_together(llm):
    params = [SamplingParams(n=n, seed=1, max_tokens=5, ignore_eos=True) for n in (3, 1, 2)]
    outputs = llm.generate([PROMPT] * 3, params, use_tqdm=False)
    assert [len(o.outputs) for o in outputs] == [3, 1, 2]
    assert ids(outputs[0])[:2] == ids(outputs[2])
    assert ids(outputs[0])[:1] == ids(outputs[1])


@pytest.mark.parametrize("caching", [True, False])
def test_outputs_share_the_kv_of_the_prompt(tiny_options, caching):
    # 160 tokens fill 10 blocks, of which 9 are shared; each output has the 10th and one more: 17 of 17 blocks.
    options = {**tiny_options, "num_gpu_blocks_override": 18, "enable_prefix_caching": caching}
    with LLM(**options) as llm:
        params = SamplingParams(n=4, seed=3, max_tokens=16, ignore_eos=True)
        (output,) = llm.generate([{"prompt_token_ids": [i % 300 for i in range(160)]}], params, use_tqdm=False)
        stats = llm.stats()
        assert (stats.steps, stats.preemptions) == (16, 0)  # all four in every step
        assert stats.scheduled_tokens == 160 + 3 * 16 + 4 * 15
        assert output.num_cached_tokens == 0
        assert stats.prefix_hit_tokens == (3 * 144 if caching else 0)


def test_the_engine_gives_each_output_its_index(tiny_options):
    config = EngineConfig(**{k: v for k, v in tiny_options.items() if k != "skip_tokenizer_init"})
    engine = Engine.create(config)
    params = SamplingParams(n=3, seed=1, max_tokens=4, ignore_eos=True)
    handle = engine.submit(GenerationRequest([1, 2, 3], params))
    following = engine.submit(GenerationRequest([1, 2, 3], SamplingParams(max_tokens=1)))
    assert following >= handle + 3  # no handle is an output of another
    tokens, finished = {}, set()
    while len(finished) < 4:
        for delta in engine.drain(60000):
            tokens.setdefault((delta.request_id, delta.index), []).extend(delta.token_ids)
            if delta.finish_reason is not None:
                finished.add((delta.request_id, delta.index))
    assert finished == {(handle, 0), (handle, 1), (handle, 2), (following, 0)}
    assert all(len(tokens[handle, i]) == 4 for i in range(3))
    handle = engine.submit(GenerationRequest([1, 2, 3], SamplingParams(n=3, max_tokens=3000, ignore_eos=True)))
    engine.abort(handle)
    reasons = {}
    while len(reasons) < 3:
        reasons |= {d.index: d.finish_reason for d in engine.drain(60000) if d.finish_reason is not None}
    assert reasons == {0: "abort", 1: "abort", 2: "abort"}
    engine.shutdown()


def test_limits():
    for n in (0, 16385):
        with pytest.raises(InvalidArgumentError, match=rf"n must be in \[1, 16384\], got {n}"):
            SamplingParams(n=n)
    with pytest.raises(InvalidArgumentError, match="best_of=3"):
        SamplingParams(best_of=3)
    assert SamplingParams(n=2, best_of=None) == SamplingParams(n=2)
