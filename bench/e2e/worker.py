"""One engine that generates when told:  worker.py fastllm|transformers MODEL THREADS

Reads lines {"batch": B, "new_tokens": N}, generates N greedy tokens for each of B prompts of 16 tokens, and answers
{"tokens": B * N, "seconds": s} for the whole call, prefill included.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

PROMPT_TOKENS = 16


def prompts(batch: int) -> list[list[int]]:
    """Different prompts, so that no prefix is shared; ids above 100 are ordinary words in every vocabulary we use."""
    return [[100 + (7919 * (i * PROMPT_TOKENS + j)) % 40000 for j in range(PROMPT_TOKENS)] for i in range(batch)]


def fastllm_engine(model: str, threads: int) -> Callable[[int, int], int]:
    from fastllm_core import LLM, SamplingParams

    llm = LLM(model=model, cpu_threads=threads, enable_prefix_caching=False, max_model_len=512)

    def generate(batch: int, new_tokens: int) -> int:
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts(batch)], params, use_tqdm=False)
        return sum(len(o.outputs[0].token_ids) for o in outputs)

    return generate


def transformers_engine(folder: str, threads: int) -> Callable[[int, int], int]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def generate(batch: int, new_tokens: int) -> int:
        ids = torch.tensor(prompts(batch))
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=new_tokens,
                max_new_tokens=new_tokens,
                pad_token_id=0,
            )
        return batch * (out.shape[1] - ids.shape[1])

    return generate


def main() -> None:
    engine, model, threads = sys.argv[1:4]
    generate = {"fastllm": fastllm_engine, "transformers": transformers_engine}[engine](model, int(threads))
    for line in sys.stdin:
        order = json.loads(line)
        start = time.perf_counter()
        tokens = generate(order["batch"], order["new_tokens"])
        seconds = time.perf_counter() - start
        if tokens != order["batch"] * order["new_tokens"]:
            raise RuntimeError(f"{engine} made {tokens} tokens, not {order['batch'] * order['new_tokens']}")
        print(json.dumps({"tokens": tokens, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
