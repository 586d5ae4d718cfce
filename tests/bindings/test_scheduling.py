"""Priorities, time limits and a full queue, from Python."""

import asyncio

import pytest

from fastllm_core import (
    LLM,
    AsyncLLM,
    InvalidArgumentError,
    QueueFullError,
    QueueTimeoutError,
    RequestTimeoutError,
    ResourceExhaustedError,
    SamplingParams,
)

LONG = SamplingParams(max_tokens=4000, ignore_eos=True, detokenize=False)
SHORT = SamplingParams(max_tokens=2, ignore_eos=True, detokenize=False)


async def consume(llm, **options):
    async for out in llm.generate({"prompt_token_ids": [5, 6, 7]}, **options):
        last = out
    return last


async def until(llm, what: str, count: int):
    """Lets the event loop turn until the engine's statistics say so."""
    while getattr(llm.stats(), what) < count:
        await asyncio.sleep(0)


def test_priority_decides_who_is_admitted_first(tiny_options):
    async def run():
        llm = AsyncLLM(**tiny_options, scheduling_policy="priority", max_num_seqs=1)
        try:
            await llm.pause_generation(mode="keep")
            tasks = [
                asyncio.create_task(consume(llm, sampling_params=SHORT, request_id=str(p), priority=p))
                for p in (3, -2, 0)
            ]
            await until(llm, "waiting_paused", 3)
            await llm.resume_generation()
            outs = await asyncio.gather(*tasks)
        finally:
            llm.shutdown()
        return sorted(outs, key=lambda o: o.metrics.scheduled_ts)

    assert [o.request_id for o in asyncio.run(run())] == ["-2", "0", "3"]


def test_priorities_of_a_batch(tiny_options):
    with LLM(**tiny_options, scheduling_policy="priority", max_num_seqs=1) as llm:
        prompts = [{"prompt_token_ids": [5, n]} for n in range(3)]
        outs = llm.generate(prompts, SHORT, use_tqdm=False, priority=[2, 1, 0])
        assert [len(o.outputs[0].token_ids) for o in outs] == [2, 2, 2]
        with pytest.raises(InvalidArgumentError, match="2 priorities for 3 prompts"):
            llm.generate(prompts, SHORT, use_tqdm=False, priority=[2, 1])
        with pytest.raises(TypeError, match="prompt 1: priority must be an int or None, got str"):
            llm.generate(prompts, SHORT, use_tqdm=False, priority=[2, "1", 0])
        with pytest.raises(InvalidArgumentError, match=r"priority must be in \[-2147483648, 2147483647\]"):
            llm.generate(prompts, SHORT, use_tqdm=False, priority=2**40)


def test_fcfs_refuses_priorities_that_it_would_ignore(tiny_options):
    with LLM(**tiny_options) as llm:
        with pytest.raises(InvalidArgumentError, match="prompt 0: priority must be 0 with scheduling_policy 'fcfs'"):
            llm.generate([[1, 2]], SHORT, use_tqdm=False, priority=1)
        assert llm.generate([[1, 2]], SHORT, use_tqdm=False, priority=0)[0].finished


def test_time_limits(tiny_options):
    async def run():
        llm = AsyncLLM(**tiny_options, max_num_seqs=1)
        try:
            with pytest.raises(RequestTimeoutError, match=r"not finished after \d+ ms \(limit 20 ms\)") as caught:
                await consume(llm, sampling_params=LONG, timeout_ms=20)
            assert isinstance(caught.value, TimeoutError)
            blocker = asyncio.create_task(consume(llm, sampling_params=LONG))
            await until(llm, "running", 1)
            with pytest.raises(QueueTimeoutError, match=r"still queued after \d+ ms \(limit 5 ms\)") as caught:
                await consume(llm, sampling_params=SHORT, max_queue_time_ms=5)
            assert isinstance(caught.value, ResourceExhaustedError)
            assert not blocker.done()
            blocker.cancel()
            assert (await consume(llm, sampling_params=SHORT, timeout_ms=60000, max_queue_time_ms=60000)).finished
            with pytest.raises(InvalidArgumentError, match=r"timeout_ms must be in \[0, 31536000000\], got -1"):
                await consume(llm, sampling_params=SHORT, timeout_ms=-1)
        finally:
            llm.shutdown()

    asyncio.run(run())


def test_a_full_queue_refuses_with_a_hint_and_touches_nobody(tiny_options):
    async def run():
        llm = AsyncLLM(**tiny_options, max_num_queued_reqs=2)
        try:
            await llm.pause_generation(mode="keep")
            held = [asyncio.create_task(consume(llm, sampling_params=SHORT)) for _ in range(2)]
            await until(llm, "waiting_paused", 2)
            with pytest.raises(QueueFullError, match="2 requests wait, max_num_queued_reqs is 2") as caught:
                await consume(llm, sampling_params=SHORT)
            assert caught.value.retry_after > 0
            await llm.resume_generation()
            assert [len(o.outputs[0].token_ids) for o in await asyncio.gather(*held)] == [2, 2]
            assert (await consume(llm, sampling_params=SHORT)).finished
        finally:
            llm.shutdown()

    asyncio.run(run())


def test_a_batch_that_does_not_fit_the_queue_at_once_is_fed_bit_by_bit(tiny_options):
    with LLM(**tiny_options, max_num_queued_reqs=3, max_num_seqs=2) as llm:
        outs = llm.generate([[n, 1] for n in range(20)], SHORT, use_tqdm=False)
        assert [o.prompt_token_ids[0] for o in outs] == list(range(20))
        assert [len(o.outputs[0].token_ids) for o in outs] == [2] * 20


def test_skip_reading_prefix_cache(tiny_options):
    prompt = [[n % 300 for n in range(100)]]
    with LLM(**tiny_options) as llm:
        llm.generate(prompt, SHORT, use_tqdm=False)
        again = llm.generate(prompt, SHORT, use_tqdm=False)[0]
        skipping = SamplingParams(max_tokens=2, detokenize=False, ignore_eos=True, skip_reading_prefix_cache=True)
        skipped = llm.generate(prompt, skipping, use_tqdm=False)[0]
        assert again.num_cached_tokens == 96
        assert skipped.num_cached_tokens == 0
        assert llm.generate(prompt, SHORT, use_tqdm=False)[0].num_cached_tokens == 96
