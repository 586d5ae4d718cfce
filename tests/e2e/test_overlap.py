"""Overlapped steps give the tokens of one step at a time. FASTLLM_OVERLAP_REQUESTS sets how many requests (40)."""

import os
import random

from smollm2_support import ids_of

from fastllm_core import SamplingParams

REQUESTS = int(os.environ.get("FASTLLM_OVERLAP_REQUESTS", "40"))


def mixed_load(golden) -> tuple[list[list[int]], list[SamplingParams]]:
    """Random prompts, many with a shared prefix, and every kind of sampling and stop."""
    rng = random.Random(2024)
    base = [p["prompt_ids"] for p in golden]
    prompts, params = [], []
    for i in range(REQUESTS):
        prompt = list(rng.choice(base))[: rng.randrange(4, 90)] + [rng.randrange(100, 40000) for _ in range(i % 3)]
        prompts.append(prompt)
        params.append(
            SamplingParams(
                temperature=rng.choice([0.0, 0.0, 0.7, 1.0]),
                top_p=rng.choice([1.0, 0.9]),
                top_k=rng.choice([0, 40]),
                seed=i,
                max_tokens=rng.randrange(1, 28),
                min_tokens=rng.choice([0, 0, 1]),
                ignore_eos=rng.random() < 0.5,
                stop=rng.choice([[], [], ["."], [" the", "\n"]]),
                stop_token_ids=rng.choice([[], [30]]),
            )
        )
    return prompts, params


def outcomes(llm, prompts, params) -> list[tuple]:
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    return [
        (o.outputs[0].token_ids, o.outputs[0].text, o.outputs[0].finish_reason, o.outputs[0].stop_reason)
        for o in outputs
    ]


def test_mixed_requests_on_and_off(make_llm, golden):
    prompts, params = mixed_load(golden)
    # A pool that is too small for all and a small step: chunks, prefix hits and preemptions take part.
    options = {"num_gpu_blocks_override": 40, "max_num_seqs": 12, "max_num_batched_tokens": 96, "batch_invariant": True}
    on = outcomes(make_llm(async_scheduling=True, **options), prompts, params)
    off = outcomes(make_llm(async_scheduling=False, **options), prompts, params)
    assert on == off
    assert {o[2] for o in on} == {"stop", "length"}


def test_no_step_is_spent_behind_max_tokens(make_llm, golden):
    llm = make_llm(async_scheduling=True, num_gpu_blocks_override=40, max_num_seqs=12, max_num_batched_tokens=96)
    before = llm.stats().steps
    ids_of(llm, [golden[0]["prompt_ids"][:8]], SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True))
    assert llm.stats().steps - before == 20
