"""An engine by itself: throughput of many requests, latency of one batch, time to start."""

import json
import subprocess
import sys
import time

from fastllm_core.bench.datasets import Sample
from fastllm_core.bench.report import percentile

_START = """
import json, sys, time
began = time.perf_counter()
import fastllm_core
imported = time.perf_counter()
options = json.loads(sys.argv[1])
llm = fastllm_core.LLM(**options)
loaded = time.perf_counter()
llm.generate({"prompt_token_ids": [5, 6, 7]}, fastllm_core.SamplingParams(max_tokens=1), use_tqdm=False)
first = time.perf_counter()
print(json.dumps({"import_s": imported - began, "load_s": loaded - imported, "first_token_s": first - loaded,
                  "phases": dict(llm.info.startup_seconds)}))
llm.shutdown()
"""


def throughput(options: dict, samples: list[Sample], progress: bool) -> dict:
    """All samples at once through LLM.generate()."""
    from fastllm_core import LLM, SamplingParams

    with LLM(**options) as llm:
        prompts = [{"prompt_token_ids": s.prompt} if isinstance(s.prompt, list) else s.prompt for s in samples]
        params = [SamplingParams(temperature=0, max_tokens=s.output_len, ignore_eos=True) for s in samples]
        llm.generate(prompts[:1], params[:1], use_tqdm=False)
        llm.reset_prefix_cache()
        begin = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=progress)
        seconds = time.perf_counter() - begin
    made = sum(len(o.outputs[0].token_ids) for o in outputs)
    read = sum(len(o.prompt_token_ids) for o in outputs)
    return {
        "requests": len(outputs),
        "duration_s": seconds,
        "request_throughput": len(outputs) / seconds,
        "input_tokens": read,
        "output_tokens": made,
        "output_throughput": made / seconds,
        "total_throughput": (made + read) / seconds,
    }


def latency(options: dict, samples: list[Sample], rounds: int) -> dict:
    """One batch, again and again: the time of a whole batch."""
    from fastllm_core import LLM, SamplingParams

    times = []
    with LLM(**options) as llm:
        prompts = [{"prompt_token_ids": s.prompt} if isinstance(s.prompt, list) else s.prompt for s in samples]
        params = [SamplingParams(temperature=0, max_tokens=s.output_len, ignore_eos=True) for s in samples]
        for _ in range(rounds + 1):  # the first warms up
            llm.reset_prefix_cache()
            begin = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            times.append(time.perf_counter() - begin)
    times = times[1:]
    spread = {f"p{p}": percentile(times, p) * 1e3 for p in (10, 50, 90, 99)}
    return {"batch": len(samples), "rounds": rounds, "batch_ms": {"mean": sum(times) / len(times) * 1e3, **spread}}


def startup(options: dict, rounds: int) -> dict:
    """A fresh process each round: import, load, first token."""
    runs = []
    for _ in range(rounds):
        done = subprocess.run(
            [sys.executable, "-c", _START, json.dumps(options)], stdout=subprocess.PIPE, text=True, check=True
        )
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    out: dict = {"rounds": rounds}
    for name in ("import_s", "load_s", "first_token_s"):
        out[name] = percentile([r[name] for r in runs], 50)
    out["phases_s"] = {name: percentile([r["phases"].get(name, 0.0) for r in runs], 50) for name in runs[0]["phases"]}
    return out
