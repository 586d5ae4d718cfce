"""With batch_invariant the same request gives the same ids whatever runs beside it and however its prompt is cut."""

import pytest
from smollm2_support import greedy, ids_of

from fastllm_core import SamplingParams

TOKENS = 24


@pytest.fixture(scope="module")
def prompts(golden) -> list[list[int]]:
    """Sixteen prompts of different lengths, some sharing a prefix of several blocks."""
    base = [p["prompt_ids"] for p in golden]
    long = max(base, key=len)
    cut = [long[: 40 + 7 * i] + [300 + i] for i in range(16 - len(base))]
    return base + cut


@pytest.fixture(scope="module")
def alone(make_llm, prompts) -> list[list[int]]:
    """Reference of this file: one request at a time, no prefix cache, whole prompt in one step."""
    llm = make_llm(batch_invariant=True, enable_prefix_caching=False)
    return [ids_of(llm, [p], greedy(TOKENS))[0] for p in prompts]


@pytest.mark.parametrize("batch", [1, 3, 16])
def test_batch_size(make_llm, prompts, alone, batch):
    llm = make_llm(batch_invariant=True, enable_prefix_caching=False)
    for at in range(0, len(prompts), batch):
        assert ids_of(llm, prompts[at : at + batch], greedy(TOKENS)) == alone[at : at + batch]


def logprobs_of(llm, prompts: list[list[int]]) -> list[list[float]]:
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=0, prompt_logprobs=0, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)

    def values(entries) -> list[float]:
        return [v.logprob for e in entries if e is not None for v in e.values()]

    return [values(o.prompt_logprobs) + values(o.outputs[0].logprobs) for o in outputs]


def test_log_probabilities_in_batches_of_64(make_llm, prompts):
    """Bits, not only ids: of prompts and of what follows, in steps of one row and of many."""
    many = [[*p[:40], 500 + i] for i, p in enumerate(prompts * 4)]
    apart = make_llm(batch_invariant=True, enable_prefix_caching=False, max_num_batched_tokens=11, max_num_seqs=1)
    whole = make_llm(batch_invariant=True, enable_prefix_caching=False, max_num_batched_tokens=512, max_num_seqs=64)
    expected = logprobs_of(apart, many[::8])
    assert logprobs_of(whole, many)[::8] == expected
    assert logprobs_of(whole, many[::8][:3]) == expected[:3]


@pytest.mark.parametrize("chunk", [1, 7, 16, 512])
def test_prefill_chunk(make_llm, prompts, alone, chunk):
    llm = make_llm(
        batch_invariant=True, enable_prefix_caching=False, max_num_batched_tokens=chunk, max_num_seqs=min(chunk, 16)
    )
    some = prompts if chunk > 7 else prompts[:4]  # one token a step is slow on the 600-token prompt
    assert ids_of(llm, some, greedy(TOKENS)) == alone[: len(some)]


def test_prefix_cache(make_llm, prompts, alone):
    llm = make_llm(batch_invariant=True, enable_prefix_caching=True)
    first = ids_of(llm, prompts, greedy(TOKENS))
    before = llm.stats().prefix_hit_tokens
    second = ids_of(llm, prompts, greedy(TOKENS))
    assert first == alone
    assert second == alone
    hits = llm.stats().prefix_hit_tokens - before
    assert hits >= sum((len(p) - 1) // 16 * 16 for p in prompts) - 16 * len(prompts)


def test_whole_hits(make_llm, prompts):
    """Prompts that end with a block: nothing but their last token is computed again, and gives the same bits."""
    whole = [p[: len(p) // 16 * 16] for p in prompts if len(p) >= 32][:4]
    assert whole
    first = SamplingParams(temperature=0, max_tokens=TOKENS, logprobs=5, ignore_eos=True)
    three = SamplingParams(temperature=0.9, seed=3, n=3, max_tokens=TOKENS, ignore_eos=True)

    def run(llm, params) -> tuple[list, list]:
        outputs = [llm.generate({"prompt_token_ids": p}, params, use_tqdm=False)[0] for p in whole]
        found = [[(c.token_ids, c.logprobs) for c in o.outputs] for o in outputs]
        return found, [o.num_cached_tokens for o in outputs]

    for kv_dtype in ("auto", "float32", "int8"):
        fresh = make_llm(batch_invariant=True, enable_prefix_caching=False, kv_cache_dtype=kv_dtype)
        cached = make_llm(batch_invariant=True, enable_prefix_caching=True, kv_cache_dtype=kv_dtype)
        assert run(cached, first)[0] == run(fresh, first)[0]
        again, hits = run(cached, first)
        assert again == run(fresh, first)[0]
        assert hits == [len(p) - 1 for p in whole]
        assert run(cached, three)[0] == run(fresh, three)[0]
        assert run(cached, first)[0] == again  # the shared blocks are as they were


def test_preemption(make_llm, prompts, alone):
    """A pool that cannot hold the batch: sequences are preempted, recomputed, and end with the same ids."""
    short = [(p, a) for p, a in zip(prompts, alone, strict=True) if len(p) < 70]
    llm = make_llm(batch_invariant=True, enable_prefix_caching=False, num_gpu_blocks_override=14)
    before = llm.stats().preemptions
    got = ids_of(llm, [p for p, _ in short], greedy(TOKENS))
    assert got == [a for _, a in short]
    assert llm.stats().preemptions > before
    assert llm.stats().used_blocks == 0


def test_seeded_sampling(make_llm, prompts):
    """Seeded requests draw the same ids alone and in a batch of other requests."""
    llm = make_llm(batch_invariant=True, enable_prefix_caching=False)

    def params(i: int) -> SamplingParams:
        return SamplingParams(temperature=0.9, top_p=0.95, top_k=50, seed=1000 + i, max_tokens=TOKENS, ignore_eos=True)

    some = prompts[:6]
    one_by_one = [ids_of(llm, [p], params(i))[0] for i, p in enumerate(some)]
    together = ids_of(llm, some, [params(i) for i in range(len(some))])
    backwards = ids_of(llm, some[::-1], [params(i) for i in range(len(some))][::-1])[::-1]
    assert together == one_by_one
    assert backwards == one_by_one
    assert ids_of(llm, [some[0]], params(7))[0] != one_by_one[0]


def test_the_last_layer_for_the_sampled_tokens_alone(make_llm, prompts):
    """Where log probabilities of the prompt are asked for the last layer is computed for all tokens: the same bits."""
    llm = make_llm(batch_invariant=True, enable_prefix_caching=False, max_num_batched_tokens=64, max_num_seqs=8)

    def first(**asked) -> list[dict[int, float]]:
        params = SamplingParams(temperature=0, max_tokens=3, logprobs=3, ignore_eos=True, **asked)
        outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return [{i: v.logprob for i, v in place.items()} for o in outputs for place in o.outputs[0].logprobs]

    assert first() == first(prompt_logprobs=0)


def test_greedy_tokens_without_their_logits(make_llm, prompts):
    """Many rows that only want the likeliest token find it without all logits; with log probabilities they do not."""
    llm = make_llm(batch_invariant=True, enable_prefix_caching=False)

    def ids(**asked) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, **asked)
        outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return [list(o.outputs[0].token_ids) for o in outputs]

    assert ids() == ids(logprobs=0)
