"""Log probabilities, n, penalties and biases through the API, checked against the engine's own Python interface."""

import math

import pytest
from openai.types import Completion
from server_support import TINY_ARGS, events

from fastllm_core import LLM, SamplingParams

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
IDS = list(range(40, 60))


@pytest.fixture(scope="module")
def reference(tiny_folder):
    """What LLM says of the prompt: greedy ids with logprobs, and prompt logprobs."""
    with LLM(tiny_folder, load_format="dummy", cpu_threads=1) as llm:
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=3, prompt_logprobs=3)
        return llm.generate({"prompt_token_ids": IDS}, params, use_tqdm=False)[0]


def test_the_server_runs_the_reference_model(reference, tiny):
    assert "dummy" in TINY_ARGS
    out = tiny.complete(IDS, 6, return_token_ids=True)["choices"][0]
    assert out["token_ids"] == reference.outputs[0].token_ids


def test_completion_logprobs(tiny, reference):
    out = tiny.complete(IDS, 6, logprobs=3, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]
    wanted = reference.outputs[0].logprobs
    assert out["tokens"] == [f"token_id:{i}" for i in reference.outputs[0].token_ids]
    for n, position in enumerate(wanted):
        token = reference.outputs[0].token_ids[n]
        assert out["token_logprobs"][n] == pytest.approx(position[token].logprob, abs=1e-6)
        assert set(out["top_logprobs"][n]) == {f"token_id:{i}" for i in position}
        assert out["token_logprobs"][n] == max(out["top_logprobs"][n].values())  # exactly: greedy
    assert out["text_offset"] == [sum(map(len, out["tokens"][:n])) for n in range(6)]


@pytest.mark.parametrize("length", [15, 16, 17, 33, 100])
def test_echo_with_logprobs(tiny, length):
    """A11, A12: what evaluation harnesses send, twice, at the edges of blocks: one entry per token, the first null."""
    ids = [40 + n % 200 for n in range(length)]
    body = {"prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0, "seed": 1234}
    body["return_tokens_as_token_ids"] = True  # two tokens may have one text
    first, second = (tiny.post(COMPLETIONS, body) for _ in range(2))
    assert first.status_code == second.status_code == 200
    out = first.json()["choices"][0]["logprobs"]
    assert {len(out[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {length + 1}
    assert out["token_logprobs"][0] is None
    assert out["top_logprobs"][0] is None
    assert out["token_logprobs"] == second.json()["choices"][0]["logprobs"]["token_logprobs"]
    for value, top in zip(out["token_logprobs"][1:], out["top_logprobs"][1:]):
        assert value <= max(top.values())
        assert value in top.values()


def test_echo_logprobs_are_the_prompts(tiny, reference):
    body = {"prompt": IDS, "echo": True, "logprobs": 3, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    out = tiny.post(COMPLETIONS, body).json()["choices"][0]["logprobs"]["token_logprobs"]
    wanted = [p[i].logprob for p, i in zip(reference.prompt_logprobs[1:], IDS[1:])]
    wanted += [p[i].logprob for p, i in zip(reference.outputs[0].logprobs, reference.outputs[0].token_ids)]
    assert out[1:] == pytest.approx(wanted, abs=1e-5)


def test_prompt_logprobs(tiny, reference):
    out = tiny.complete(IDS, 1, prompt_logprobs=3)["choices"][0]["prompt_logprobs"]
    assert out[0] is None
    for got, wanted in zip(out[1:], reference.prompt_logprobs[1:]):
        assert {int(k): pytest.approx(v.logprob, abs=1e-5) for k, v in wanted.items()} == {
            int(k): v["logprob"] for k, v in got.items()
        } or got.keys() == {str(k) for k in wanted}
    refused = tiny.post(COMPLETIONS, {"prompt": IDS, "prompt_logprobs": 3, "stream": True})
    assert refused.status_code == 400


def test_too_many_logprobs(tiny):
    """A84, A26: the limit is 20."""
    assert tiny.post(COMPLETIONS, {"prompt": IDS, "logprobs": 20, "max_tokens": 2}).status_code == 200
    for body in ({"logprobs": 21}, {"logprobs": 10**6}, {"prompt_logprobs": 21}, {"prompt_logprobs": -2}):
        assert tiny.post(COMPLETIONS, {"prompt": IDS, **body}).status_code == 400
    messages = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
    for body in ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 21}, {"logprobs": 5}):
        assert tiny.post(CHAT, {**messages, **body}).status_code == 400


def test_chat_logprobs(tiny):
    """A23, A24, A45: bytes are each token's own, and joined they are the text; streamed as in whole."""
    ask = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 30, "temperature": 1.5, "seed": 3}
    ask |= {"logprobs": True, "top_logprobs": 2, "ignore_eos": True, "skip_special_tokens": False}
    choice = tiny.post(CHAT, ask).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert len(content) == 30
    joined = b"".join(bytes(entry["bytes"]) for entry in content)
    assert joined.decode("utf-8", "replace") == choice["message"]["content"]
    for entry in content:
        assert len(entry["top_logprobs"]) == 2
        assert entry["top_logprobs"][0]["logprob"] >= entry["top_logprobs"][1]["logprob"]
        assert entry["logprob"] <= entry["top_logprobs"][0]["logprob"]
    with tiny.http() as http, http.stream("POST", CHAT, json={**ask, "stream": True}) as r:
        streamed = [e["choices"][0]["logprobs"] for e in events(r)[:-1]]
    assert [entry for part in streamed if part for entry in part["content"]] == content
    plain = tiny.post(CHAT, {**ask, "top_logprobs": 0}).json()["choices"][0]["logprobs"]["content"]
    assert all(entry["top_logprobs"] == [] and entry["bytes"] for entry in plain)


def test_as_many_logprobs_as_may_be_of_parts_of_characters(tiny):
    """A26: tokens that are no text of their own in an answer that the official client's model accepts."""
    parts = tiny.post("/tokenize", {"prompt": "\U0001f600", "add_special_tokens": False}).json()["tokens"]
    assert len(parts) > 1
    body = {"prompt": IDS, "max_tokens": 8, "ignore_eos": True, "logprobs": 20, "allowed_token_ids": parts}
    response = tiny.post(COMPLETIONS, body)
    assert response.status_code == 200
    out = Completion.model_validate(response.json()).choices[0].logprobs
    assert len(out.tokens) == len(out.token_logprobs) == len(out.top_logprobs) == 8
    for value, top in zip(out.token_logprobs, out.top_logprobs):
        assert math.isfinite(value)
        assert len(top) >= 1


def test_several_choices(tiny):
    """A27: n answers with their own indices, texts and reasons, streamed or not; usage is their sum."""
    ask = {"prompt": [IDS, IDS[:5]], "n": 3, "max_tokens": 8, "temperature": 1, "seed": 11, "ignore_eos": True}
    ask |= {"return_token_ids": True}
    whole = tiny.post(COMPLETIONS, ask).json()
    assert [c["index"] for c in whole["choices"]] == list(range(6))
    texts = [tuple(c["token_ids"]) for c in whole["choices"]]
    assert len(set(texts)) == 6
    assert whole["usage"]["completion_tokens"] == 48
    assert whole["usage"]["prompt_tokens"] == 25
    for n in range(3):
        alone = tiny.complete(IDS, 8, temperature=1, seed=11 + n, return_token_ids=True)
        assert tuple(alone["choices"][0]["token_ids"]) == texts[n]
    with tiny.http() as http:
        body = {**ask, "stream": True, "stream_options": {"include_usage": True}}
        with http.stream("POST", COMPLETIONS, json=body) as r:
            got = events(r)
    joined = {n: [] for n in range(6)}
    reasons = {n: [] for n in range(6)}
    for event in got[:-2]:
        for choice in event["choices"]:
            joined[choice["index"]] += choice["token_ids"]
            reasons[choice["index"]].append(choice["finish_reason"])
    assert [tuple(joined[n]) for n in range(6)] == texts
    assert all(r[-1] == "length" and set(r[:-1]) <= {None} for r in reasons.values())
    assert got[-2]["usage"]["completion_tokens"] == 48
    chat = {"messages": [{"role": "user", "content": "a"}], "n": 2, "max_tokens": 4, "ignore_eos": True, "stream": True}
    with tiny.http() as http, http.stream("POST", CHAT, json=chat) as r:
        roles = [c["index"] for e in events(r)[:-1] for c in e["choices"] if "role" in c["delta"]]
    assert roles == [0, 1]


def test_n_is_bounded(tiny):
    """A28"""
    for body in ({"n": 0}, {"n": 10**9}, {"n": 2, "temperature": 0}, {"n": 16384, "prompt": [[5], [6]]}):
        assert tiny.post(COMPLETIONS, {"prompt": IDS, **body}).status_code == 400


def test_logit_bias(tiny, reference):
    """A34, A35"""
    first = reference.outputs[0].token_ids[0]
    banned = tiny.complete(IDS, 6, logit_bias={str(first): -100}, return_token_ids=True)["choices"][0]["token_ids"]
    assert first not in banned
    forced = tiny.complete(IDS, 3, logit_bias={"77": 100}, return_token_ids=True)["choices"][0]["token_ids"]
    assert forced == [77, 77, 77]
    for bad in (
        {"320": 1},
        {"-1": 1},
        {"abc": 1},
        {"5": 1000},
        {"5": "x"},
        {"5": None},
        [5],
        {str(n): 1 for n in range(2000)},
    ):
        answer = tiny.post(COMPLETIONS, {"prompt": IDS, "logit_bias": bad})
        assert answer.status_code == 400, bad
        assert answer.json()["error"]["param"] == "logit_bias" or "logit_bias" in answer.json()["error"]["message"]


def test_allowed_tokens_and_bad_words(tiny):
    out = tiny.complete(IDS, 6, allowed_token_ids=[70, 71], return_token_ids=True)["choices"][0]
    assert set(out["token_ids"]) <= {70, 71}
    for bad in ([], [320], list(range(2000))):
        assert tiny.post(COMPLETIONS, {"prompt": IDS, "allowed_token_ids": bad}).status_code == 400
    text = tiny.complete(IDS, 6, allowed_token_ids=[70, 71])["choices"][0]["text"]
    other = tiny.complete(IDS, 6, allowed_token_ids=[70, 71], bad_words=[text[0]])["choices"][0]["text"]
    assert text[0] not in other
    for bad in ([""], ["x"] * 129, ["x" * 1000]):
        assert tiny.post(COMPLETIONS, {"prompt": IDS, "bad_words": bad}).status_code == 400


def test_penalties(tiny):
    """A30, A31: frequency_penalty keeps a forced token from coming back; a neighbour is not touched."""
    pair = tiny.complete(IDS, 6, logit_bias={"77": 8}, frequency_penalty=2, return_token_ids=True)["choices"][0]
    alone = tiny.complete(IDS, 6, logit_bias={"77": 8}, return_token_ids=True)["choices"][0]
    assert alone["token_ids"].count(77) > pair["token_ids"].count(77)
    for name in ("presence_penalty", "frequency_penalty"):
        for value in (-2.1, 2.1):
            assert tiny.post(COMPLETIONS, {"prompt": IDS, name: value}).status_code == 400
    assert tiny.post(COMPLETIONS, {"prompt": IDS, "repetition_penalty": 0}).status_code == 400


def test_logprobs_are_numbers_of_json(tiny):
    """A token that cannot be picked has a floor, not minus infinity."""
    out = tiny.complete(IDS, 2, allowed_token_ids=[70], logprobs=5)["choices"][0]["logprobs"]
    assert all(math.isfinite(v) and v >= -9999 for top in out["top_logprobs"] for v in top.values())
