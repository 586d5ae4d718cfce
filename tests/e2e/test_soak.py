"""10,000 requests with random aborts. Takes minutes, so only with FASTLLM_SOAK=1 in the environment."""

import asyncio
import os
import random

from fastllm_core import AsyncLLM, SamplingParams

REQUESTS = int(os.environ.get("FASTLLM_SOAK_REQUESTS", "10000"))
CLIENTS = 64


def rss_kib() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


async def client(llm: AsyncLLM, ids, seed: int, ends: dict, rss: list[int]) -> None:
    rng = random.Random(seed)
    for i in ids:
        prompt = [rng.randrange(3, 500) for _ in range(rng.randrange(1, 60))]
        params = SamplingParams(
            temperature=rng.choice([0.0, 1.0]), max_tokens=rng.randrange(1, 24), ignore_eos=True, detokenize=False
        )
        stop_after = rng.randrange(0, 16) if rng.random() < 0.3 else None
        stream = llm.generate({"prompt_token_ids": prompt}, params, request_id=f"r{i}")
        end = "finished"
        async for out in stream:
            if stop_after is not None and len(out.outputs[0].token_ids) >= stop_after and not out.finished:
                await stream.aclose()
                end = "aborted"
                break
        ends[end] += 1
        if sum(ends.values()) % 1000 == 0:
            rss.append(rss_kib())


async def soak(model: str) -> None:
    llm = AsyncLLM(
        model=model,
        load_format="dummy",
        num_gpu_blocks_override=60,
        max_num_seqs=32,
        max_num_batched_tokens=64,
        skip_tokenizer_init=True,
    )
    ends, rss = {"finished": 0, "aborted": 0}, []
    try:
        ids = iter(range(REQUESTS))  # shared: each client takes the next one
        await asyncio.gather(*(client(llm, ids, c, ends, rss) for c in range(CLIENTS)))
        await llm.pause_generation(mode="wait")  # the aborts are through
        stats = llm.stats()
    finally:
        llm.shutdown()
    print(f"ends {ends}, steps {stats.steps}, preemptions {stats.preemptions}, RSS by thousand (KiB) {rss}")
    assert sum(ends.values()) == REQUESTS
    assert ends["aborted"] > REQUESTS * 0.1
    assert stats.used_blocks == stats.running == stats.waiting == 0
    assert stats.finished_requests == REQUESTS
    if len(rss) > 2:
        assert rss[-1] - rss[0] < 8 * 1024  # after the first thousand it stays


if os.environ.get("FASTLLM_SOAK"):

    def test_10000_requests_leave_nothing_behind(tiny_model):
        asyncio.run(soak(tiny_model))
