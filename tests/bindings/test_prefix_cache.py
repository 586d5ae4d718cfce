"""What the engine says of its prefix cache: events, questions, pins."""

import asyncio

import pytest

from fastllm_core import LLM, AsyncLLM, EngineDeadError, InvalidArgumentError, SamplingParams

ONE = SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False)
PROMPT = {"prompt_token_ids": [n % 300 for n in range(40)]}
SALTED = PROMPT | {"cache_salt": "s"}


def test_events_questions_and_reset(tiny_options):
    with LLM(**tiny_options, kv_events_buffer_size=100) as llm:
        assert llm.count_cached_tokens(PROMPT) == 0
        llm.generate(PROMPT, ONE, use_tqdm=False)
        assert llm.count_cached_tokens(PROMPT) == 32
        assert llm.count_cached_tokens(PROMPT["prompt_token_ids"][:32]) == 31  # one token is left to compute
        assert llm.count_cached_tokens(SALTED) == 0
        batch = llm.kv_events()
        assert batch.num_lost == 0
        assert [(e.sequence, e.kind, e.block_size) for e in batch.events] == [(0, "stored", 16), (1, "stored", 16)]
        first, second = batch.events
        assert first.parent_block_hash is None
        assert second.parent_block_hash == first.block_hash
        assert first.token_ids + second.token_ids == PROMPT["prompt_token_ids"][:32]
        llm.reset_prefix_cache()
        assert [(e.sequence, e.kind) for e in llm.kv_events().events] == [(2, "cleared")]
        assert llm.count_cached_tokens(PROMPT) == 0


def test_lost_events_are_counted(tiny_options):
    with LLM(**tiny_options, kv_events_buffer_size=2) as llm:
        llm.generate([[n % 300 for n in range(100)]], ONE, use_tqdm=False)
        batch = llm.kv_events()
        assert (len(batch.events), batch.num_lost) == (2, 4)


def test_a_pin_survives_a_load_that_takes_the_whole_pool(tiny_options):
    options = tiny_options | {"num_gpu_blocks_override": 9}
    others = [[200 + n] * 90 for n in range(6)]  # all blocks but the two that are pinned
    with LLM(**options) as llm:
        llm.generate(PROMPT, ONE, use_tqdm=False)
        assert llm.pin_prefix(PROMPT) == 32
        assert llm.pin_prefix(SALTED) == 0
        llm.generate(others, ONE, use_tqdm=False)
        assert llm.count_cached_tokens(PROMPT) == 32
        assert llm.pin_prefix(PROMPT, priority=0) == 32
        llm.generate(others, ONE, use_tqdm=False)
        assert llm.count_cached_tokens(PROMPT) == 0
        with pytest.raises(InvalidArgumentError, match=r"priority of a pin is 64, it must be in \[0, 63\]"):
            llm.pin_prefix(PROMPT, priority=64)
        with pytest.raises(InvalidArgumentError, match="ttl of a pin is -1 ms"):
            llm.pin_prefix(PROMPT, ttl=-3)
    with pytest.raises(EngineDeadError):
        llm.count_cached_tokens(PROMPT)


def test_async(tiny_options):
    async def run():
        llm = AsyncLLM(**tiny_options, kv_events_buffer_size=10)
        try:
            async for _ in llm.generate(PROMPT, ONE):
                pass
            assert await llm.count_cached_tokens(PROMPT) == 32
            assert await llm.pin_prefix(PROMPT, priority=3, ttl=100.0) == 32
            assert len(llm.kv_events().events) == 2
        finally:
            llm.shutdown()

    asyncio.run(run())
