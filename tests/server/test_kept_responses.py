"""Answers of /v1/responses that the server keeps: chaining, background, deleting, and what they were made of."""

import openai
import pytest
from server_support import ENDLESS_ARGS

LOGPROBS = "message.output_text.logprobs"
SHORT = {"model": "tiny", "max_output_tokens": 2, "temperature": 0}


@pytest.fixture(scope="module")
def keeping(start_server):
    return start_server("--enable-response-store", "--max-stored-responses", "3")


def test_kept_responses(keeping):
    client = keeping.client()
    first = client.responses.create(model="tiny", input="ab", max_output_tokens=4, temperature=0)
    assert client.responses.retrieve(first.id).output_text == first.output_text
    second = client.responses.create(model="tiny", input="c", previous_response_id=first.id, max_output_tokens=4)
    chain = [("user", "ab"), ("assistant", first.output_text), ("user", "c")]
    messages = [{"role": role, "content": text} for role, text in chain]
    counted = keeping.post("/tokenize", {"messages": messages}).json()["count"]
    assert second.usage.input_tokens == counted
    for _ in range(3):
        client.responses.create(model="tiny", input="x", max_output_tokens=1)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    unkept = client.responses.create(model="tiny", input="x", max_output_tokens=1, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)


def test_background_and_cancel(keeping):
    client = keeping.client()
    queued = client.responses.create(
        model="tiny", input="ab", background=True, max_output_tokens=3, extra_body={"ignore_eos": True}
    )
    assert queued.status == "queued"
    while (now := client.responses.retrieve(queued.id)).status == "queued":
        pass
    assert (now.status, now.usage.output_tokens) == ("incomplete", 3)
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(queued.id)
    long = client.responses.create(model="tiny", input="ab", background=True, extra_body={"ignore_eos": True})
    try:
        assert client.responses.cancel(long.id).status == "cancelled"
        assert client.responses.retrieve(long.id).status == "cancelled"
    except openai.BadRequestError:  # it had ended already
        assert client.responses.retrieve(long.id).status == "incomplete"
    keeping.wait_idle()


def test_a_deleted_response_is_gone(keeping):
    client = keeping.client()
    first = client.responses.create(**SHORT, input="ab")
    second = client.responses.create(**SHORT, input="c", previous_response_id=first.id)
    before = [item.id for item in client.responses.input_items.list(second.id)]
    assert keeping.delete(f"/v1/responses/{first.id}").json() == {"id": first.id, "object": "response", "deleted": True}
    with pytest.raises(openai.NotFoundError) as error:
        client.responses.create(**SHORT, input="d", previous_response_id=first.id)
    assert error.value.body["param"] == "previous_response_id"
    for gone in (
        lambda: client.responses.retrieve(first.id),
        lambda: client.responses.delete(first.id),
        lambda: client.responses.cancel(first.id),
        lambda: client.responses.input_items.list(first.id),
        lambda: client.responses.create(**SHORT, input="d", previous_response_id=first.id),
    ):
        with pytest.raises(openai.NotFoundError) as error:
            gone()
        assert (error.value.body["code"], error.value.body["type"]) == (404, "NotFoundError")
        assert first.id in error.value.body["message"]
    assert [item.id for item in client.responses.input_items.list(second.id)] == before
    assert client.responses.create(**SHORT, input="d", previous_response_id=second.id).output_text
    assert client.responses.delete(second.id) is None


def test_deleting_ends_what_runs(start_server, endless_folder):
    server = start_server(*ENDLESS_ARGS, "--enable-response-store", "--access-log", "off", model=endless_folder)
    client = server.client()
    running = client.responses.create(model="tiny", input="ab", background=True, extra_body={"ignore_eos": True})
    assert running.status == "queued"
    client.responses.delete(running.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(running.id)
    server.wait_idle()  # its output would take minutes
    assert server.metric("request_success_total", finished_reason="abort") == 1
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(running.id)


def shown(items) -> list:
    return [(item.role, item.status, [(part.type, part.text) for part in item.content]) for item in items]


def test_input_items(keeping):
    """The whole conversation that the answer was made of, the newest first; its own output is not among them."""
    client = keeping.client()
    given = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "message", "id": "msg_mine", "status": "incomplete", "role": "assistant", "content": "c"},
        {"id": "msg_mine", "role": "user", "content": "d"},
    ]
    first = client.responses.create(**SHORT, input=given, instructions="none of the items")
    second = client.responses.create(**SHORT, input="e", previous_response_id=first.id)
    said = [
        ("developer", "completed", [("input_text", "be brief")]),
        ("user", "completed", [("input_text", "a"), ("input_text", "b")]),
        ("assistant", "incomplete", [("output_text", "c")]),
        ("user", "completed", [("input_text", "d")]),
        ("assistant", first.output[0].status, [("output_text", first.output_text)]),
        ("user", "completed", [("input_text", "e")]),
    ]
    items = list(client.responses.input_items.list(second.id))
    assert shown(items) == said[::-1]
    assert shown(client.responses.input_items.list(first.id, order="asc")) == said[:4]
    ids = [item.id for item in items[::-1]]
    assert (ids[2], ids[4]) == ("msg_mine", first.output[0].id)
    assert len(set(ids)) == 6
    # Given back as they are, they are the same conversation.
    again = client.responses.create(**SHORT, input=[item.to_dict() for item in items[::-1]])
    assert again.usage.input_tokens == second.usage.input_tokens
    assert again.output_text == second.output_text


def test_pages_of_input_items(keeping):
    client = keeping.client()
    given = [{"role": "user", "content": str(n)} for n in range(45)]
    kept = client.responses.create(**SHORT, input=given)
    path = f"/v1/responses/{kept.id}/input_items"
    page = keeping.get(path).json()
    texts = [item["content"][0]["text"] for item in page["data"]]
    assert (page["object"], page["has_more"], texts) == ("list", True, [str(n) for n in range(44, 24, -1)])
    assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
    for order, wanted in (("asc", range(45)), ("desc", range(44, -1, -1))):
        for limit in (1, 7, 45, 100):
            listed = client.responses.input_items.list(kept.id, order=order, limit=limit)
            assert [item.content[0].text for item in listed] == [str(n) for n in wanted], (order, limit)
    last = keeping.get(path, params={"after": page["data"][-1]["id"], "limit": 25}).json()
    assert (len(last["data"]), last["has_more"]) == (25, False)
    beyond = keeping.get(path, params={"after": last["last_id"]}).json()
    assert beyond == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


def test_logprobs_of_items_are_shown_when_asked_for(keeping):
    client = keeping.client()
    first = client.responses.create(**SHORT, input="ab", include=[LOGPROBS])
    second = client.responses.create(**SHORT, input="c", previous_response_id=first.id)
    own = [t.logprob for t in first.output[0].content[0].logprobs]
    assert len(own) == 2
    for include, wanted in (([], []), ([LOGPROBS], own)):
        items = list(client.responses.input_items.list(second.id, include=include, order="asc"))
        assert [t.logprob for t in items[1].content[0].logprobs] == wanted


def test_queries_that_are_refused(keeping):
    kept = keeping.client().responses.create(**SHORT, input="ab").id
    for method, path, query, words in (
        ("GET", "/input_items", "limit=0", "between 1 and 100, got '0'"),
        ("GET", "/input_items", "limit=101", "between 1 and 100, got '101'"),
        ("GET", "/input_items", "limit=0000000099999", "between 1 and 100"),
        ("GET", "/input_items", "limit=-1", "between 1 and 100, got '-1'"),
        ("GET", "/input_items", "limit=x", "between 1 and 100, got 'x'"),
        ("GET", "/input_items", "limit=%C2%B2", "between 1 and 100"),
        ("GET", "/input_items", "limit=", "between 1 and 100, got ''"),
        ("GET", "/input_items", "order=up", "'asc' or 'desc', got 'up'"),
        ("GET", "/input_items", "after=msg_nobody", "got 'msg_nobody'"),
        ("GET", "/input_items", "include=file_search_call.results", "got 'file_search_call.results'"),
        ("GET", "/input_items", "before=x", "'before'"),
        ("GET", "", "stream=true", "'stream'"),
        ("DELETE", "", "force=1", "'force'"),
        ("POST", "/cancel", "now=1", "'now'"),
    ):
        with keeping.http() as http:
            answer = http.request(method, f"/v1/responses/{kept}{path}?{query}")
        assert answer.status_code == 400, (path, query, answer.text)
        error = answer.json()["error"]
        assert (error["type"], error["code"], error["param"]) == ("BadRequestError", 400, query.partition("=")[0])
        assert words in error["message"]
    assert keeping.get(f"/v1/responses/{kept}").json()["id"] == kept


def test_items_whose_fields_are_wrong(tiny):
    good = {"role": "user", "content": "a"}
    for bad in (
        {"id": 5},
        {"id": ""},
        {"status": "done"},
        {"status": ["completed"]},
        {"content": [{"type": "input_text", "text": "a", "annotations": {}}]},
        {"content": [{"type": "input_text", "text": "a", "logprobs": "x"}]},
    ):
        answer = tiny.post("/v1/responses", {"input": [good, {**good, **bad}], "max_output_tokens": 1})
        assert answer.status_code == 400, (bad, answer.text)
        assert "input[1]" in answer.json()["error"]["message"]
        assert next(iter(bad)) in answer.json()["error"]["message"]


def test_without_a_store_nothing_is_kept(tiny):
    made = tiny.post("/v1/responses", {"input": "ab", "max_output_tokens": 1}).json()["id"]
    assert tiny.delete(f"/v1/responses/{made}").status_code == 404
    assert tiny.get(f"/v1/responses/{made}/input_items").status_code == 404
