"""What requests may say: limits, odd values, fields that are not there. Nothing of it touches anybody else."""

import json

import pytest
from server_support import events

from fastllm_core import SamplingParams
from fastllm_core.server.common import STATEMENTS

IDS = [10, 20, 30, 40]
HI = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
LOGPROBS = "message.output_text.logprobs"


def refused(server, body, path=COMPLETIONS, status=400, **options) -> dict:
    """The error object of a request that must be refused."""
    answer = server.post(path, body, **options)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    return error


@pytest.fixture(autouse=True)
def unharmed(tiny):
    """After every case a request gives what it gave before, and no block is held."""
    yield
    out = tiny.complete(IDS, 6, return_token_ids=True)["choices"][0]
    assert len(out["token_ids"]) == 6
    assert out["token_ids"] == unharmed_ids.setdefault("base", out["token_ids"])
    assert tiny.get("/health").status_code == 200
    assert tiny.metric("kv_cache_usage_perc") == 0


unharmed_ids: dict[str, list[int]] = {}


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], None, {}, 5, True])
def test_empty_and_odd_prompts(tiny, prompt):
    """A42"""
    assert refused(tiny, {"prompt": prompt})["param"] == "prompt"


@pytest.mark.parametrize(
    "ids", [[320], [-1], [2**31], [2**63], [1.5], [1, "a"], [[1], 2], [[1], ["a"]], [True], [None], [1, [2]]]
)
def test_token_ids_outside_the_vocabulary(tiny, ids):
    """A43"""
    refused(tiny, {"prompt": ids})


def test_what_is_no_token_id_is_found_behind_many(tiny):
    """Lists are looked at by the types in them; an odd item is named all the same."""
    for odd in (True, None, 1.5):
        assert f"prompt[150] must be a token id, got {odd!r}" in refused(tiny, {"prompt": [5] * 150 + [odd]})["message"]
    assert "prompt[0][150] must" in refused(tiny, {"prompt": [[5] * 150 + [True], [5]]})["message"]
    with tiny.http(headers={"content-type": "application/json"}) as http:
        answer = http.post(COMPLETIONS, content=b'{"prompt": [' + b"5," * 150 + b'"\\ud800"]}')
        assert "surrogate" in answer.json()["error"]["message"]
        answer = http.post(COMPLETIONS, content=b'{"prompt": [' + b"5," * 150 + b"[" * 70 + b"]" * 71 + b"}")
        assert "nested more than" in answer.json()["error"]["message"]


def test_messages_of_no_shape(tiny):
    for messages in ([], None, "hi", [5], [{}], [{"role": "user", "content": 5}], [{"content": "x"}], {"role": "user"}):
        refused(tiny, {"messages": messages}, CHAT)
    error = refused(tiny, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, CHAT)
    assert "image_url" in error["message"]


def test_content_parts_and_roles(tiny):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {"messages": [{"role": "judge", "content": parts}], "max_tokens": 2, "return_token_ids": True}
    ids = tiny.post(CHAT, body).json()["prompt_token_ids"]
    text = tiny.post("/detokenize", {"tokens": ids}).json()["prompt"]
    assert text == "<|im_start|>judge\na\nb<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have(tiny, value):
    """A36"""
    text = f'{{"prompt": [5], "temperature": {value}}}'
    with tiny.http(headers={"content-type": "application/json"}) as http:
        answer = http.post(COMPLETIONS, content=text)
    assert answer.status_code == 400
    assert value in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 1e39),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 10**12),
        ("top_k", 1.5),
        ("min_p", -1),
        ("max_tokens", -1),
        ("max_tokens", 0),
        ("max_tokens", "1"),
        ("max_tokens", 10**30),
        ("min_tokens", 17),
        ("seed", 2**64),
        ("stop", [""]),
        ("stop", ""),
        ("stop", ["x"] * 9),
        ("stop", [1]),
        ("stop_token_ids", [320]),
        ("stop_token_ids", list(range(2000))),
        ("n", 10**9),
        ("best_of", 10**9),
        ("stream", "yes"),
        ("stream", 1),
        ("stream_interval", 0),
        ("stream_options", {"include_usage": True}),
        ("truncate_prompt_tokens", 0),
        ("truncate_prompt_tokens", -2),
        ("truncation_side", "middle"),
        ("cache_salt", 5),
        ("ignore_eos", "true"),
    ],
)
def test_values_outside_their_limits(tiny, name, value):
    """A18, A28, A36, A39, A47: the error names the field."""
    error = refused(tiny, {"prompt": IDS, name: value})
    assert error["param"].partition("[")[0] == name
    assert name in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": [5, 320]}, "prompt[1]"),
        (COMPLETIONS, {"prompt": [2**63]}, "prompt[0]"),
        (COMPLETIONS, {"prompt": IDS, "logit_bias": {"320": 1}}, "logit_bias"),
        (COMPLETIONS, {"prompt": IDS, "allowed_token_ids": [5, 320]}, "allowed_token_ids[1]"),
        (COMPLETIONS, {"prompt": IDS, "logprobs": 21}, "logprobs"),
        (COMPLETIONS, {"prompt": IDS, "priority": 5}, "priority"),
        (CHAT, {**HI, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {**HI, "logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        (CHAT, {"messages": [*HI["messages"], {"content": "x"}]}, "messages[1]"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0]"),
        (RESPONSES, {"input": []}, "input"),
        (RESPONSES, {"input": "a", "include": [LOGPROBS], "top_logprobs": 21}, "top_logprobs"),
        (RESPONSES, {"input": "a", "metadata": {"a": 1}}, "metadata.a"),
        (RESPONSES, {"input": "a", "metadata": {"a": "x" * 513}}, "metadata.a"),
        (RESPONSES, {"input": "a", "metadata": {"a" * 65: "x"}}, "metadata"),
    ],
)
def test_the_error_names_the_field_of_the_route(tiny, path, body, param):
    """Also where the engine or the chat template finds it, which have other names for it."""
    error = refused(tiny, body, path)
    assert error["param"] == param
    assert param.partition("[")[0] in error["message"]


def test_tiny_temperature_is_greedy(tiny):
    """A36"""
    greedy = tiny.complete(IDS, 6, return_token_ids=True)["choices"][0]["token_ids"]
    for t in (1e-6, 1e-38):
        assert tiny.complete(IDS, 6, temperature=t, return_token_ids=True)["choices"][0]["token_ids"] == greedy


def test_every_field_that_is_not_there_is_refused_by_name(tiny):
    known = {f.name for f in SamplingParams.fields()}
    values = {"n": 2, "best_of": 2, "logprobs": True, "store": True, "include_reasoning": False, "length_penalty": 2.0}
    values |= {"tool_choice": "auto", "function_call": "auto", "parallel_tool_calls": False, "use_beam_search": True}
    values |= {"spaces_between_special_tokens": False, "response_format": {"type": "json_object"}, "priority": 1}
    for name in STATEMENTS.keys() - known - {"top_logprobs", "return_tokens_as_token_ids"}:
        error = refused(tiny, {**HI, name: values.get(name, ["x"])}, CHAT)
        assert error["param"] == name
        assert name in error["message"]


def test_statements_of_what_is_the_case_pass(tiny):
    same = {"response_format": {"type": "text"}, "tool_choice": "none", "store": False, "service_tier": "auto"}
    assert tiny.post(CHAT, {**HI, **same, "tools": None, "priority": 0, "length_penalty": 1}).status_code == 200


def test_unknown_fields_name_the_nearest(tiny):
    error = refused(tiny, {"prompt": IDS, "temprature": 1})
    assert (error["param"], "temperature" in error["message"]) == ("temprature", True)
    refused(tiny, {"prompt": IDS, "x" * 10_000: 1})
    error = refused(tiny, {**HI, "stream": True, "stream_options": {"x": 1}}, CHAT)
    assert error["param"] == "stream_options.x"


def test_seeds(tiny):
    ask = {"temperature": 1.0, "return_token_ids": True}
    ids = [tiny.complete(IDS, 12, seed=s, **ask)["choices"][0]["token_ids"] for s in (5, 5, 6, 2**63 - 1, -1)]
    assert ids[0] == ids[1] != ids[2]


def test_lengths(tiny):
    """A37, A38, A40, A41: too long is refused with the numbers; no max_tokens fills the context."""
    error = refused(tiny, {"prompt": [5] * 4096})
    assert "4096" in error["message"]
    out = tiny.post(CHAT, {"messages": HI["messages"], "temperature": 0, "ignore_eos": True, "stop": None}).json()
    assert out["choices"][0]["finish_reason"] == "length"
    assert out["usage"]["total_tokens"] == 4096
    clipped = tiny.complete([5] * 4090, 100)
    assert (clipped["choices"][0]["finish_reason"], clipped["usage"]["total_tokens"]) == ("length", 4096)


def test_truncation_is_only_on_request(tiny):
    """A41"""
    ids = list(range(10, 30))
    for more, kept in (
        ({"truncate_prompt_tokens": 4}, ids[-4:]),
        ({"truncate_prompt_tokens": 4, "truncation_side": "right"}, ids[:4]),
        ({"truncate_prompt_tokens": -1}, ids),
    ):
        out = tiny.complete(ids, 1, return_token_ids=True, **more)
        assert out["choices"][0]["prompt_token_ids"] == kept
        assert out["usage"]["prompt_tokens"] == len(kept)


def test_echo(tiny):
    """A39: max_tokens 0 is for echo alone."""
    out = tiny.complete("ab", 3, echo=True)["choices"][0]
    assert out["text"].startswith("ab")
    none = tiny.complete("ab", 0, echo=True)
    assert none["choices"][0]["text"] == "ab"
    assert none["choices"][0]["finish_reason"] == "length"
    assert none["usage"] == {**none["usage"], "prompt_tokens": 2, "completion_tokens": 0}
    refused(tiny, {"prompt": [320], "echo": True, "max_tokens": 0})
    with (
        tiny.http() as http,
        http.stream("POST", COMPLETIONS, json={"prompt": "ab", "echo": True, "stream": True}) as r,
    ):
        text = "".join(e["choices"][0]["text"] for e in events(r)[:-1])
    assert text.startswith("ab")


def test_long_text_is_refused_before_work(tiny):
    """A44: no tokenizer sees a text that cannot fit."""
    error = refused(tiny, {"prompt": "x" * 20_000_000})
    assert "20000000" in error["message"]
    refused(tiny, {"messages": [{"role": "user", "content": "x" * 20_000_000}]}, CHAT)


@pytest.mark.parametrize("text", ["", "[", "5", "[]", "null", '"x"', "{", '{"prompt": "x"', "{'prompt': 1}"])
def test_bodies_that_are_no_object(tiny, text):
    with tiny.http(headers={"content-type": "application/json"}) as http:
        assert http.post(COMPLETIONS, content=text).status_code == 400


def test_bodies_that_are_no_text(tiny):
    with tiny.http(headers={"content-type": "application/json"}) as http:
        assert http.post(COMPLETIONS, content=b'{"prompt": "\xff"}').status_code == 400
        assert http.post(COMPLETIONS, content=b'{"prompt": "\\ud800"}').status_code == 400
        deep = b"[" * 100_000 + b"]" * 100_000
        assert http.post(COMPLETIONS, content=b'{"prompt":' + deep + b"}").status_code == 400
        assert http.post(COMPLETIONS, content=b'{"prompt":' + b"[" * 70 + b"]" * 70 + b"}").status_code == 400
        digits = b'{"prompt": [5], "seed": ' + b"9" * 10_000 + b"}"
        assert http.post(COMPLETIONS, content=digits).status_code == 400
        many = b'{"prompt": [' + b"5," * (1 << 20) + b"5,5]}"
        assert http.post(COMPLETIONS, content=many).status_code == 413


def test_only_json_is_read(tiny):
    """A page of another origin can send a form or plain text without asking the browser, but no JSON."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        with tiny.http(headers={"content-type": kind}) as http:
            assert http.post(COMPLETIONS, content=json.dumps({"prompt": IDS})).status_code == 415


def test_usage_of_streams(tiny):
    """A47, A48, A49"""
    ask = {"prompt": [IDS, IDS], "max_tokens": 5, "stream": True, "ignore_eos": True, "return_token_ids": True}

    def run(options):
        with tiny.http() as http, http.stream("POST", COMPLETIONS, json={**ask, "stream_options": options}) as r:
            return events(r)

    plain = run({})
    assert plain[-1] == "[DONE]"
    assert all("usage" not in e for e in plain[:-1])
    with_usage = run({"include_usage": True})
    assert all(e["usage"] is None for e in with_usage[:-2])
    assert with_usage[-2]["choices"] == []
    ids = [i for e in with_usage[:-2] for i in e["choices"][0]["token_ids"]]
    assert with_usage[-2]["usage"]["completion_tokens"] == len(ids) == 10
    running = run({"include_usage": True, "continuous_usage_stats": True})
    counts = [e["usage"]["completion_tokens"] for e in running[:-2]]
    assert counts == sorted(counts)
    assert counts[-1] == 10
    for index in (0, 1):
        reasons = [e["choices"][0]["finish_reason"] for e in plain[:-1] if e["choices"][0]["index"] == index]
        assert reasons == [None] * (len(reasons) - 1) + ["length"]


def test_stream_interval(tiny):
    ask = {"prompt": IDS, "max_tokens": 21, "stream": True, "ignore_eos": True, "return_token_ids": True}
    with tiny.http() as http, http.stream("POST", COMPLETIONS, json={**ask, "stream_interval": 8}) as r:
        sizes = [len(e["choices"][0]["token_ids"]) for e in events(r)[:-1]]
    assert sum(sizes) == 21
    assert all(size >= 8 for size in sizes[1:-1])


def test_streamed_bytes_are_the_whole_text(tiny):
    """A20, A21, A22: random bytes, streamed and not."""
    for seed in range(20):
        ask = {"prompt": IDS, "max_tokens": 60, "temperature": 2, "top_k": -1, "seed": seed, "ignore_eos": True}
        whole = tiny.post(COMPLETIONS, ask).json()["choices"][0]["text"]
        with tiny.http() as http, http.stream("POST", COMPLETIONS, json={**ask, "stream": True}) as r:
            assert "".join(e["choices"][0]["text"] for e in events(r)[:-1]) == whole


def test_cached_tokens(tiny):
    """A01: the second time the prefix is found, and the ids are the same."""
    prompt = list(range(100, 164))
    runs = [tiny.complete(prompt, 8, return_token_ids=True, cache_salt="a01") for _ in range(3)]
    assert [r["usage"]["prompt_tokens_details"]["cached_tokens"] for r in runs] == [0, 63, 63]
    assert len({tuple(r["choices"][0]["token_ids"]) for r in runs}) == 1
    other = tiny.complete(prompt, 8, cache_salt="another")
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_request_ids(tiny):
    answer = tiny.post(COMPLETIONS, {"prompt": IDS}, headers={"x-request-id": "mine-1"})
    assert (answer.headers["x-request-id"], answer.json()["id"]) == ("mine-1", "cmpl-mine-1")
    assert tiny.post(COMPLETIONS, {"prompt": IDS, "request_id": "abc"}).json()["id"] == "cmpl-abc"
    odd = tiny.post(COMPLETIONS, {"prompt": IDS}, headers={"x-request-id": "a b" * 100})
    assert " " not in odd.headers["x-request-id"]


def test_chat_templates_of_requests(tiny):
    """A83: refused by default, in whatever field they come."""
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}"
    assert refused(tiny, {**HI, "chat_template": loop}, CHAT)["param"] == "chat_template"
    refused(tiny, {**HI, "chat_template_kwargs": {"chat_template": loop}}, CHAT)
    refused(tiny, {**HI, "chat_template_kwargs": {"messages": []}}, CHAT)
    refused(tiny, {**HI, "add_generation_prompt": True, "continue_final_message": True}, CHAT)


def test_continue_final_message(tiny):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"}]
    body = {"messages": messages, "max_tokens": 2, "continue_final_message": True, "echo": True}
    out = tiny.post(CHAT, {**body, "return_token_ids": True}).json()
    text = tiny.post("/detokenize", {"tokens": out["prompt_token_ids"]}).json()["prompt"]
    assert text.endswith("<|im_start|>assistant\nbc")
    assert out["choices"][0]["message"]["content"].startswith("bc")


def test_tokenize(tiny):
    out = tiny.post("/tokenize", {"prompt": "aé", "return_token_strs": True}).json()
    assert (out["count"], out["max_model_len"], len(out["tokens"]), len(out["token_strs"])) == (3, 4096, 3, 3)
    assert tiny.post("/detokenize", {"tokens": out["tokens"]}).json() == {"prompt": "aé"}
    chat = tiny.post("/tokenize", {"messages": HI["messages"]}).json()["tokens"]
    assert tiny.post("/detokenize", {"tokens": chat}).json()["prompt"].startswith("<|im_start|>user\nhi")
    refused(tiny, {"tokens": [320]}, "/detokenize")
    refused(tiny, {"tokens": [-1]}, "/detokenize")
    refused(tiny, {"prompt": "a", "messages": HI["messages"]}, "/tokenize")
    refused(tiny, {}, "/tokenize")


def test_routes_that_do_not_exist(tiny):
    for path in ("/v1/nothing", "/V1/models", "//v1/models", "/v1/models/", "/v1/completions/"):
        answer = tiny.get(tiny.url + path)  # a whole address, which the client leaves as it is
        assert answer.status_code in (404, 405)
        assert answer.json()["error"]["code"] == answer.status_code
    assert tiny.get(COMPLETIONS).status_code == 405
