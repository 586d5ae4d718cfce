"""SamplingParams.n: several outputs of one prompt."""

import asyncio

import pytest
from fastllm_core._C import Engine, EngineConfig, GenerationRequest

from fastllm_core import LLM, AsyncLLM, BeamSearchParams, InvalidArgumentError, RequestOutputKind, SamplingParams

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
    # 160 tokens fill 10 blocks, which are shared; each output has one more: 14 of 14 blocks.
    options = {**tiny_options, "num_gpu_blocks_override": 15, "enable_prefix_caching": caching}
    with LLM(**options) as llm:
        params = SamplingParams(n=4, seed=3, max_tokens=16, ignore_eos=True)
        (output,) = llm.generate([{"prompt_token_ids": [i % 300 for i in range(160)]}], params, use_tqdm=False)
        stats = llm.stats()
        assert (stats.steps, stats.preemptions) == (16, 0)  # all four in every step
        assert stats.scheduled_tokens == 160 + 3 + 4 * 15
        assert output.num_cached_tokens == 0
        assert stats.prefix_hit_tokens == (3 * 159 if caching else 0)


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


def run_async(tiny_options, work):
    """Runs work(llm) on an AsyncLLM."""

    async def main():
        llm = AsyncLLM(**tiny_options)
        try:
            return await work(llm)
        finally:
            llm.shutdown()

    return asyncio.run(main())


@pytest.mark.parametrize("kind", list(RequestOutputKind))
def test_a_stream_has_all_outputs(llm, tiny_options, kind):
    params = SamplingParams(n=3, seed=7, max_tokens=12, ignore_eos=True, logprobs=1, prompt_logprobs=0)
    want = one(llm, params)

    async def work(llm):
        tokens, logprobs, finished, prompt = {0: [], 1: [], 2: []}, {0: [], 1: [], 2: []}, {}, []
        async for output in llm.generate(PROMPT, params, output_kind=kind):
            assert [o.index for o in output.outputs] == sorted(o.index for o in output.outputs)
            for o in output.outputs:
                assert o.index not in finished  # nothing comes after an output's end
                replace = kind is not RequestOutputKind.DELTA
                tokens[o.index] = o.token_ids if replace else tokens[o.index] + o.token_ids
                logprobs[o.index] = o.logprobs if replace else logprobs[o.index] + o.logprobs
                if o.finish_reason is not None:
                    finished[o.index] = o.finish_reason
            if output.prompt_logprobs is not None:
                prompt.append(output.prompt_logprobs)
            assert output.finished == (len(finished) == 3)
            if kind is RequestOutputKind.FINAL_ONLY:
                assert output.finished and len(output.outputs) == 3
        assert finished == {0: "length", 1: "length", 2: "length"}
        assert kind is RequestOutputKind.CUMULATIVE or len(prompt) == 1
        assert prompt[-1] == want.prompt_logprobs
        return [tokens[i] for i in range(3)], [logprobs[i] for i in range(3)]

    tokens, logprobs = run_async(tiny_options, work)
    assert tokens == ids(want)
    assert [[list(p) for p in ps] for ps in logprobs] == [[list(p) for p in o.logprobs] for o in want.outputs]


def test_closing_a_stream_ends_all_outputs(tiny_options):
    params = SamplingParams(n=3, max_tokens=3000, ignore_eos=True)

    async def work(llm):
        stream = llm.generate(PROMPT, params, output_kind=RequestOutputKind.DELTA)
        await anext(stream)
        await stream.aclose()  # what a client that goes away comes to
        # The next request runs behind the aborts: when it ends, they are through.
        async for output in llm.generate(PROMPT, SamplingParams(max_tokens=1)):
            last = output
        assert last.finished
        stats = llm.stats()
        assert (stats.running, stats.waiting, stats.used_blocks, stats.finished_requests) == (0, 0, 0, 4)

    run_async(tiny_options, work)


def test_abort_ends_all_outputs(tiny_options):
    params = SamplingParams(n=3, max_tokens=3000, ignore_eos=True)

    async def work(llm):
        reasons = {}
        async for output in llm.generate(PROMPT, params, "mine", output_kind=RequestOutputKind.DELTA):
            reasons |= {o.index: o.finish_reason for o in output.outputs if o.finish_reason}
            await llm.abort("mine")
        assert reasons == {0: "abort", 1: "abort", 2: "abort"}

    run_async(tiny_options, work)


def test_beam_search_for_asyncio(llm, tiny_options):
    params = BeamSearchParams(3, 5, ignore_eos=True)
    (want,) = llm.beam_search(PROMPT, params)

    async def work(llm):
        return await asyncio.gather(llm.beam_search(PROMPT, params), llm.beam_search([5, 6], params))

    found, other = run_async(tiny_options, work)
    assert [b.tokens for b in found.sequences] == [b.tokens for b in want.sequences]
    assert [b.cum_logprob for b in found.sequences] == pytest.approx([b.cum_logprob for b in want.sequences], abs=1e-4)
    assert [b.tokens for b in other.sequences] == [b.tokens for b in llm.beam_search([5, 6], params)[0].sequences]
