"""LLM.beam_search against transformers' on a tiny random Llama.

The two define a beam's score alike as long as no beam ends before the others: then all have one length, and whatever
it is divided by changes no order. So the end of sequence is left out; scores of beams that end are tested against a
search by hand (tests/bindings/test_beam_search.py).
"""

import make_tiny_llama as maker
import pytest
import torch

from fastllm_core import LLM, BeamSearchParams

PROMPTS = [[3, 77, 400, 12, 9, 255], [501] * 20, list(range(100, 133))]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """(transformers' model, LLM) with equal weights."""
    out = tmp_path_factory.mktemp("beams")
    model = maker.build("plain").eval()
    model.save_pretrained(out)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    with LLM(str(out), skip_tokenizer_init=True, num_gpu_blocks_override=400, cpu_threads=2) as llm:
        yield model, llm


@pytest.mark.parametrize(("width", "length"), [(2, 12), (4, 8), (7, 5)])
def test_sequences_and_scores(pair, width, length):
    model, llm = pair
    found = llm.beam_search(PROMPTS, BeamSearchParams(width, length, ignore_eos=True))
    for prompt, output in zip(PROMPTS, found, strict=True):
        with torch.inference_mode():
            want = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                num_beams=width,
                num_return_sequences=width,
                max_new_tokens=length,
                do_sample=False,
                length_penalty=0.0,  # scores are then the cumulative log probabilities
                output_scores=True,
                return_dict_in_generate=True,
            )
        assert [b.tokens for b in output.sequences] == want.sequences.tolist()
        assert [b.cum_logprob for b in output.sequences] == pytest.approx(want.sequences_scores.tolist(), abs=2e-3)
