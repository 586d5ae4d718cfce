"""Every sampling parameter through the whole engine: each output token is the one that the plain reference picks."""

import numpy as np
import pytest
import torch
from sampling_reference import dry, log_softmax, penalize, row
from smollm2_support import ids_of
from transformers.generation import logits_process as hf

from fastllm_core import SamplingParams
from fastllm_core.inputs import bad_word_tokens

TOKENS = 8
PROMPT = "one two three one two three one two"
RAW = {"max_logprobs": -1, "logprobs_mode": "raw_logits", "max_num_seqs": 32, "batch_invariant": True}
PROCESSED = {**RAW, "logprobs_mode": "processed_logprobs"}


@pytest.fixture(scope="module")
def prompt(make_llm) -> list[int]:
    return make_llm(**RAW).get_tokenizer().encode(PROMPT)


@pytest.fixture(scope="module")
def plain(make_llm, prompt) -> list[int]:
    return ids_of(make_llm(**RAW), [prompt], greedy())[0]


def greedy(**more) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True, **more})


def run(llm, prompt, params):
    return llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)[0].outputs[0]


def cases(plain: list[int], tokenizer) -> dict[str, dict]:
    some = tokenizer.encode(" a few other words to choose from, or not", add_special_tokens=False)
    return {
        "presence_penalty": {"presence_penalty": 2.0},
        "frequency_penalty": {"frequency_penalty": 2.0},
        "frequency_penalty_negative": {"frequency_penalty": -2.0, "logit_bias": {some[2]: 5.0}},
        "repetition_penalty": {"repetition_penalty": 1.8},
        "logit_bias": {"logit_bias": {plain[0]: -100.0, some[0]: 7.5, some[1]: 7.0}},
        "allowed_token_ids": {"allowed_token_ids": some},
        "bad_words_token_ids": {"bad_words_token_ids": [plain[1:3], [plain[4]]]},
        "all": {
            "presence_penalty": 0.5,
            "frequency_penalty": 0.4,
            "repetition_penalty": 1.2,
            "logit_bias": {some[0]: 3.0, plain[0]: -2.0},
            "bad_words_token_ids": [[plain[3]], plain[5:7]],
        },
    }


def test_greedy_tokens_are_those_of_the_reference(make_llm, prompt, plain):
    llm = make_llm(**RAW)
    size = llm.info.vocab_size
    for name, options in cases(plain, llm.get_tokenizer()).items():
        params = greedy(logprobs=-1, **options)
        got = run(llm, prompt, params)
        assert got.token_ids != plain, name
        for i, token in enumerate(got.token_ids):
            x = penalize(row(got.logprobs[i], size), prompt, got.token_ids[:i], params)
            best = np.flatnonzero(x >= x.max() - 1e-4)
            assert token in best, (name, i)
        assert ids_of(llm, [prompt], greedy(**options))[0] == got.token_ids, name


def test_dry_is_its_definition(make_llm, prompt):
    llm = make_llm(**RAW)
    tokenizer = llm.get_tokenizer()
    prompt = prompt[:6] * 4  # a greedy model goes on with it
    plain = ids_of(llm, [prompt], greedy(max_tokens=4))[0]
    pieces = [tokenizer.token_bytes(t) for t in range(llm.info.vocab_size)]
    for options in (
        {"dry_multiplier": 2.0, "dry_allowed_length": 1},
        {"dry_multiplier": 3.0, "dry_base": 1.2, "dry_range": 6, "dry_allowed_length": 1},
        {"dry_multiplier": 9.0, "dry_sequence_breakers": ["two"], "dry_allowed_length": 1},
    ):
        params = greedy(max_tokens=4, logprobs=-1, **options)
        got = run(llm, prompt, params)
        breakers = {t for t, p in enumerate(pieces) if any(b.encode() in p for b in params.dry_sequence_breakers)}
        for i, token in enumerate(got.token_ids):
            x = dry(row(got.logprobs[i], len(pieces)), prompt + got.token_ids[:i], params, breakers)
            assert x[token] >= x.max() - 1e-4, (options, i)
        assert got.token_ids != plain, options


def test_penalties_agree_with_transformers(make_llm, prompt):
    llm = make_llm(**RAW)
    got = run(llm, prompt, greedy(logprobs=-1, repetition_penalty=1.5, bad_words_token_ids=[[284]]))
    processors = [
        hf.RepetitionPenaltyLogitsProcessor(1.5),
        hf.NoBadWordsLogitsProcessor([[284]], eos_token_id=0),
    ]
    for i, token in enumerate(got.token_ids):
        history = torch.tensor([prompt + got.token_ids[:i]])
        scores = torch.tensor(row(got.logprobs[i], llm.info.vocab_size), dtype=torch.float32)[None]
        for processor in processors:
            scores = processor(history, scores)
        assert scores[0, token] >= scores.max() - 1e-4


WARPERS = {
    "top_k": ({"top_k": 7}, hf.TopKLogitsWarper(7)),
    "top_p": ({"top_p": 0.7}, hf.TopPLogitsWarper(0.7)),
    "min_p": ({"min_p": 0.08}, hf.MinPLogitsWarper(0.08)),
    "typical_p": ({"typical_p": 0.6}, hf.TypicalLogitsWarper(0.6)),
}


@pytest.mark.parametrize("name", WARPERS)
def test_filters_keep_what_transformers_keeps(make_llm, prompt, name):
    """The same seed draws the same tokens in both modes; processed logprobs are those of the filtered logits."""
    options, warper = WARPERS[name]
    params = SamplingParams(temperature=1.3, seed=5, max_tokens=3, ignore_eos=True, logprobs=-1, **options)
    raw, processed = run(make_llm(**RAW), prompt, params), run(make_llm(**PROCESSED), prompt, params)
    assert raw.token_ids == processed.token_ids
    size = make_llm(**RAW).info.vocab_size
    for before, after in zip(raw.logprobs, processed.logprobs):
        scores = torch.tensor(row(before, size) / 1.3)[None]
        want = warper(torch.tensor([prompt]), scores)[0].numpy()
        got = row(after, size)
        kept, expected = set(np.flatnonzero(np.isfinite(got))), set(np.flatnonzero(np.isfinite(want)))
        assert len(kept ^ expected) <= 1, "but for a token at the edge, where float32 rounds"
        if kept == expected:
            np.testing.assert_allclose(got[list(kept)], log_softmax(want)[list(kept)], atol=1e-4)


def test_top_n_sigma_and_xtc(make_llm, prompt):
    raw, processed = make_llm(**RAW), make_llm(**PROCESSED)
    size = raw.info.vocab_size
    base = {"temperature": 1.5, "seed": 3, "max_tokens": 3, "ignore_eos": True, "logprobs": -1}
    for options in ({"top_n_sigma": 1.0}, {"xtc_probability": 1.0, "xtc_threshold": 0.05}):
        params = SamplingParams(**base, **options)
        before, after = run(raw, prompt, params), run(processed, prompt, params)
        assert before.token_ids == after.token_ids
        for x, y in zip(before.logprobs, after.logprobs):
            x, kept = row(x, size), set(np.flatnonzero(np.isfinite(row(y, size))))
            if "top_n_sigma" in options:
                want = set(np.flatnonzero(x >= x.max() - x.std()))
            else:
                p = np.exp(log_softmax(x / 1.5))
                order = np.argsort(-p)
                top = [t for t in order if p[t] >= 0.05]
                want = set(order) - set(top[:-1])
            assert len(kept ^ want) <= 1


def test_min_tokens_holds_back_every_stop_token(make_llm, prompt):
    """The model's own end, another that the request names, and both pushed with a bias (A32)."""
    llm = make_llm(**RAW)
    eos = llm.info.eos_token_ids
    assert eos
    params = SamplingParams(
        temperature=0.0, max_tokens=20, min_tokens=7, stop_token_ids=[30], logit_bias={eos[0]: 100.0, 30: 90.0}
    )
    got = run(llm, prompt, params)
    assert len(got.token_ids) == 8
    assert not {eos[0], 30} & set(got.token_ids[:7])
    assert (got.token_ids[7], got.finish_reason, got.stop_reason) == (eos[0], "stop", None)


def test_bad_words_as_text_never_appear(make_llm, prompt, plain):
    llm = make_llm(**RAW)
    tokenizer = llm.get_tokenizer()
    text = tokenizer.decode(plain)
    words = [w for w in text.split() if w.isalpha()][:2]
    assert words
    got = run(llm, prompt, greedy(bad_words=words))
    for word in words:
        assert word not in got.text.split()
    both = bad_word_tokens(["three"], tokenizer)
    assert both == [tokenizer.encode(w, add_special_tokens=False) for w in ("three", " three")]


def test_truncation_keeps_the_end(make_llm, prompt, plain):
    llm = make_llm(**RAW)
    out = llm.generate(
        {"prompt_token_ids": [5] * 40 + prompt}, greedy(truncate_prompt_tokens=len(prompt)), use_tqdm=False
    )
    assert out[0].prompt_token_ids == prompt
    assert out[0].outputs[0].token_ids == plain
    right = greedy(truncate_prompt_tokens=3, truncation_side="right")
    assert llm.generate({"prompt_token_ids": prompt}, right, use_tqdm=False)[0].prompt_token_ids == prompt[:3]
    limit = llm.info.max_model_len
    with pytest.raises(ValueError, match="must have at most"):
        llm.generate({"prompt_token_ids": [5] * (limit + 1)}, greedy(), use_tqdm=False)


REFUSED = [
    ({"logit_bias": {49152: 5}}, "logit_bias token id must be in"),
    ({"logit_bias": {"-1": 5}}, "logit_bias token id must be at least 0"),
    ({"logit_bias": {"abc": 1}}, "logit_bias keys must be token ids, got 'abc'"),
    ({"logit_bias": {5: 1000}}, r"logit_bias\[5\] must be in \[-100, 100\], got 1000"),
    ({"logit_bias": {5: float("nan")}}, r"logit_bias\[5\] must be in \[-100, 100\], got nan"),
    ({"allowed_token_ids": []}, "allowed_token_ids must not be empty"),
    ({"allowed_token_ids": [1] * 10**6}, "allowed_token_ids must hold at most 49152"),
    ({"bad_words": ["a"] * 129}, "bad_words must hold at most 128"),
    ({"bad_words": [""]}, "bad_words must not be empty or blank"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens must be at most max_tokens"),
    ({"presence_penalty": 3.0}, "presence_penalty must be in"),
    ({"repetition_penalty": 0}, "repetition_penalty must be greater than 0"),
    ({"dry_multiplier": 1.0, "dry_sequence_breakers": ["no token holds this text"]}, "is in no token"),
    ({"extra_args": [1]}, "extra_args must be a JSON object"),
]


@pytest.mark.parametrize(
    "options, message", REFUSED, ids=[str(next(iter(o))) + str(i) for i, (o, _) in enumerate(REFUSED)]
)
def test_bad_values_are_refused_by_name(make_llm, prompt, plain, options, message):
    llm = make_llm(**RAW)
    with pytest.raises(ValueError, match=message):
        llm.generate({"prompt_token_ids": prompt}, SamplingParams(**options), use_tqdm=False)
    assert ids_of(llm, [prompt], greedy())[0] == plain


def everything(i: int, plain: list[int]) -> SamplingParams:
    """Request i of a mixed load: every feature is in some of them."""
    options = {
        "temperature": 0.0 if i % 3 == 0 else 0.9,
        "seed": i,
        "max_tokens": 8 + i,
        "ignore_eos": True,
    }
    extra = [
        {},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5},
        {"repetition_penalty": 1.4, "logprobs": 3},
        {"logit_bias": {plain[0]: 5.0, 300: 2.0}, "logprobs": 0},
        {"bad_words_token_ids": [[plain[0]], plain[1:3]], "typical_p": 0.8},
        {"allowed_token_ids": list(range(200, 900)), "top_n_sigma": 1.5, "logprob_token_ids": [200, 201]},
        {"dry_multiplier": 1.0, "dry_allowed_length": 1, "xtc_probability": 0.5, "prompt_logprobs": 2},
        {"min_tokens": 5, "top_p": 0.9, "min_p": 0.01, "logprobs": 5},
    ]
    return SamplingParams(**options, **extra[i % len(extra)])


def outcome(output) -> tuple:
    completion = output.outputs[0]
    values = [[round(e.logprob, 3) for e in p.values()] for p in completion.logprobs or []]
    prompt_values = [[round(e.logprob, 3) for e in p.values()] for p in (output.prompt_logprobs or [])[1:]]
    return completion.token_ids, completion.text, values, prompt_values


def test_mixed_requests_alone_together_overlapped_and_preempted(make_llm, golden, plain):
    prompts = [p["prompt_ids"][:40] for p in golden if len(p["prompt_ids"]) >= 8]
    load = [({"prompt_token_ids": prompts[i % len(prompts)]}, everything(i, plain)) for i in range(16)]
    together = make_llm(**RAW, enable_prefix_caching=False)
    alone = [outcome(together.generate(p, s, use_tqdm=False)[0]) for p, s in load]
    batch = [outcome(o) for o in together.generate([p for p, _ in load], [s for _, s in load], use_tqdm=False)]
    for i, (a, b) in enumerate(zip(alone, batch)):
        assert a[0] == b[0], f"tokens of request {i} depend on its batch mates"
        assert_close(a, b)
    small = {**RAW, "num_gpu_blocks_override": 14, "max_num_batched_tokens": 64, "max_num_seqs": 8}
    for overlapped in (True, False):
        llm = make_llm(**small, async_scheduling=overlapped)
        before = llm.stats().preemptions
        got = [outcome(o) for o in llm.generate([p for p, _ in load], [s for _, s in load], use_tqdm=False)]
        assert llm.stats().preemptions > before
        for a, b in zip(alone, got):
            assert a[:2] == b[:2]
            assert_close(a, b)


def assert_close(a: tuple, b: tuple) -> None:
    for x, y in zip(a[2] + a[3], b[2] + b[3], strict=True):
        np.testing.assert_allclose(x, y, atol=5e-3)
