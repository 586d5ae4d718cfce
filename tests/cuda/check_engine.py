"""The whole engine on a GPU against the CPU: logits and greedy tokens of tiny re-drawn models.

Needs a GPU, torch and transformers; not a pytest file. Exit status 0 when all checks pass.

    python tests/cuda/check_engine.py [OUT] [sampling|fp8|hits]

`sampling` does what a request may ask of the sampler alone, `fp8` what is about 8-bit floats, `hits` prompts that are
cached whole.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from engine_models import CASES, VOCAB, WIDE, make, root_mean_square

# Relative error of all logits: float32 against float32, and what rounding to 16 bits at every step leaves.
LIMITS = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 6e-2}
# Of a KV cache in 8-bit floats.
FP8_KV_LIMITS = {"float32": 2e-3, "float16": 2.5e-2, "bfloat16": 6e-2}
# Of linear layers in 8-bit floats, as a share of what 8 bits themselves change. A sum that is other in its last bits
# puts a few inputs of the next layer on the other side of a rounding, each a sixteenth away, and after a few layers as
# many as there can be: errors grow to this share whatever their cause, and do not tell how exact the products are;
# cuda_check does.
FP8_SHARES = {"float32": 0.8, "float16": 0.95, "bfloat16": 1.0}
# Where two ways of computing the same greedy tokens part, the first way's logits of the two tokens may differ by this
# share of the logits' root mean square: four deviations of a difference of two logits, each with the error above twice.
NEAR_TIE = {"bfloat16": 0.24, "fp8": 0.8}
failures = 0


def check(what: str, ok: bool, detail: str = "") -> None:
    global failures
    failures += not ok
    print(f"{'ok    ' if ok else 'FAILED'} {what} {detail}", flush=True)


def check_logits(case: str, folder: Path, ids: list[int], expected: np.ndarray) -> None:
    from fastllm_core._C._core_testing import LogitProbe

    twice = LogitProbe(str(folder)).logits(ids * 2, 2 * len(ids))
    error = float(np.abs(twice[: len(ids)] - expected).max())
    check(f"{case}: cpu against transformers", error <= 1e-3, f"max {error:.2e}")
    for dtype, limit in LIMITS.items():
        for chunk in (2 * len(ids), len(ids), 37):  # in the first, products add to the residual
            cpu = twice[: max(chunk, len(ids))]
            got = LogitProbe(str(folder), device="cuda", dtype=dtype).logits((ids * 2)[: len(cpu)], chunk)
            error = float(np.linalg.norm(got - cpu) / np.linalg.norm(cpu))
            check(f"{case}: {dtype} logits, chunks of {chunk}", error <= limit, f"relative {error:.2e}")


def check_fp8(case: str, folder: Path, ids: list[int]) -> None:
    """Chunks of 300 rows go to cuBLASLt, which adds to the residual, of 150 to the dense kernel, of 37 to that for few
    rows; float32 always to that."""
    from fastllm_core._C._core_testing import LogitProbe

    plain = LogitProbe(str(folder)).logits(ids, len(ids))
    for what in ({"quantization": "fp8"}, {"kv_cache_dtype": "fp8"}, {"quantization": "fp8", "kv_cache_dtype": "fp8"}):
        name = " and ".join(what)
        cpu = LogitProbe(str(folder), **what).logits(ids, len(ids))
        away = float(np.linalg.norm(plain - cpu) / np.linalg.norm(cpu))
        for dtype in LIMITS:
            limit = FP8_SHARES[dtype] * away if "quantization" in what else FP8_KV_LIMITS[dtype]
            for chunk in (len(ids), 150, 37):
                got = LogitProbe(str(folder), device="cuda", dtype=dtype, **what).logits(ids, chunk)
                error = float(np.linalg.norm(got - cpu) / np.linalg.norm(cpu))
                detail = f"relative {error:.2e}; of the floats {away:.2e}"
                check(f"{case}: fp8 {name}, {dtype}, chunks of {chunk}", error <= limit, detail)


def check_fp8_tokens(case: str, folder: Path, rms: float) -> None:
    from fastllm_core import SamplingParams

    greedy = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, detokenize=False, logprobs=8)
    options = {"device": "cuda", "dtype": "bfloat16", "kv_cache_memory_bytes": 256 << 20, "quantization": "fp8"}
    for kv in ("auto", "fp8"):
        graphs = outputs(folder, greedy, kv_cache_dtype=kv, **options)
        eager = generate(folder, greedy, kv_cache_dtype=kv, enforce_eager=True, **options)
        check_near(f"{case}: fp8 tokens, kv {kv}, graphs and eager", graphs, eager, rms, "fp8", 0.5)


def prompts(n: int) -> list[dict]:
    rng = np.random.default_rng(5)
    return [{"prompt_token_ids": rng.integers(3, VOCAB, 5 + 11 * i % 90).tolist()} for i in range(n)]


def outputs(folder: Path, params, n: int = 21, **options) -> list:
    from fastllm_core import LLM

    with LLM(str(folder), skip_tokenizer_init=True, max_model_len=1024, max_num_seqs=16, **options) as llm:
        return [out.outputs[0] for out in llm.generate(prompts(n), params, use_tqdm=False)]


def generate(folder: Path, params, n: int = 21, **options) -> list[list[int]]:
    return [out.token_ids for out in outputs(folder, params, n, **options)]


def check_near(what: str, base: list, other: list[list[int]], rms: float, kind: str, least: float) -> None:
    """Greedy tokens of another way against `base` (outputs with logprobs): where they part, it is at a near-tie, and at
    least the share `least` of the sequences is equal to the end."""
    wrong, same = [], 0
    for row, (a, b) in enumerate(zip(base, other)):
        at = next((i for i, (x, y) in enumerate(zip(a.token_ids, b)) if x != y), None)
        same += at is None and len(a.token_ids) == len(b)
        if at is not None:
            top = a.logprobs[at]
            gap = top[a.token_ids[at]].logprob - top[b[at]].logprob if b[at] in top else float("inf")
            if not gap <= NEAR_TIE[kind] * rms:
                wrong.append(f"row {row} token {at}: {gap:.2f} below")
        elif len(a.token_ids) != len(b):
            wrong.append(f"row {row}: {len(b)} tokens")
    ok = not wrong and same >= least * len(base)
    check(what, ok, f"{same} of {len(base)} equal, limit of a near-tie {NEAR_TIE[kind] * rms:.2f}; {'; '.join(wrong)}")


def reference_greedy(folder: Path, n: int = 21) -> list[list[int]]:
    """What transformers continues the prompts with, one at a time, in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    out = []
    with torch.no_grad():
        for prompt in prompts(n):
            ids = torch.tensor([prompt["prompt_token_ids"]])
            past, new = None, []
            for _ in range(40):
                step = model(ids, past_key_values=past, use_cache=True)
                past = step.past_key_values
                ids = step.logits[:, -1].argmax(-1, keepdim=True)
                new.append(int(ids))
            out.append(new)
    return out


def check_tokens(case: str, folder: Path, rms: float) -> None:
    """More prompts than rows, so that sequences come and go; 40 tokens each."""
    from fastllm_core import SamplingParams

    greedy = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, detokenize=False)
    asked = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, detokenize=False, logprobs=8)
    expected = reference_greedy(folder)
    gpu = {"device": "cuda", "kv_cache_memory_bytes": 256 << 20}
    float32 = generate(folder, greedy, dtype="float32", **gpu)
    same = sum(a == b for a, b in zip(expected, float32))
    check(f"{case}: greedy tokens in float32 equal transformers'", same == len(expected), f"{same} of {len(expected)}")
    bf16 = outputs(folder, asked, dtype="bfloat16", **gpu)
    for name, options in {
        "eager": {"enforce_eager": True},
        "synchronous": {"async_scheduling": False},
        "without prefix cache": {"enable_prefix_caching": False},
    }.items():
        other = generate(folder, greedy, dtype="bfloat16", **gpu, **options)
        # Another batch size is another order of sums in bfloat16, which a near tie may show.
        check_near(f"{case}: bfloat16 tokens, {name}", bf16, other, rms, "bfloat16", 0.6)
    chosen = generate(
        folder,
        SamplingParams(
            temperature=0.0,
            max_tokens=40,
            ignore_eos=True,
            detokenize=False,
            logprobs=2,
            repetition_penalty=1.0,
            min_tokens=3,
        ),
        dtype="float32",
        **gpu,
    )
    same = sum(a == b for a, b in zip(expected, chosen))
    check(f"{case}: greedy tokens with logprobs", same == len(expected), f"{same} of {len(expected)}")
    drawn = SamplingParams(
        temperature=0.9, top_k=40, top_p=0.95, seed=11, max_tokens=40, ignore_eos=True, detokenize=False
    )
    a, b = (
        generate(folder, drawn, device=d, dtype="float32", kv_cache_memory_bytes=256 << 20) for d in ("cpu", "cuda")
    )
    same = sum(x == y for x, y in zip(a, b))
    check(f"{case}: drawn tokens in float32 equal the CPU's", same >= len(a) - 1, f"{same} of {len(a)}")


def apart(a: list, b: list) -> float:
    """The largest difference of the logprobs of two outputs' tokens, up to and with the first that is another."""
    worst = 0.0
    for p, q in zip(a, b):
        worst = max([worst, *(abs(p[t].logprob - q[t].logprob) for t in p if t in q)])
        if list(p) != list(q):
            break
    return worst


def check_captured(case: str, folder: Path, dtypes: tuple[str, ...] = ("float32", "bfloat16")) -> None:
    """Prompts that join while others decode, three times over: the first pass runs such steps as they are, the others
    as graphs, padded. In float32 all are equal; in bfloat16 a padded product may add up in another order, which near
    ties show, so there the logprobs are compared."""
    from fastllm_core import LLM, SamplingParams

    params = [
        SamplingParams(temperature=0.0, max_tokens=4 + 5 * i % 17, ignore_eos=True, detokenize=False, logprobs=i % 2)
        for i in range(40)
    ]
    options = {"device": "cuda", "kv_cache_memory_bytes": 256 << 20, "enable_prefix_caching": False}
    for dtype in dtypes:
        limit = {"float32": 1e-3, "bfloat16": 0.15}[dtype]
        passes = []
        for eager in (True, False):
            with LLM(
                str(folder),
                skip_tokenizer_init=True,
                max_model_len=1024,
                max_num_seqs=12,
                dtype=dtype,
                enforce_eager=eager,
                **options,
            ) as llm:
                for _ in range(2 if eager else 3):
                    passes.append([o.outputs[0] for o in llm.generate(prompts(40), params, use_tqdm=False)])
        for i, got in enumerate(passes[1:]):
            same = sum(a.token_ids == b.token_ids for a, b in zip(passes[0], got))
            worst = max(apart(a.logprobs, b.logprobs) for a, b in zip(passes[0], got) if a.logprobs)
            what = "eager again" if i == 0 else f"mixed steps, pass {i - 1} as eager"
            ok = worst <= limit and (dtype != "float32" or same == 40)
            check(f"{case}: {dtype} {what}", ok, f"{same} of 40 equal, logprobs {worst:.1e} apart")


def check_whole_hits(case: str, folder: Path) -> None:
    """Prompts that end with a block, four times over: from the second time on all but their last token comes from the
    cache, from the third on in graphs. What follows longer prompts tells whether the shared blocks are as they were."""
    from fastllm_core import LLM, SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, detokenize=False, logprobs=2)
    rng = np.random.default_rng(8)
    whole = [rng.integers(3, VOCAB, 16 * n).tolist() for n in (1, 2, 3, 5, 8, 13, 20, 31)]
    longer = [[*p, 5 + i] for i, p in enumerate(whole)]
    for kv, dtype, limit in (("auto", "float32", 1e-3), ("auto", "bfloat16", 0.15), ("fp8", "bfloat16", 0.15)):
        options = {"device": "cuda", "kv_cache_memory_bytes": 256 << 20, "dtype": dtype, "kv_cache_dtype": kv}
        options |= {"skip_tokenizer_init": True, "max_model_len": 1024, "max_num_seqs": 12}

        def run(llm, prompts):
            outs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
            return [o.outputs[0] for o in outs], [o.num_cached_tokens for o in outs]

        with LLM(str(folder), **options, enable_prefix_caching=False) as llm:
            fresh, wanted = run(llm, whole)[0], run(llm, longer)[0]
        with LLM(str(folder), **options) as llm:
            passes = [run(llm, whole) for _ in range(4)]
            after, hits = run(llm, longer)
        right = hits == [len(p) for p in whole] and all(h == [len(p) - 1 for p in whole] for _, h in passes[1:])
        check(f"{case}: {dtype} kv {kv} whole hits are counted", right, str(passes[-1][1]))
        for i, (base, got) in enumerate([*((fresh, p) for p, _ in passes), (wanted, after)]):
            same = sum(a.token_ids == b.token_ids for a, b in zip(base, got))
            worst = max(apart(a.logprobs, b.logprobs) for a, b in zip(base, got))
            ok = worst <= limit and (dtype != "float32" or same == len(base))
            what = f"pass {i}" if i < len(passes) else "longer prompts"
            check(f"{case}: {dtype} kv {kv} {what}", ok, f"{same} of {len(base)} equal, logprobs {worst:.1e} apart")


# What the device's sampler does itself, and beside it rows that the host samples.
SAMPLING = {
    "repetition": {"repetition_penalty": 1.4},
    "frequency and presence": {"frequency_penalty": 0.6, "presence_penalty": 0.4},
    "all penalties, drawn": {
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.3,
        "presence_penalty": -0.2,
        "temperature": 0.8,
        "top_k": 30,
    },
    "logit_bias": {"logit_bias": {5: 4.0, 9: -100.0, 77: 2.5}, "temperature": 0.7, "top_p": 0.9},
    "min_tokens and penalties": {"min_tokens": 10, "stop_token_ids": [7, 8, 9], "presence_penalty": 0.5},
    "typical_p, on the host": {"typical_p": 0.8, "temperature": 0.9},
}


def check_sampling(case: str, folder: Path) -> None:
    """Tokens and logprobs of each kind alone, then of all kinds in one batch, against the CPU's in float32.

    The GPU runs first, so that what fails is told apart.
    """
    from fastllm_core import SamplingParams

    common = {"max_tokens": 30, "ignore_eos": True, "detokenize": False, "seed": 3}
    kinds = {k: SamplingParams(**{"temperature": 0.0, **common, **v}) for k, v in SAMPLING.items()}
    mixed = [list(kinds.values())[i % len(kinds)] for i in range(21)]
    gpu = {"device": "cuda", "dtype": "float32", "kv_cache_memory_bytes": 256 << 20}
    cpu = {"device": "cpu", "kv_cache_memory_bytes": 256 << 20}
    ran = {name: generate(folder, p, **gpu) for name, p in {**kinds, "all kinds in one batch": mixed}.items()}
    asked = SamplingParams(**{"temperature": 0.0, **common, "logprobs": 5, "presence_penalty": 0.5})
    got_logprobs = outputs(folder, asked, **gpu)
    for name, got in ran.items():
        lengths = {len(tokens) for tokens in got}
        check(f"{case}: {name} on the GPU", lengths == {30} or "min_tokens" in name or "all" in name, f"{lengths}")
    for i, got in enumerate(ran["all kinds in one batch"]):
        alone = ran[list(kinds)[i % len(kinds)]][i]
        check(f"{case}: row {i} of all kinds as alone", got == alone)
    for name, params in {**kinds, "all kinds in one batch": mixed}.items():
        want, got = generate(folder, params, **cpu), ran[name]
        same = sum(a == b for a, b in zip(want, got))
        check(f"{case}: {name} equals the CPU's", same >= len(want) - 1, f"{same} of {len(want)}")
    want, got = outputs(folder, asked, **cpu), got_logprobs
    ids, error = 0, 0.0
    for a, b in zip(want, got):
        ids += [list(p) for p in a.logprobs] == [list(p) for p in b.logprobs]
        for p, q in zip(a.logprobs, b.logprobs):
            error = max([error, *(abs(p[t].logprob - q[t].logprob) for t in p if t in q)])
    check(f"{case}: ids of logprobs equal the CPU's", ids >= len(want) - 1, f"{ids} of {len(want)}")
    check(f"{case}: logprobs", error <= 1e-3, f"max {error:.1e}")


def check_backends(case: str, folder: Path, rms: float) -> None:
    """FlashInfer's attention against ours, in builds that have it."""
    from fastllm_core import SamplingParams

    greedy = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, detokenize=False, logprobs=8)
    gpu = {"device": "cuda", "dtype": "bfloat16", "kv_cache_memory_bytes": 256 << 20}
    ours = outputs(folder, greedy, attention_backend="fastllm", **gpu)
    for name, options in {"graphs": {}, "eager": {"enforce_eager": True}}.items():
        try:
            other = generate(folder, greedy, attention_backend="flashinfer", **gpu, **options)
        except Exception as e:
            check(f"{case}: no FlashInfer, and the refusal says so", "backend flashinfer" in str(e), str(e)[:120])
            return
        check_near(f"{case}: FlashInfer's tokens, {name}", ours, other, rms, "bfloat16", 0.5)


def check_refusals(folder: Path) -> None:
    from fastllm_core import LLM

    for options, words in [
        ({"kv_cache_memory_bytes": 1 << 60}, "are available"),
        ({"block_size": 8}, "power of two"),
        ({"gpu_memory_utilization": 1e-6}, "no memory is left for the KV cache"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens"),
        ({"quantization": "awq"}, "compressed-tensors"),
        ({"kv_cache_dtype": "float32"}, "the data type of the model or fp8"),
    ]:
        try:
            LLM(str(folder), skip_tokenizer_init=True, device="cuda", **options)
            message = "no error"
        except Exception as e:
            message = str(e)
        check(f"refusal of {options}", words in message, message[:200])


def main(argv: list[str]) -> int:
    import torch

    torch.set_num_threads(8)
    only = [a for a in argv[1:] if a in ("sampling", "fp8", "hits")]
    paths = [a for a in argv[1:] if a not in only]
    out = Path(paths[0]) if paths else Path(tempfile.mkdtemp())
    if only == ["sampling"]:
        _, expected = make("llama3-d128", out / "llama3-d128")
        check_sampling("llama3-d128", out / "llama3-d128")
        check_backends("llama3-d128", out / "llama3-d128", root_mean_square(expected))
        print(f"{failures} failed")
        return int(failures > 0)
    for case in CASES:
        folder = out / case
        ids, expected = make(case, folder)
        rms = root_mean_square(expected)
        if only == ["fp8"]:
            check_fp8(case, folder, ids * 2)
            check_fp8_tokens(case, folder, rms)
            continue
        if only == ["hits"]:
            if case in ("llama", "llama3-d128", "qwen3-d128"):
                check_whole_hits(case, folder)
            continue
        check_logits(case, folder, ids, expected)
        if case in ("llama3-d128", "qwen3-d128"):
            check_tokens(case, folder, rms)
            check_captured(case, folder)
            check_whole_hits(case, folder)
            check_sampling(case, folder)
            check_backends(case, folder, rms)
            check_fp8(case, folder, ids * 2)
            check_fp8_tokens(case, folder, rms)
        if case == "llama-bias-tied":
            check_fp8(case, folder, ids * 2)
    for case in WIDE:
        make(case, out / case)
        check_captured(case, out / case, ("bfloat16",))
    check_refusals(out / "llama")
    print(f"{failures} failed")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
