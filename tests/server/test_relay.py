"""Streams that the relay writes: the same bytes as Python's, whatever the client does."""

import json
import socket
import types

import pytest
from server_support import events

from fastllm_core.outputs import Piece, join_all
from fastllm_core.server.generation import Plan, Run
from fastllm_core.server.relay import RelayedConnection

COMPLETIONS, CHAT, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/messages"
TALK = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 60}
MANY = {"prompt": [[5, 6], [7, 8]], "max_tokens": 60, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def direct(start_server):
    """A server without the relay."""
    return start_server("--no-stream-relay", "--enable-prompt-tokens-details", "--access-log", "off")


def streamed(server, path: str, body: dict) -> list:
    with server.http() as http, http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        return events(response)


# Keys of an event that ends nothing, by path: of the event, of its choice, of its delta.
KEYS = {
    COMPLETIONS: {(), ("index", "text", "logprobs", "finish_reason")},
    CHAT: {(), ("index", "delta", "logprobs", "finish_reason"), ("role", "content"), ("content",)},
    MESSAGES: {(), ("type", "text"), ("type", "index", "delta")},
}


def by_choice(path: str, got: list) -> dict:
    """What each choice said in all, and its end. How many tokens an event holds is a matter of time; what it is made of
    is not."""
    texts, ends, heads = {}, {}, set()
    for event in got:
        if event == "[DONE]":
            continue
        if path == MESSAGES:
            delta, n = event.get("delta", {}), 0
            said, end = delta.get("text", ""), delta.get("stop_reason")
            if event["type"] == "content_block_delta":
                assert {tuple(event), tuple(delta)} <= KEYS[path]
        else:
            heads.add((tuple(event), event["id"], event["created"], event["model"]))
        for choice in event.get("choices", ()):
            delta, n = choice.get("delta", {}), choice["index"]
            said, end = choice.get("text", "") + delta.get("content", ""), choice["finish_reason"]
            if end is None:
                assert {tuple(choice), tuple(delta)} <= KEYS[path]
            texts[n] = texts.get(n, "") + said
            ends[n] = end or ends.get(n)
        if path == MESSAGES:
            texts[n] = texts.get(n, "") + said
            ends[n] = end or ends.get(n)
    assert len(heads) <= 1
    return {"texts": texts, "ends": ends}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": [5, 6, 7], "max_tokens": 300, "temperature": 0, "ignore_eos": True}),
        (COMPLETIONS, {**MANY, "stream_options": {"include_usage": True}}),
        (COMPLETIONS, {"prompt": [5], "max_tokens": 50, "n": 3, "seed": 1, "temperature": 1.5, "ignore_eos": True}),
        (COMPLETIONS, {"prompt": "abc", "max_tokens": 50, "echo": True, "temperature": 0, "ignore_eos": True}),
        (CHAT, {**TALK, "temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True}}),
        (CHAT, {**TALK, "seed": 3, "n": 2, "temperature": 2, "ignore_eos": True}),
        (MESSAGES, {**TALK, "temperature": 0}),
    ],
)
def test_the_same_as_python_writes(tiny, direct, path, body):
    got, wanted = streamed(tiny, path, body), streamed(direct, path, body)
    assert by_choice(path, got) == by_choice(path, wanted)
    assert got[-1] == wanted[-1] or path == MESSAGES
    if "stream_options" in body:
        assert got[-2]["usage"] == wanted[-2]["usage"]
        assert got[-2]["choices"] == []


def relayed(server) -> float:
    return server.metric("relayed_stream_events_total")


def test_tokens_of_the_relay_are_counted(tiny, direct):
    body = {"prompt": [9, 8, 7], "max_tokens": 400, "temperature": 0, "ignore_eos": True}
    for server, uses in ((tiny, True), (direct, False)):
        server.wait_idle()
        tokens, written = server.metric("generation_tokens_total"), relayed(server)
        gaps = server.metric("inter_token_latency_seconds_count")
        got = streamed(server, COMPLETIONS, body)
        chunks = sum(1 for e in got if e != "[DONE]")
        assert server.metric("generation_tokens_total") - tokens == 400
        assert (relayed(server) > written) is uses
        # One gap less than events with tokens; what is held back for the rest of a character makes no event.
        assert server.metric("inter_token_latency_seconds_count") - gaps >= chunks - 1


def test_the_relay_writes_ends_too(tiny, direct):
    """All events of a stream but the usage; with a stop string, which the last one names.

    Its first is Python's when it comes before the head has left: one of several streams must be as it should."""
    body = {"prompt": [9, 8, 7], "max_tokens": 200, "temperature": 0, "ignore_eos": True}
    whole = direct.post(COMPLETIONS, body).json()["choices"][0]["text"]
    stop = whole[len(whole) // 2 :][:3]
    for more in ({}, {"stop": [stop]}):
        for _ in range(10):
            tiny.wait_idle()
            written = relayed(tiny)
            got = [e for e in streamed(tiny, COMPLETIONS, {**body, **more}) if e != "[DONE]"]
            if relayed(tiny) - written == len(got):
                break
        assert relayed(tiny) - written == len(got)
        wanted = [e for e in streamed(direct, COMPLETIONS, {**body, **more}) if e != "[DONE]"]
        assert got[-1]["choices"][0].keys() == wanted[-1]["choices"][0].keys()
        for key in ("finish_reason", "stop_reason"):
            assert got[-1]["choices"][0][key] == wanted[-1]["choices"][0][key]
        assert got[-1]["choices"][0]["stop_reason"] == (stop if more else None)


def test_a_slow_client_gets_everything(tiny):
    """Its socket fills up; others go on, and it finds every byte when it reads at last."""
    body = {"prompt": [[5, n] for n in range(200)], "max_tokens": 400, "temperature": 0, "ignore_eos": True}
    data = json.dumps({**body, "stream": True}).encode()
    made = tiny.metric("generation_tokens_total")
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", tiny.port))
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
        slow.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        tiny.wait_for("generation_tokens_total", made + 1)
        while tiny.metric("num_requests_running") + tiny.metric("num_requests_waiting") > 0:
            tiny.complete([3], 1)
        answer = b""
        while part := slow.recv(1 << 20):
            answer += part
    texts: dict[int, int] = {}
    for line in _dechunked(answer.partition(b"\r\n\r\n")[2]).decode().split("\n"):
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                texts[choice["index"]] = texts.get(choice["index"], 0) + len(choice["text"])
    alone = tiny.complete([5, 17], 400)["choices"][0]["text"]
    assert texts[17] == len(alone)
    assert len(texts) == 200
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def _dechunked(data: bytes) -> bytes:
    out = []
    while data:
        size, _, data = data.partition(b"\r\n")
        out.append(data[: int(size, 16)])
        data = data[int(size, 16) + 2 :]
    return b"".join(out)


def test_the_access_log_counts_the_bytes_of_the_relay(start_server):
    server = start_server()
    body = {"prompt": [5], "max_tokens": 200, "temperature": 0, "ignore_eos": True, "stream": True}
    with server.http() as http, http.stream("POST", COMPLETIONS, json=body) as response:
        size = len(response.read())
    assert json.loads(server.wait_line('"path": "/v1/completions"'))["bytes"] == size
    assert server.stop() == 0


class Gone:
    """A transport whose client has left, and a relay that still holds bytes for it."""

    chunked_encoding = True
    bytes = 0

    def __init__(self):
        self.transport = self

    def is_closing(self) -> bool:
        return True

    def write(self, data: bytes) -> None:
        raise RuntimeError("the handler is closed")

    def get_extra_info(self, name: str):
        return self

    def fileno(self) -> int:
        return 7

    def attach(self, fd: int, chunked: bool, outputs: list, begin: bytes) -> int:
        return 1

    def detach(self, number: int) -> tuple:
        return b"unsent", 5, 40, [1.0], [True]


def test_a_client_that_left_while_the_relay_wrote():
    """What is left of the stream has nowhere to go; its tokens are counted all the same."""
    gone = Gone()
    connection = RelayedConnection(gone, gone, gone, [("a", "b", None)])
    assert connection.hand_over([(1, 0, 0.0)], b"")
    assert connection.take_back() == (5, [1.0], [True])
    assert gone.bytes == 40
    assert connection.take_back() is None


def test_a_sign_behind_an_end_does_not_undo_it():
    """The relay says that a stream's socket is full by an empty piece of its first output, which may have ended."""
    end = Piece([], "", "length", None, "", 3, index=0)
    assert join_all([end, Piece([], "", None, None, "", 0, index=0)]).finish_reason == "length"
    assert join_all([Piece([1], "a", None, None, "", 3, index=0), end]).finish_reason == "length"


def test_a_run_is_closed_whatever_its_connection_says():
    class Broken:
        def take_back(self):
            raise RuntimeError("no such descriptor")

    class Closed:
        def close(self, *reason) -> None:
            self.reason = reason

    run = object.__new__(Run)
    run.plan = Plan("id-1", "tiny", [], None)
    run._state = types.SimpleNamespace(runs={"id-1": run})
    run._connection, run._group, run._timer, run._failed = Broken(), Closed(), Closed(), False
    with pytest.raises(RuntimeError, match="descriptor"):
        run.close()
    assert run._state.runs == {}
    assert (run._group.reason, run._timer.reason) == ((), ("abort",))
