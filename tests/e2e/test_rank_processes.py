"""Ranks as processes: the numbers of ranks in threads bit for bit and of one rank to rounding; nothing is left of them.

FASTLLM_TEST_RANKS=all runs every size; without it a few."""

import json
import os
import pathlib
import signal
import time

import pytest
from conftest import greedy, ids_of

from fastllm_core import LLM, SamplingParams
from fastllm_core.errors import FastLLMError

ALL = [(tensor, pipeline) for pipeline in (1, 2) for tensor in (1, 2, 3, 4) if (tensor, pipeline) != (1, 1)]
SIZES = ALL if os.environ.get("FASTLLM_TEST_RANKS") == "all" else [(3, 1), (2, 2)]
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
        num_gpu_blocks_override=200,
        cpu_threads=tensor * pipeline,
        **options,
    )


def run(llm: LLM) -> tuple[list[list[int]], list[float]]:
    """Ids, and every logprob of prompts and outputs in one order."""
    outputs = llm.generate([{"prompt_token_ids": p} for p in PROMPTS], PARAMS, use_tqdm=False)
    numbers = []
    for o in outputs:
        for position in [*o.prompt_logprobs[1:], *o.outputs[0].logprobs]:
            numbers += [position[token].logprob for token in sorted(position)]
    return [list(o.outputs[0].token_ids) for o in outputs], numbers


def ranks_of(pid: int) -> dict[str, int]:
    """Process ids below a process, by the name of their rank."""
    found = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            name = pathlib.Path(f"/proc/{child}/comm").read_text().strip()
            if name.startswith("fastllm-rank"):
                found[name] = int(child)
    return found


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize(("tensor", "pipeline"), SIZES)
def test_the_numbers_of_threads_and_of_one_rank(models, kind, tensor, pipeline):
    results = {}
    for backend, sizes in (("one", (1, 1)), ("threads", (tensor, pipeline)), ("processes", (tensor, pipeline))):
        with make(models[kind], *sizes, "threads" if backend == "one" else backend) as llm:
            results[backend] = run(llm)
    assert results["processes"] == results["threads"]
    ids, numbers = results["processes"]
    assert ids == results["one"][0]
    assert numbers == pytest.approx(results["one"][1], rel=1e-5)
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
        deadline = time.monotonic() + 60
        again = None
        while again is None:
            assert time.monotonic() < deadline
            try:
                again = ids_of(llm, PROMPTS, greedy(8))
            except FastLLMError:
                time.sleep(0.05)  # refused until it is there
        assert again == wanted
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
