"""Clients that leave: their requests end at once, and nothing of them stays."""

import socket
import threading

import pytest
from server_support import ENDLESS, ENDLESS_LEN, begun, events, open_request

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LONG = {"max_tokens": 4000, "ignore_eos": True, "temperature": 0}


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_aborts(endless, stream):
    """A08: every prompt's request of a client that left is aborted and counted."""
    endless.wait_idle()
    aborted = endless.metric("request_success_total", finished_reason="abort")
    prompts = [[5, 6 + n] for n in range(3)]
    for n in range(10):
        sock = open_request(endless, {**ENDLESS, "prompt": [[*p, n] for p in prompts] * 20, "stream": stream})
        if stream:
            begun(sock)
        else:
            endless.wait_for("num_requests_running", 60)
        sock.close()
        endless.wait_for("request_success_total", aborted + 60 * (n + 1), finished_reason="abort")
    endless.wait_idle()
    assert endless.metric("request_success_total", finished_reason="abort") - aborted == 600


def test_leaving_while_queued(single):
    """A10, A04: requests that wait, or are in their prefill, go as well; the same prompt is answered right after."""
    server = single
    prompt = list(range(10, 210)) * 2
    base = server.complete(prompt, 5, return_token_ids=True)["choices"][0]["token_ids"]
    blocker = open_request(server, {**ENDLESS, "prompt": [[5, n] for n in range(50)]})
    server.wait_for("num_requests_running", 1)
    queued = [
        open_request(server, {**ENDLESS, "prompt": prompt, "stream": s, "cache_salt": "q"}) for s in (True, False)
    ]
    server.wait_for("num_requests_waiting", 49 + 2)
    for sock in [*queued, blocker]:
        sock.close()
    server.wait_idle()
    assert server.complete(prompt, 5, return_token_ids=True)["choices"][0]["token_ids"] == base
    assert server.post("/reset_prefix_cache").json() == {"success": True}  # refused while a block is held


def test_leaving_before_the_body_is_whole(tiny):
    for _ in range(20):
        sock = socket.create_connection(("127.0.0.1", tiny.port), timeout=60)
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        sock.sendall(b"Content-Length: 100\r\n\r\n{")
        sock.close()
    tiny.wait_idle()


def test_many_clients_killed_again_and_again(tiny):
    """A09: five times 100 clients that go, then a normal answer."""
    base = tiny.complete([5, 6], 8, return_token_ids=True)["choices"][0]["token_ids"]
    for _ in range(5):
        socks = [open_request(tiny, {**LONG, "prompt": [n % 300, 7], "stream": n % 2 == 0}) for n in range(100)]
        for sock in socks:
            sock.close()
    assert tiny.complete([5, 6], 8, return_token_ids=True)["choices"][0]["token_ids"] == base
    tiny.wait_idle()


def test_a_reader_that_does_not_read(tiny):
    """One that takes its stream at leisure gets all of it, and others do not wait for it."""
    sock = open_request(tiny, {**LONG, "prompt": [5, 6], "stream": True, "return_token_ids": True})
    tiny.complete([9, 9], 200)
    data = b""
    while not data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
        part = sock.recv(65536)
        assert part
        data += part
    sock.close()
    tiny.wait_idle()


def test_abort_by_id(endless):
    done = {}
    many = {**ENDLESS, "prompt": [[5, n] for n in range(100)]}

    def ask():
        done["answer"] = endless.post(COMPLETIONS, {**many, "request_id": "end-me"})

    thread = threading.Thread(target=ask)
    thread.start()
    for _ in range(5000):
        aborted = endless.post("/abort_requests", {"request_ids": ["cmpl-end-me", "unknown"]}).json()["aborted"]
        if aborted:
            break
    assert aborted == ["cmpl-end-me"]
    thread.join(60)
    assert done["answer"].status_code == 200
    assert {c["finish_reason"] for c in done["answer"].json()["choices"]} == {"abort"}
    with endless.http() as http, http.stream("POST", COMPLETIONS, json={**many, "stream": True}) as r:
        lines = r.iter_lines()
        next(lines)
        assert len(endless.post("/abort_requests", {"all": True}).json()["aborted"]) == 1
        rest = [line for line in lines if line]
    assert sum('"finish_reason":"abort"' in line for line in rest) > 0
    assert rest[-1] == "data: [DONE]"
    assert endless.post("/abort_requests", {}).status_code == 400
    endless.wait_idle()


def test_usage_gauge_while_a_stream_runs(endless):
    """A76: blocks in use over all blocks, at a moment when a stream holds some."""
    body = {**ENDLESS, "prompt": [list(range(n, n + 160)) for n in range(10, 50)], "stream": True}
    with endless.http() as http, http.stream("POST", COMPLETIONS, json=body) as r:
        next(r.iter_lines())
        usage = endless.metric("kv_cache_usage_perc")
        assert 10 / (ENDLESS_LEN // 16 + 1000) <= usage <= 1
        r.close()
    endless.wait_idle()


def test_events_end_with_done(tiny):
    with (
        tiny.http() as http,
        http.stream(
            "POST", CHAT, json={"messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "stream": True}
        ) as r,
    ):
        assert r.headers["content-type"].startswith("text/event-stream")
        got = events(r)
    assert got[-1] == "[DONE]"
    assert got[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
