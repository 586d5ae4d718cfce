"""SmolLM2 over ranks, threads and processes: the logits and ids of one rank in every mode; sizes that do not fit."""

import os

import numpy as np
import pytest
from fastllm_core._C._core_testing import LogitProbe
from rank_support import ranks_of
from smollm2_support import EXACT, greedy, ids_of, smollm2_gguf

from fastllm_core import LLM, SamplingParams
from fastllm_core.errors import FastLLMError

SIZES = [(3, 1), (1, 2), (3, 2)]  # 9 heads and 3 KV heads
TOKENS = 16


@pytest.fixture(scope="module")
def prompts(golden) -> list[list[int]]:
    base = [p["prompt_ids"] for p in golden]
    long = max(base, key=len)
    return [p[:120] for p in base] + [long[: 40 + 7 * i] + [300 + i] for i in range(4)]


@pytest.fixture(scope="module")
def one_rank(make_llm, prompts) -> list[list[int]]:
    return ids_of(make_llm(**EXACT), prompts, greedy(TOKENS))


def ranked(make_llm, tensor: int, pipeline: int, **options) -> LLM:
    return make_llm(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, **EXACT, **options)


@pytest.mark.parametrize(("tensor", "pipeline"), SIZES)
def test_logits(golden, tensor, pipeline):
    ids = golden[1]["prompt_ids"][:48] + golden[1]["hf_fp32"]["ids"][:16]
    options = {"cpu_precision": "float32", "num_threads": 2}
    one = LogitProbe(smollm2_gguf(), **options).logits(ids, chunk=40)
    probe = LogitProbe(smollm2_gguf(), tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, **options)
    got = probe.logits(ids, chunk=40)
    assert float(np.abs(got - one).max()) <= 1e-5 * float(np.abs(one).max())


@pytest.mark.parametrize(("tensor", "pipeline"), SIZES)
@pytest.mark.parametrize("overlapped", [True, False])
def test_greedy_ids(make_llm, prompts, one_rank, tensor, pipeline, overlapped):
    llm = ranked(make_llm, tensor, pipeline, async_scheduling=overlapped)
    assert ids_of(llm, prompts, greedy(TOKENS)) == one_rank
    before = llm.stats().prefix_hit_tokens
    assert ids_of(llm, prompts, greedy(TOKENS)) == one_rank  # from the prefix cache
    assert llm.stats().prefix_hit_tokens > before
    assert llm.stats().used_blocks == 0


def test_greedy_ids_of_processes(prompts, one_rank):
    sizes = {"tensor_parallel_size": 3, "pipeline_parallel_size": 2}
    with LLM(model="smollm2", distributed_executor_backend="processes", **sizes, **EXACT) as llm:
        assert sorted(ranks_of(os.getpid())) == [f"fastllm-rank{n}" for n in range(6)]
        assert ids_of(llm, prompts, greedy(TOKENS)) == one_rank
        assert ids_of(llm, prompts[:3], greedy(TOKENS)) == one_rank[:3]
        assert llm.stats().prefix_hit_tokens > 0
    assert ranks_of(os.getpid()) == {}


@pytest.mark.parametrize(("tensor", "pipeline"), SIZES)
def test_whole_hits(make_llm, prompts, tensor, pipeline):
    """Every rank leaves the shared blocks alone and computes the last token from its part of them."""
    whole = [p[: len(p) // 16 * 16] for p in prompts if len(p) >= 16][:4]
    assert whole
    llm = ranked(make_llm, tensor, pipeline)
    first = ids_of(llm, whole, greedy(TOKENS))
    before = llm.stats().prefix_hit_tokens
    for _ in range(2):
        assert ids_of(llm, whole, greedy(TOKENS)) == first
    assert llm.stats().prefix_hit_tokens - before == 2 * sum(len(p) - 1 for p in whole)


@pytest.mark.parametrize(("tensor", "pipeline"), SIZES)
def test_preemption(make_llm, prompts, one_rank, tensor, pipeline):
    short = [(p, ids) for p, ids in zip(prompts, one_rank, strict=True) if len(p) < 70]
    llm = ranked(make_llm, tensor, pipeline, enable_prefix_caching=False, num_gpu_blocks_override=14)
    assert ids_of(llm, [p for p, _ in short], greedy(TOKENS)) == [ids for _, ids in short]
    assert llm.stats().preemptions > 0


def test_stored_precision_and_seeds(make_llm, prompts):
    """Quantised blocks cut by rows and columns: the ids of the seeded draws stay those of one pipeline stage."""
    params = SamplingParams(temperature=0.8, top_k=40, seed=3, max_tokens=TOKENS, ignore_eos=True)
    two, one = make_llm(pipeline_parallel_size=2, batch_invariant=True), make_llm(batch_invariant=True)
    assert ids_of(two, prompts, params) == ids_of(one, prompts, params)
    assert len(ids_of(make_llm(tensor_parallel_size=3), prompts[:3], params)) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size is 2, which does not divide the 9 attention heads"),
        ({"tensor_parallel_size": 4}, "tensor_parallel_size is 4, which does not divide the 9 attention heads"),
        ({"pipeline_parallel_size": 31}, "pipeline_parallel_size is 31; the model has 30 layers"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size"),
        ({"distributed_executor_backend": "mp"}, "threads.*processes.*ray"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    for backend in ("threads", "processes"):
        with pytest.raises(FastLLMError, match=message):
            LLM(model="smollm2", **{"distributed_executor_backend": backend, **options})
