"""data_parallel_size: several engines behind one server."""

import json
import threading

import pytest
from server_support import events
from stopped_threads import StoppedThreads, engine_threads

COMPLETIONS = "/v1/completions"
KEY = "key-of-replicas"
AUTH = {"Authorization": f"Bearer {KEY}"}
BODY = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def pair(start_server):
    return start_server("--data-parallel-size", "2", "--num-gpu-blocks-override", "1000", "--access-log", "off")


def counts(server) -> list[int]:
    return [r["requests"] for r in server.get("/replicas").json()["data"]]


def where(server, body: dict, **options) -> int:
    """The replica that took a request."""
    before = counts(server)
    answer = server.post(COMPLETIONS, {**BODY, **body}, **options)
    assert answer.status_code == 200, answer.text
    return [after - was for after, was in zip(counts(server), before)].index(1)


def prompt(n: int, end: int = 0) -> list[int]:
    return [5 + n, *range(10, 90), 5 + end]


def test_a_prefix_stays_where_it_is_cached(pair):
    homes = [where(pair, {"prompt": prompt(n)}) for n in range(4)]
    assert set(homes) == {0, 1}
    hits = pair.metric("prefix_cache_hits_total")
    assert [where(pair, {"prompt": prompt(n, 1)}) for n in (2, 0, 3, 1)] == [homes[n] for n in (2, 0, 3, 1)]
    assert pair.metric("prefix_cache_hits_total") - hits == 4 * 80


def test_the_same_answer_from_each(pair, tiny):
    wanted = tiny.complete(prompt(7), 8)["choices"]
    for rank in ("0", "1"):
        headers = {"X-data-parallel-rank": rank}
        assert where(pair, {"prompt": prompt(7)}, headers=headers) == int(rank)
        assert pair.post(COMPLETIONS, {**BODY, "prompt": prompt(7)}, headers=headers).json()["choices"] == wanted


def test_ranks_that_are_none(pair, tiny):
    for server, rank in ((pair, "2"), (pair, "-1"), (pair, "x"), (tiny, "1")):
        answer = server.post(COMPLETIONS, {**BODY, "prompt": [5]}, headers={"X-data-parallel-rank": rank})
        assert answer.status_code == 400
        assert rank in answer.json()["error"]["message"]
    assert tiny.post(COMPLETIONS, {**BODY, "prompt": [5]}, headers={"X-data-parallel-rank": "0"}).status_code == 200


@pytest.mark.parametrize("way", ["header", "field"])
def test_sessions_stay_together(pair, way):
    def ask(session: str, n: int) -> int:
        if way == "header":
            return where(pair, {"prompt": prompt(200 + n)}, headers={"x-session-id": session})
        before = counts(pair)
        body = {"messages": [{"role": "user", "content": f"{n} {way}"}], "prompt_cache_key": session, "max_tokens": 2}
        assert pair.post("/v1/chat/completions", body).status_code == 200
        return [after - was for after, was in zip(counts(pair), before)].index(1)

    homes = {session: ask(session, n) for n, session in enumerate("abcd")}
    for n in range(4, 12):
        session = "abcd"[n % 4]
        assert ask(session, n) == homes[session]


def test_metrics_of_each(pair):
    for rank in ("0", "1"):
        before = pair.metric("generation_tokens_total", engine=rank)
        where(pair, {"prompt": prompt(30)}, headers={"X-data-parallel-rank": rank})
        assert pair.metric("generation_tokens_total", engine=rank) - before == 8
        assert pair.metric("engine_healthy", engine=rank) == 1
        assert pair.metric("replica_state", engine=rank, state="serving") == 1
    assert pair.metric("request_success_total", engine="1") > 0


def test_streams_and_several_choices(pair):
    body = {**BODY, "prompt": [prompt(n) for n in range(6)], "n": 2, "temperature": 1, "seed": 1, "max_tokens": 100}
    with pair.http() as http, http.stream("POST", COMPLETIONS, json={**body, "stream": True}) as response:
        got = events(response)
    ends = [c["index"] for e in got[:-1] for c in e["choices"] if c["finish_reason"]]
    assert sorted(ends) == list(range(12))


def test_looking_after_replicas_needs_to_be_asked_for(pair, start_server):
    assert pair.post("/replicas/0/drain").status_code == 404
    assert pair.get("/replicas").status_code == 200


def test_drain_resume_restart(start_server):
    server = start_server("--data-parallel-size", "2", "--enable-replica-admin", "--api-key", KEY)

    def call(path: str):
        return server.post(f"/replicas/{path}", headers=AUTH)

    def state(n: int) -> str:
        return server.get("/replicas", headers=AUTH).json()["data"][n]["state"]

    def take() -> list[int]:
        before = [r["requests"] for r in server.get("/replicas", headers=AUTH).json()["data"]]
        for n in range(4):
            assert server.post(COMPLETIONS, {**BODY, "prompt": [5 + n]}, headers=AUTH).status_code == 200
        after = [r["requests"] for r in server.get("/replicas", headers=AUTH).json()["data"]]
        return [a - b for a, b in zip(after, before)]

    assert server.post("/replicas/0/drain").status_code == 401
    assert call("0/restart").status_code == 409
    assert call("2/drain").status_code == 404
    assert call("0/drain").json()["data"][0]["state"] == "drained"
    assert take() == [0, 4]
    assert call("0/resume").status_code == 200
    assert take() == [2, 2]
    assert call("1/drain").status_code == 200
    assert call("1/restart").status_code == 200
    while (now := state(1)) != "serving":
        assert now == "restarting"
    assert server.get("/replicas", headers=AUTH).json()["data"][1]["restarts"] == 1
    assert take() == [2, 2]
    assert server.stop() == 0


def test_replica_admin_needs_a_key(tiny_folder):
    import subprocess
    import sys

    command = [sys.executable, "-m", "fastllm_core", "serve", tiny_folder, "--enable-replica-admin"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "api_key" in done.stderr


def test_a_replica_that_stands_still_is_made_anew(start_server):
    """Its streams end with an error, those of the other go on to their end, and it serves again."""
    server = start_server("--data-parallel-size", "2", "--stall-timeout-s", "1", "--num-gpu-blocks-override", "1000")
    long = {"prompt": [5], "max_tokens": 4000, "temperature": 0, "ignore_eos": True, "stream": True}
    begun, ends = [threading.Event(), threading.Event()], {}

    def ask(rank: int) -> None:
        headers = {"X-data-parallel-rank": str(rank)}
        rounds = 0
        while True:  # the stream of the replica that stands still, and some of the other's
            with server.http() as http, http.stream("POST", COMPLETIONS, json=long, headers=headers) as response:
                got = []
                for line in response.iter_lines():
                    begun[rank].set()
                    if line.startswith("data: {"):
                        got = json.loads(line[6:])
            ends.setdefault(rank, []).append(got)
            rounds += 1
            if "error" in got or (rank == 1 and 0 in ends):
                return

    threads = [threading.Thread(target=ask, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for event in begun:
        assert event.wait(60)
    stopped = StoppedThreads(engine_threads(server.process.pid)[:1])
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert ends[0][-1]["error"]["code"] == 503
    assert "replica 0" in ends[0][-1]["error"]["message"]
    assert all(got["choices"][0]["finish_reason"] == "length" for got in ends[1])
    assert server.get("/health").status_code == 200
    while server.get("/replicas").json()["data"][0]["state"] != "serving":
        assert server.get("/health").status_code == 200
    assert server.get("/replicas").json()["data"][0]["restarts"] == 1
    again = server.post(COMPLETIONS, {**BODY, "prompt": [5]}, headers={"X-data-parallel-rank": "0"})
    assert again.json()["usage"]["completion_tokens"] == 8
    server.process.kill()
    stopped.reap()
    server.kill()
