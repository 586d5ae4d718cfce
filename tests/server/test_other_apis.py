"""Anthropic's messages and OpenAI's responses, with their official clients."""

import asyncio

import anthropic
import httpx
import openai
import pytest
from server_support import events

HELLO = [{"role": "user", "content": "Say hello."}]
# Newer versions of Anthropic's client have no argument for the temperature.
ASK = {"model": "smollm2", "messages": HELLO, "max_tokens": 5, "extra_body": {"temperature": 0}}


@pytest.fixture(scope="module")
def claude(smollm):
    return anthropic.Anthropic(
        base_url=smollm.url, api_key="none", max_retries=0, timeout=120, _strict_response_validation=True
    )


def test_message(claude, smollm):
    out = claude.messages.create(**ASK)
    chat = smollm.client().chat.completions.create(model="smollm2", messages=HELLO, max_tokens=5, temperature=0)
    assert out.content[0].text == chat.choices[0].message.content
    assert (out.type, out.role, out.stop_reason, out.stop_sequence) == ("message", "assistant", "max_tokens", None)
    assert out.id.startswith("msg_")
    assert out.usage.output_tokens == 5
    assert out.usage.input_tokens + out.usage.cache_read_input_tokens == chat.usage.prompt_tokens


def test_message_stream(claude):
    whole = claude.messages.create(**ASK)
    with claude.messages.stream(**ASK) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert final.content[0].text == whole.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 5)
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    order = ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta"]
    assert [k for k in dict.fromkeys(kinds) if k in order] == order


def test_message_async_and_stop_sequence(smollm):
    async def run():
        async with anthropic.AsyncAnthropic(base_url=smollm.url, api_key="none", max_retries=0) as client:
            return await client.messages.create(**{**ASK, "max_tokens": 20}, stop_sequences=["o"], system="Be brief.")

    out = asyncio.run(run())
    assert (out.stop_reason, out.stop_sequence) == ("stop_sequence", "o")
    assert "o" not in out.content[0].text


def test_count_tokens(claude, tiny):
    blocks = [{"role": "user", "content": [{"type": "text", "text": "Say hello."}]}]
    counted = claude.messages.count_tokens(model="smollm2", messages=blocks).input_tokens
    out = claude.messages.create(model="smollm2", messages=HELLO, max_tokens=1)
    assert counted == out.usage.input_tokens + out.usage.cache_read_input_tokens
    count = {"model": "tiny", "messages": [{"role": "user", "content": "ab"}], "system": "x"}
    text = "<|im_start|>system\nx<|im_end|>\n<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n"
    ids = tiny.post("/tokenize", {"prompt": text}).json()["tokens"]
    assert tiny.post("/v1/messages/count_tokens", count).json() == {"input_tokens": len(ids)}


def test_message_errors_have_anthropics_shape(tiny, smollm, claude):
    with pytest.raises(anthropic.NotFoundError) as missing:
        claude.messages.create(model="claude-3", messages=HELLO, max_tokens=1)
    assert missing.value.body["error"]["type"] == "not_found_error"
    good = {"messages": HELLO, "max_tokens": 2}
    for bad in (
        {"max_tokens": None},
        {"max_tokens": 0},
        {"messages": []},
        {"messages": [{"role": "system", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"tools": [{"name": "f", "input_schema": {}}]},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"frequency_penalty": 1},
        {"stop_sequences": [""]},
        {"temperature": -1},
        {"unknown": 1},
    ):
        answer = tiny.post("/v1/messages", {**good, **bad})
        assert answer.status_code == 400, (bad, answer.text)
        assert answer.json()["type"] == "error"
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_response(smollm):
    client = smollm.client()
    out = client.responses.create(model="smollm2", input="Say hello.", max_output_tokens=5, temperature=0)
    chat = client.chat.completions.create(model="smollm2", messages=HELLO, max_tokens=5, temperature=0)
    assert out.output_text == chat.choices[0].message.content
    assert (out.object, out.status) == ("response", "incomplete")
    assert out.incomplete_details.reason == "max_output_tokens"
    assert (out.usage.input_tokens, out.usage.output_tokens) == (chat.usage.prompt_tokens, 5)
    items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Say hello."}]}]
    same = client.responses.create(model="smollm2", input=items, max_output_tokens=5, temperature=0)
    assert same.output_text == out.output_text


def test_response_stream(smollm):
    client = smollm.client()
    ask = {"model": "smollm2", "input": "Say hello.", "max_output_tokens": 5, "temperature": 0}
    whole = client.responses.create(**ask)
    got = list(client.responses.create(**ask, stream=True))
    assert [e.sequence_number for e in got] == list(range(len(got)))
    assert [e.type for e in got[:4]] == [
        *("response.created", "response.in_progress", "response.output_item.added", "response.content_part.added")
    ]
    assert "".join(e.delta for e in got if e.type == "response.output_text.delta") == whole.output_text
    assert got[-1].type == "response.incomplete"
    assert got[-1].response.output_text == whole.output_text
    # The helper takes a response that was cut by its length for an error.
    stopped = {**ask, "max_output_tokens": 20, "extra_body": {"stop": ["o"]}}
    with client.responses.stream(**stopped) as stream:
        final = stream.get_final_response()
    assert final.status == "completed"
    assert final.output_text == client.responses.create(**stopped).output_text


def test_response_logprobs(smollm):
    """Those of chat completions, in this API's places: whole, in the deltas and at their end."""
    client = smollm.client()
    ask = {"model": "smollm2", "max_output_tokens": 5, "temperature": 0, "top_logprobs": 2}
    ask |= {"input": "Say hello.", "include": ["message.output_text.logprobs"]}
    chat = client.chat.completions.create(
        model="smollm2", messages=HELLO, max_tokens=5, temperature=0, logprobs=True, top_logprobs=2
    )
    wanted = [(t.token, t.logprob, [a.token for a in t.top_logprobs]) for t in chat.choices[0].logprobs.content]

    def shown(logprobs) -> list:
        return [(t.token, t.logprob, [a.token for a in t.top_logprobs]) for t in logprobs]

    whole = client.responses.create(**ask)
    assert shown(whole.output[0].content[0].logprobs) == wanted
    got = list(client.responses.create(**ask, stream=True))
    deltas = [t for e in got if e.type == "response.output_text.delta" for t in e.logprobs]
    assert shown(deltas) == wanted
    assert [shown(e.logprobs) for e in got if e.type == "response.output_text.done"] == [wanted]
    assert shown(got[-1].response.output[0].content[0].logprobs) == wanted
    for bad in ({"include": ["file_search_call.results"]}, {"include": []}):
        with pytest.raises(openai.BadRequestError, match="include"):
            client.responses.create(**{**ask, **bad})


def test_responses_refuse_by_name(tiny):
    good = {"input": "ab", "max_output_tokens": 2}
    for bad in (
        {"store": True},
        {"background": True},
        {"previous_response_id": "resp_1"},
        {"tools": [{"type": "web_search"}]},
        {"reasoning": {"effort": "high"}},
        {"text": {"format": {"type": "json_object"}}},
        {"truncation": "auto"},
        {"include": ["reasoning.encrypted_content"]},
        {"top_logprobs": 2},
        {"max_tokens": 5},
        {"n": 2},
        {"input": None},
        {"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        {"whatever": 1},
    ):
        answer = tiny.post("/v1/responses", {**good, **bad})
        assert answer.status_code == 400, (bad, answer.text)
        assert next(iter(bad)) in answer.json()["error"]["message"] + str(answer.json()["error"]["param"])


def test_streams_of_both_end_on_leaving(tiny):
    """A client that leaves a stream of either API ends its request."""
    long = [
        ("/v1/messages", {"messages": HELLO, "max_tokens": 4000}),
        ("/v1/responses", {"input": "ab", "ignore_eos": True}),
    ]
    for path, body in long:
        for _ in range(5):
            with tiny.http() as http, http.stream("POST", path, json={**body, "stream": True}) as r:
                next(r.iter_lines())
        tiny.wait_idle()


def test_anthropic_events_by_hand(tiny):
    with httpx.Client(base_url=tiny.url, timeout=60) as http:
        body = {"messages": HELLO, "max_tokens": 3, "stream": True}
        with http.stream("POST", "/v1/messages", json=body) as r:
            got = events(r)
    assert got[0]["message"]["usage"]["output_tokens"] == 0
    assert got[-1] == {"type": "message_stop"}
