"""Requests that end in every way leave nothing behind."""

import asyncio
import random

from smollm2_support import greedy

from fastllm_core import AsyncLLM, SamplingParams


def test_500_random_requests_with_random_aborts(tiny_model):
    """After all of it the pool holds zero used blocks and the engine still serves."""
    rng = random.Random(11)

    async def one(llm: AsyncLLM, i: int) -> str:
        prompt = [rng.randrange(3, 500) for _ in range(rng.randrange(1, 60))]
        params = SamplingParams(
            temperature=rng.choice([0.0, 1.0]), max_tokens=rng.randrange(1, 30), ignore_eos=True, detokenize=False
        )
        stop_after = rng.randrange(0, 20) if rng.random() < 0.4 else None
        await asyncio.sleep(rng.random() * 0.5)
        seen = 0
        stream = llm.generate({"prompt_token_ids": prompt}, params, request_id=f"r{i}")
        async for out in stream:
            seen = len(out.outputs[0].token_ids)
            if stop_after is not None and seen >= stop_after:
                await stream.aclose()
                return "aborted"
        assert seen == params.max_tokens
        return "finished"

    async def run() -> None:
        llm = AsyncLLM(
            model=tiny_model,
            load_format="dummy",
            num_gpu_blocks_override=60,
            max_num_seqs=32,
            max_num_batched_tokens=64,
            skip_tokenizer_init=True,
        )
        try:
            ends = await asyncio.gather(*(one(llm, i) for i in range(500)))
            assert ends.count("aborted") > 50
            assert ends.count("finished") > 200
            last = [
                o
                async for o in llm.generate(
                    {"prompt_token_ids": [5, 6, 7]}, greedy(4, detokenize=False), request_id="last"
                )
            ]
            assert last[-1].finished
            stats = llm.stats()
            assert stats.used_blocks == 0
            assert stats.running == 0
            assert stats.waiting == 0
        finally:
            llm.shutdown()

    asyncio.run(run())
