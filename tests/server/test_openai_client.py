"""The official OpenAI client, with strict validation of every answer, on SmolLM2 and its recorded text."""

import asyncio

import openai
import pytest

NUMBERS = "1 2 3 4 5"
LETTERS = "Here is the English alphabet: A B C D"
HELLO = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def client(smollm):
    return smollm.client()


def test_models(smollm, client):
    (card,) = client.models.list().data
    assert (card.id, card.object, card.owned_by, card.max_model_len) == ("smollm2", "model", "fastllm", 1024)
    assert client.models.retrieve("smollm2").id == "smollm2"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_completion(client):
    out = client.completions.create(model="smollm2", prompt=NUMBERS, max_tokens=8, temperature=0)
    assert out.choices[0].text == " 6 7 8 9"
    assert out.choices[0].finish_reason == "length"
    assert out.object == "text_completion"
    assert out.id.startswith("cmpl-")
    assert (out.usage.prompt_tokens, out.usage.completion_tokens, out.usage.total_tokens) == (9, 8, 17)


def test_completion_default_is_16_tokens(client):
    out = client.completions.create(model="smollm2", prompt=NUMBERS, temperature=0)
    assert out.usage.completion_tokens == 16
    assert out.choices[0].text == " 6 7 8 9 10 11 1"


def test_completion_stream_is_the_same_text(smollm):
    # Chunks that are not the last have finish_reason null, as OpenAI's own; the client's model of a chunk says it is
    # never null, so here it must not validate.
    client = smollm.client(_strict_response_validation=False)
    stream = client.completions.create(
        model="smollm2",
        prompt=NUMBERS,
        max_tokens=8,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(c.choices[0].text for c in chunks[:-1]) == " 6 7 8 9"
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 8
    assert all(c.usage is None for c in chunks[:-1])


def test_several_prompts_and_ids(client):
    out = client.completions.create(
        model="smollm2", prompt=["1 2 3 4 5", LETTERS], max_tokens=3, temperature=0, stop=["H"]
    )
    assert [c.index for c in out.choices] == [0, 1]
    assert [c.text for c in out.choices] == [" 6 ", " E F G"]
    ids = client.post("/../tokenize", body={"prompt": LETTERS}, cast_to=object)["tokens"]
    same = client.completions.create(model="smollm2", prompt=[ids, ids], max_tokens=3, temperature=0)
    assert [c.text for c in same.choices] == [" E F G", " E F G"]
    assert same.usage.prompt_tokens == 2 * len(ids)


def test_stop_string_never_shows(client, smollm):
    """A14, A16, A17: nothing of the stop string, in a stream or not."""
    ask = {"model": "smollm2", "prompt": LETTERS, "max_tokens": 30, "temperature": 0, "stop": ["H I J"]}
    out = client.completions.create(**ask)
    assert (out.choices[0].text, out.choices[0].finish_reason) == (" E F G ", "stop")
    assert out.choices[0].stop_reason == "H I J"
    chunks = list(smollm.client(_strict_response_validation=False).completions.create(**ask, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == " E F G "
    assert all(c.choices[0].text for c in chunks[:-1])
    kept = client.completions.create(**ask, extra_body={"include_stop_str_in_output": True})
    assert kept.choices[0].text == " E F G H I J"


def test_chat(client):
    out = client.chat.completions.create(model="smollm2", messages=HELLO, max_tokens=5, temperature=0)
    assert out.object == "chat.completion"
    assert out.id.startswith("chatcmpl-")
    assert out.choices[0].message.role == "assistant"
    assert out.choices[0].message.content
    assert out.choices[0].finish_reason == "length"
    assert out.usage.completion_tokens == 5
    assert out.system_fingerprint.startswith("fastllm-")
    again = client.chat.completions.create(model="smollm2", messages=HELLO, max_completion_tokens=5, temperature=0)
    assert again.choices[0].message.content == out.choices[0].message.content


def test_chat_stream(client):
    """4.17: the role first, then content, then the reason once, then usage."""
    whole = client.chat.completions.create(model="smollm2", messages=HELLO, max_tokens=5, temperature=0)
    stream = client.chat.completions.create(
        model="smollm2",
        messages=HELLO,
        max_tokens=5,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert (chunks[0].choices[0].delta.role, chunks[0].choices[0].delta.content) == ("assistant", "")
    deltas = [c.choices[0] for c in chunks[1:-1]]
    assert "".join(d.delta.content or "" for d in deltas) == whole.choices[0].message.content
    assert [d.finish_reason for d in deltas] == [None] * (len(deltas) - 1) + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert {c.object for c in chunks} == {"chat.completion.chunk"}
    assert len({c.id for c in chunks}) == 1


def test_chat_stream_helper(client):
    # The helper takes an answer that was cut by its length for an error.
    ask = {"model": "smollm2", "messages": HELLO, "max_tokens": 20, "temperature": 0, "stop": ["o"]}
    with client.chat.completions.stream(**ask) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].finish_reason == "stop"
    assert final.choices[0].message.content == client.chat.completions.create(**ask).choices[0].message.content


def test_async_client(smollm):
    async def run():
        async with smollm.async_client() as client:
            whole, stream = await asyncio.gather(
                client.chat.completions.create(model="smollm2", messages=HELLO, max_tokens=5, temperature=0),
                client.chat.completions.create(
                    model="smollm2", messages=HELLO, max_tokens=5, temperature=0, stream=True
                ),
            )
            text = "".join([c.choices[0].delta.content or "" async for c in stream])
            return whole.choices[0].message.content, text

    whole, streamed = asyncio.run(run())
    assert whole == streamed != ""


def test_errors_have_their_classes(client):
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-4", prompt="x")
    assert missing.value.body["param"] == "model"
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="smollm2", prompt="x", temperature=-1)
    assert "temperature" in bad.value.body["message"]
    assert bad.value.body["param"] == "temperature"
    assert bad.value.body["code"] == 400
    assert bad.value.request_id


def test_special_text_as_stop(client):
    """A19: a special token's text stops although it is not shown; its id does as well."""
    ask = {"model": "smollm2", "messages": HELLO, "temperature": 0, "max_tokens": 60}
    plain = client.chat.completions.create(**ask)
    by_id = client.chat.completions.create(**ask, extra_body={"stop_token_ids": [2], "ignore_eos": True})
    assert plain.choices[0].finish_reason == "stop"
    assert by_id.choices[0].message.content == plain.choices[0].message.content
    assert by_id.choices[0].stop_reason == 2
