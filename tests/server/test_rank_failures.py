"""A rank's process that is killed mid-stream, and a server that is: errors, health, the new engine, and what is left.

FASTLLM_TEST_KILLS: how often (1)."""

import os
import signal
import time

import pytest
from rank_support import WITHIN_S, is_there, named_memory, ranks_of, wait_gone, wait_health

KILLS = int(os.environ.get("FASTLLM_TEST_KILLS", "1"))
ARGS = (
    "--tensor-parallel-size",
    "2",
    "--distributed-executor-backend",
    "processes",
    "--num-gpu-blocks-override",
    "600",
)


def kill_mid_stream(server, number: int) -> float:
    """Seconds from the kill to the stream's error. The log names the rank."""
    victim = ranks_of(server.process.pid)[f"fastllm-rank{number}"]
    body = {"prompt": [7] * 20, "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": True}
    with server.http() as http, http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(line for line in lines if line.startswith("data: "))
        os.kill(victim, signal.SIGKILL)
        began = time.monotonic()
        next(line for line in lines if '"error"' in line)
        seconds = time.monotonic() - began
    server.wait_line(rf"rank {number} \(tp {number}, pp 0\), process {victim}, was killed by signal 9 \(Killed\)")
    return seconds


def test_a_killed_rank(start_server):
    shm = named_memory()
    server = start_server(*ARGS, "--restart-failed-engine")
    wanted = server.complete([7, 8, 9], 8)["choices"]
    slowest = back = 0.0
    for round_ in range(KILLS):
        before = set(ranks_of(server.process.pid).values())
        slowest = max(slowest, kill_mid_stream(server, round_ % 2))
        health = server.get("/health")
        assert health.status_code == 503, health.text
        back = max(back, wait_health(server, 200))
        assert server.complete([7, 8, 9], 8)["choices"] == wanted
        assert not any(is_there(pid) for pid in before)
        assert len(ranks_of(server.process.pid)) == 2
    print(f"{KILLS} kills: error after at most {slowest:.3f} s, serving again after at most {back:.2f} s")
    assert slowest < WITHIN_S
    left = ranks_of(server.process.pid).values()
    assert server.stop() == 0
    assert not any(is_there(pid) for pid in left)
    assert named_memory() <= shm


def test_without_a_restart_the_server_stays_unhealthy(start_server):
    server = start_server(*ARGS, "--no-exit-on-engine-death")
    left = list(ranks_of(server.process.pid).values())
    kill_mid_stream(server, 1)
    wait_health(server, 503)
    assert "was killed by signal 9" in server.get("/health").text
    assert server.post("/v1/completions", {"prompt": [7], "max_tokens": 1}).status_code >= 500
    wait_gone(left)
    server.stop()


def test_a_killed_server_leaves_no_ranks(start_server):
    shm = named_memory()
    server = start_server(*ARGS)
    ranks = list(ranks_of(server.process.pid).values())
    assert len(ranks) == 2
    server.kill()
    wait_gone(ranks)
    assert named_memory() <= shm


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_ends_its_ranks_in_order(start_server, number):
    server = start_server(*ARGS)
    ranks = list(ranks_of(server.process.pid).values())
    assert server.stop(number) == 0
    assert not any(is_there(pid) for pid in ranks)
