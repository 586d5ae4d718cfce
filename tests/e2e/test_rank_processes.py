"""Tiny models over ranks: in threads and in processes the same numbers bit for bit, one rank's to rounding; nothing is
left of processes.

A process takes half a second of a core to start, so each size is run in processes once; FASTLLM_TEST_RANKS=all runs
every model in every mode at every size."""

import json
import os
import signal

import pytest
from rank_support import ranks_of
from smollm2_support import greedy, ids_of

from fastllm_core import LLM, SamplingParams
from fastllm_core.errors import FastLLMError

SIZES = [(tensor, pipeline) for pipeline in (1, 2) for tensor in (1, 2, 3, 4) if (tensor, pipeline) != (1, 1)]
KINDS = ("llama", "qwen3")
MODES = {
    "overlapped": {},
    "synchronous": {"async_scheduling": False},
    "preempting": {"num_gpu_blocks_override": 14, "enable_prefix_caching": False},
}
ALL = [(kind, *size, mode, True) for size in SIZES for kind in KINDS for mode in MODES]
SOME = [
    (kind, *size, list(MODES)[(i + k) % 3], (i + k) % 2 == 0)  # the last: also in processes
    for i, size in enumerate(SIZES)
    for k, kind in enumerate(KINDS)
]
CASES = ALL if os.environ.get("FASTLLM_TEST_RANKS") == "all" else SOME
PROMPTS = [[7 + (i * i + 3 * n) % 400 for i in range(9 + 11 * n)] for n in range(6)]
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, prompt_logprobs=3, logprobs=3)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    """Folders for load_format="dummy", with 12 heads, which 2, 3 and 4 divide."""
    common = {
        "vocab_size": 512,
        "hidden_size": 96,
        "intermediate_size": 192,
        "num_hidden_layers": 4,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    }
    kinds = {
        "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
        "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    }
    out = {}
    for name, kind in kinds.items():
        folder = tmp_path_factory.mktemp(name)
        (folder / "config.json").write_text(json.dumps(common | kind))
        out[name] = str(folder)
    return out


def make(folder: str, tensor: int, pipeline: int, backend: str, **options) -> LLM:
    return LLM(
        model=folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        distributed_executor_backend=backend,
        max_model_len=112,
        cpu_threads=tensor * pipeline,
        **{"num_gpu_blocks_override": 200, **options},
    )


def run(llm: LLM) -> tuple[list[list[int]], list[float]]:
    """Ids, and every logprob of prompts and outputs in one order."""
    outputs = llm.generate([{"prompt_token_ids": p} for p in PROMPTS], PARAMS, use_tqdm=False)
    numbers = []
    for o in outputs:
        for position in [*o.prompt_logprobs[1:], *o.outputs[0].logprobs]:
            numbers += [position[token].logprob for token in sorted(position)]
    return [list(o.outputs[0].token_ids) for o in outputs], numbers


@pytest.fixture(scope="module")
def one_rank(models) -> dict[str, tuple[list[list[int]], list[float]]]:
    out = {}
    for kind in KINDS:
        with make(models[kind], 1, 1, "threads") as llm:
            out[kind] = run(llm)
    return out


@pytest.mark.parametrize(("kind", "tensor", "pipeline", "mode", "in_processes"), CASES)
def test_the_numbers_of_one_rank(models, one_rank, kind, tensor, pipeline, mode, in_processes):
    results = []
    for backend in ("threads", "processes") if in_processes else ("threads",):
        with make(models[kind], tensor, pipeline, backend, **MODES[mode]) as llm:
            results.append(run(llm))
            # Without logprobs of the prompt, so that the prefix cache is used, where there is one.
            assert ids_of(llm, PROMPTS, greedy(12)) == one_rank[kind][0]
            stats = llm.stats()
            assert (stats.preemptions > 0, stats.prefix_hit_tokens > 0) == (mode == "preempting", mode != "preempting")
            assert stats.used_blocks == 0
    ids, numbers = results[0]
    assert ids == one_rank[kind][0]
    assert numbers == pytest.approx(one_rank[kind][1], rel=1e-5)
    assert results[1:] in ([], [results[0]])
    assert ranks_of(os.getpid()) == {}


def test_one_rank_may_be_a_process(models):
    with make(models["llama"], 1, 1, "threads") as here, make(models["llama"], 1, 1, "processes") as there:
        assert run(there) == run(here)


def test_a_killed_rank_is_replaced(models):
    with make(models["llama"], 2, 1, "processes", restart_failed_engine=True) as llm:
        wanted = ids_of(llm, PROMPTS, greedy(8))
        victim = ranks_of(os.getpid())["fastllm-rank1"]
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(FastLLMError, match=rf"rank 1 \(tp 1, pp 0\), process {victim}, was killed by signal 9"):
            for _ in range(1000):  # until it is known
                ids_of(llm, PROMPTS, greedy(200))
        llm.await_serving(60)
        assert ids_of(llm, PROMPTS, greedy(8)) == wanted
        assert victim not in ranks_of(os.getpid()).values()
    assert ranks_of(os.getpid()) == {}
    assert not [name for name in os.listdir("/dev/shm") if "fastllm" in name]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"distributed_worker_command": ["/no/such/program"]}, "cannot start /no/such/program: No such file"),
        ({"distributed_worker_command": ["false"]}, r"rank \d .*, process \d+, exited with status 1"),
        ({"cpu_pin_threads": True}, "cpu_pin_threads needs one rank"),
    ],
)
def test_what_does_not_work_is_named(models, options, message):
    with pytest.raises(FastLLMError, match=message):
        make(models["llama"], 2, 1, "processes", **options)
