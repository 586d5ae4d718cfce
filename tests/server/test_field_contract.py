"""No field is accepted and ignored: every one that a route takes changes what is answered, or is seen elsewhere; every
other name is refused, and the refusal names it. The lists of fields are those of openapi.json: a field that a route
learns fails here until it is in a table of field_tables.py."""

import json
import pathlib

import pytest
from field_names import PEERS_FIELDS
from field_tables import (
    ABORT,
    CHAT,
    COMPLETIONS,
    COUNT,
    ELSEWHERE,
    ELSEWHERE_OF,
    GREEDY,
    MESSAGES,
    RESPONSES,
    ROUTES,
    START,
    TABLES,
)
from server_support import TINY_ARGS, RunningServer, events, write_tiny_model

VARYING = {"id", "created", "created_at", "item_id", "model"}


@pytest.fixture(scope="module")
def open_server(tmp_path_factory):
    """What is closed by default is open; the tokenizer marks the beginning of a text."""
    folder = write_tiny_model(tmp_path_factory.mktemp("marked"), mark_beginning=True)
    args = [*TINY_ARGS, "--served-model-name", "other", "--enable-prompt-tokens-details", "--enable-response-store"]
    server = RunningServer(folder, *args, "--trust-request-chat-template", "--num-gpu-blocks-override", "1200")
    yield server
    server.kill()


def fields_of(server) -> dict[str, dict[str, bool]]:
    """By route and name: whether the field is taken; False for those that may only state what is the case."""
    paths = server.get("/openapi.json").json()["paths"]
    out = {}
    for route in ROUTES:
        schema = paths[route]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert schema["additionalProperties"] is False
        stated = {n for n, p in schema["properties"].items() if p.get("description", "").startswith("Not supported: ")}
        out[route] = {name: name not in stated for name in schema["properties"]}
    return out


def test_every_field_has_its_proof(open_server):
    tests = pathlib.Path(__file__).parents[1]
    for where in set(ELSEWHERE.values()):
        file, name = where.split(".")
        (path,) = tests.glob(f"*/{file}.py")
        assert f"def {name}(" in path.read_text(), where
    for route, fields in fields_of(open_server).items():
        taken = {name for name, is_taken in fields.items() if is_taken}
        assert taken - ELSEWHERE.keys() - ELSEWHERE_OF.get(route, {}).keys() <= TABLES[route].keys() <= taken, route


def same_every_time(value):
    """An answer without what two equal requests need not have in common."""
    if isinstance(value, dict):
        return {k: same_every_time(v) for k, v in value.items() if k not in VARYING}
    return [same_every_time(v) for v in value] if isinstance(value, list) else value


def answer(server, route: str, body: dict):
    with server.http() as http, http.stream("POST", route, json={**START[route], **body}) as response:
        if response.headers["content-type"].startswith("text/event-stream"):
            got = events(response)
        else:
            got = json.loads(response.read())
    assert response.status_code == 200, (route, body, got)
    return got


@pytest.mark.parametrize("route", [route for route in ROUTES if TABLES[route]])
def test_what_is_taken_changes_the_answer(open_server, route):
    for name, (before, value) in TABLES[route].items():
        without, repeated = answer(open_server, route, before), answer(open_server, route, before)
        assert uncached(without) == uncached(repeated), (route, name)
        assert uncached(answer(open_server, route, {**before, name: value})) != uncached(repeated), (route, name)


def uncached(value):
    """Without what the prefix cache changes from one request to the next."""
    text = json.dumps(same_every_time(value))
    return json.loads(text, object_hook=lambda d: {k: v for k, v in d.items() if k not in CACHE_FIELDS})


CACHE_FIELDS = {"prompt_tokens_details", "input_tokens_details", "cache_read_input_tokens"}


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT, RESPONSES, MESSAGES])
def test_names_of_models(open_server, route):
    assert answer(open_server, route, {**GREEDY_OF[route], "model": "other"})["model"] == "other"
    assert answer(open_server, route, {**GREEDY_OF[route]})["model"] == "tiny"


GREEDY_OF = {COMPLETIONS: GREEDY, CHAT: GREEDY, RESPONSES: GREEDY, MESSAGES: {"temperature": 0}}


def test_sampling_of_messages(open_server):
    """Whatever would be drawn, it is the likeliest token that is left."""
    greedy = answer(open_server, MESSAGES, {"temperature": 0})["content"]
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}):
        assert answer(open_server, MESSAGES, {"temperature": 1.5, **narrow})["content"] == greedy


def test_request_id(open_server):
    for route, prefix in ((COMPLETIONS, "cmpl-"), (CHAT, "chatcmpl-")):
        assert answer(open_server, route, {"request_id": "contract-1"})["id"] == prefix + "contract-1"


def test_models_that_are_not_served(open_server):
    for route in ROUTES:
        if route != ABORT:
            assert open_server.post(route, {**START[route], "model": "nobody"}).status_code == 404


def test_names_of_peers_are_refused(open_server):
    """Whatever a route does not take: 400, and the error names it. Statements pass with the values that are true."""
    for route, fields in fields_of(open_server).items():
        for name in {*PEERS_FIELDS, *(n for f in fields_of(open_server).values() for n in f)} - fields.keys():
            refused(open_server, route, name, ["x"])
        for name in (n for n, taken in fields.items() if not taken):
            refused(open_server, route, name, ["x"])
            refused(open_server, route, name, {"no": "such"})


def refused(server, route: str, name: str, value) -> None:
    response = server.post(route, {**START[route], name: value})
    assert response.status_code == 400, (route, name, response.text)
    assert name in response.json()["error"]["message"], (route, name)


def test_fields_of_the_prefix_cache(open_server):
    def cached(route: str, **more) -> int:
        start = {"prompt": [100 + n for n in range(64)]}
        if route != COMPLETIONS:
            start = {"messages" if route == CHAT else "input": [{"role": "user", "content": "a" * 64}]}
        usage = answer(open_server, route, {**start, **more})["usage"]
        return (usage.get("prompt_tokens_details") or usage.get("input_tokens_details"))["cached_tokens"]

    for route in (COMPLETIONS, CHAT, RESPONSES):
        cached(route)
        assert cached(route) >= 48
        assert cached(route, skip_reading_prefix_cache=True) == 0
        assert cached(route, cache_salt=f"salt of {route}") == 0


def test_who_asks_is_in_the_log(open_server):
    for route, body, logged in (
        (COMPLETIONS, {"user": "u-1"}, {"user": "u-1"}),
        (CHAT, {"user": "u-2", "safety_identifier": "s-2", "prompt_cache_key": "k-2"}, None),
        (RESPONSES, {"user": "u-3", "safety_identifier": "s-3", "prompt_cache_key": "k-3"}, None),
        (MESSAGES, {"metadata": {"user_id": "u-4"}}, {"user": "u-4"}),
    ):
        answer(open_server, route, body)
        line = json.loads(open_server.wait_line(next(iter((logged or body).values()))))
        assert line["path"] == route
        assert line.items() >= (logged or body).items()
    for metadata in ({"user_id": 5}, {"other": "x"}):
        assert "metadata" in open_server.post(MESSAGES, {**START[MESSAGES], "metadata": metadata}).text


def test_arguments_of_logits_processors(open_server):
    """Without a processor that knows them they are refused; test_endless.py has a server with one."""
    for route in (COMPLETIONS, CHAT):
        error = open_server.post(route, {**START[route], "vllm_xargs": {"knob": 1}}).json()["error"]
        assert error["code"] == 400
        assert "'knob'" in error["message"]


def test_suffix_is_refused(open_server):
    refused(open_server, COMPLETIONS, "suffix", "x")


@pytest.mark.parametrize(
    ("route", "more", "words"),
    [
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]}, "'x'"),
        (CHAT, {"stream": True, "stream_options": {"include_obfuscation": True}}, "include_obfuscation"),
        (MESSAGES, {"messages": [{"role": "user", "content": "a", "name": "b"}]}, "name"),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]}, ".x"),
        (MESSAGES, {"cache_control": {"type": "for ever"}}, "cache_control"),
        (RESPONSES, {"input": [{"role": "user", "content": "a", "phase": "b"}]}, "phase"),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a", "x": 1}]}]}, ".x"),
        (RESPONSES, {"tool_choice": "required"}, "tool_choice"),
        ("/tokenize", {"messages": None, "prompt": "a", "add_generation_prompt": False}, "add_generation_prompt"),
        (ABORT, {"all": True}, "request_ids"),
        (COUNT, {"max_tokens": 5}, "max_tokens"),
    ],
)
def test_fields_within_fields(open_server, route, more, words):
    response = open_server.post(route, {**START[route], **more})
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


def test_marks_of_caching_state_what_is_the_case(open_server):
    mark = {"cache_control": {"type": "ephemeral"}}
    parts = [{"role": "user", "content": [{"type": "text", "text": "a", **mark}]}]
    assert answer(open_server, CHAT, {"messages": parts})["object"] == "chat.completion"
    assert answer(open_server, MESSAGES, {"messages": parts, **mark})["type"] == "message"
