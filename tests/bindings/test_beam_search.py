"""LLM.beam_search against a search by hand, and its edges."""

import itertools
import math

import pytest

from fastllm_core import LLM, BeamSearchParams, InvalidArgumentError, SamplingParams

PROMPT = [5, 17, 200, 33, 8]


@pytest.fixture(scope="module")
def llm(tiny_options):
    with LLM(**tiny_options) as made:
        yield made


def next_logprobs(llm, tokens: list[int], count: int) -> list[tuple[int, float]]:
    params = SamplingParams(max_tokens=1, temperature=0.0, logprobs=count)
    (output,) = llm.generate([{"prompt_token_ids": tokens}], params, use_tqdm=False)
    return [(token, lp.logprob) for token, lp in output.outputs[0].logprobs[0].items()]


def test_a_beam_of_one_is_greedy(llm):
    (found,) = llm.beam_search([{"prompt_token_ids": PROMPT}], BeamSearchParams(1, 6, ignore_eos=True))
    greedy = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=0)
    (output,) = llm.generate([{"prompt_token_ids": PROMPT}], greedy, use_tqdm=False)
    (beam,) = found.sequences
    assert beam.tokens == PROMPT + list(output.outputs[0].token_ids)
    assert beam.cum_logprob == pytest.approx(output.outputs[0].cumulative_logprob, abs=1e-4)
    assert beam.finish_reason == "length"
    assert beam.orig_prompt == {"prompt_token_ids": PROMPT}
    assert beam.text is None  # there is no tokenizer
    assert len(beam.logprobs) == 6


def test_beams_are_the_best_of_all_that_were_tried(llm):
    width, length = 3, 4
    beams = [(0.0, PROMPT)]
    for _ in range(length):
        tried = [(s + lp, t + [token]) for s, t in beams for token, lp in next_logprobs(llm, t, 2 * width)]
        beams = sorted(tried, key=lambda b: b[0], reverse=True)[:width]
    (found,) = llm.beam_search(PROMPT, BeamSearchParams(width, length, ignore_eos=True))
    assert [b.tokens for b in found.sequences] == [t for _, t in beams]
    assert [b.cum_logprob for b in found.sequences] == pytest.approx([s for s, _ in beams], abs=1e-4)


@pytest.mark.parametrize("penalty", [0.0, 1.0, 3.0])
def test_beams_that_end_are_scored_by_their_length(llm, tiny_options, penalty):
    # Of the tokens that come up, one is made the end of sequence.
    eos = next_logprobs(llm, PROMPT, 2)[1][0]
    width, length = 2, 3
    live, done = [(0.0, PROMPT)], []
    for _ in range(length):
        tried = [(s + lp, t, token) for s, t in live for token, lp in next_logprobs(llm, t, 2 * width)]
        done += [(s / len(t) ** penalty, t, "stop") for s, t, token in tried if token == eos]
        rest = [(s, t + [token]) for s, t, token in tried if token != eos]
        live = sorted(rest, key=lambda b: b[0] / len(b[1]) ** penalty, reverse=True)[:width]
    done += [(s / len(t) ** penalty, t, "length") for s, t in live]
    want = sorted(done, key=lambda b: b[0], reverse=True)[:width]
    with LLM(**{**tiny_options, "model": with_eos(tiny_options["model"], eos)}) as other:
        params = BeamSearchParams(width, length, length_penalty=penalty)
        (found,) = other.beam_search(PROMPT, params)
        assert [(b.tokens, b.finish_reason) for b in found.sequences] == [(t, why) for _, t, why in want]
        params.include_stop_str_in_output = True
        (kept,) = other.beam_search(PROMPT, params)
        for with_stop, without in zip(kept.sequences, found.sequences, strict=True):
            ended = without.finish_reason == "stop"
            assert with_stop.tokens == without.tokens + [eos] * ended
            assert with_stop.stop_reason == (eos if ended else None)
    assert penalty > 0 or any(why == "stop" for _, _, why in want)


@pytest.fixture(autouse=True, scope="module")
def folders(tmp_path_factory):
    global _folder
    _folder = tmp_path_factory.mktemp("eos")


def with_eos(model: str, eos: int) -> str:
    import json
    import pathlib

    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    folder = _folder / str(eos)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": eos}))
    return str(folder)


def test_prompts_are_searched_each_for_itself(llm):
    prompts = [[5, 6, 7], {"prompt_token_ids": [9] * 40}, PROMPT]
    params = BeamSearchParams(2, 5, ignore_eos=True)
    together = llm.beam_search(prompts, params)
    for limit in (None, 1, 2):
        again = llm.beam_search(prompts, params, concurrency_limit=limit)
        assert [[b.tokens for b in o.sequences] for o in again] == [[b.tokens for b in o.sequences] for o in together]
    alone = [llm.beam_search(p, params)[0] for p in prompts]
    assert [[b.tokens for b in o.sequences] for o in alone] == [[b.tokens for b in o.sequences] for o in together]


def test_beams_share_the_kv_of_their_tokens(tiny_options):
    with LLM(**tiny_options) as llm:
        llm.beam_search([i % 300 for i in range(160)], BeamSearchParams(4, 6, ignore_eos=True))
        stats = llm.stats()
        # First the prompt; then 5 rounds of 4 beams that compute what is behind the prompt's 10 full blocks.
        assert stats.scheduled_tokens == 160 + 4 * sum(range(1, 6))
        assert stats.prefix_hit_tokens == 4 * 5 * 160


def test_the_context_ends_a_search(tiny_options):
    with LLM(**tiny_options, max_model_len=16) as llm:
        (found,) = llm.beam_search([3] * 12, BeamSearchParams(2, 50, ignore_eos=True))
        assert [len(b.tokens) for b in found.sequences] == [16, 16]
        with pytest.raises(InvalidArgumentError, match=r"prompt 0: .*at most 15"):
            llm.beam_search([[3] * 16], BeamSearchParams(2, 5))


def test_limits(llm):
    for bad in ({"beam_width": 0}, {"max_tokens": 0}, {"length_penalty": math.inf}, {"temperature": -1.0}):
        with pytest.raises(InvalidArgumentError, match=next(iter(bad))):
            BeamSearchParams(**{"beam_width": 2, "max_tokens": 2, **bad})
    with pytest.raises(InvalidArgumentError, match="max_logprobs"):
        llm.beam_search(PROMPT, BeamSearchParams(11, 2))
    with pytest.raises(InvalidArgumentError, match="concurrency_limit"):
        llm.beam_search(PROMPT, BeamSearchParams(2, 2), concurrency_limit=0)
    assert llm.beam_search([], BeamSearchParams(2, 2)) == []


def test_text_is_of_prompt_and_output(smollm2):
    with LLM(model="smollm2", cpu_threads=2) as llm:
        (found,) = llm.beam_search("The capital of France is", BeamSearchParams(3, 6))
        texts = [b.text for b in found.sequences]
        assert all(t.startswith("The capital of France is") for t in texts)
        assert "Paris" in texts[0]
        scores = [b.cum_logprob / len(b.tokens) for b in found.sequences if b.finish_reason == "length"]
        assert all(a >= b for a, b in itertools.pairwise(scores))
