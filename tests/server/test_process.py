"""The process: signals, drain, exit statuses, a stalled engine, a port in use."""

import itertools
import signal
import socket
import subprocess
import sys
import threading

from gate import GATE_ARGS, GATE_ENV, make_gate, open_gate
from server_support import ENDLESS, ENDLESS_ARGS, events
from stopped_threads import StoppedThreads, all_but_the_servers

COMPLETIONS = "/v1/completions"
ONE = {"prompt": [5], "max_tokens": 1000, "ignore_eos": True, "temperature": 0}
MANY = {**ENDLESS, "prompt": [[5, 6 + n] for n in range(40)]}


class Asking:
    """A streamed request in a thread."""

    def __init__(self, server, body: dict):
        self._begun = threading.Event()
        self.events: list = []
        self._thread = threading.Thread(target=self._run, args=(server, body))
        self._thread.start()
        assert self._begun.wait(60)

    def _run(self, server, body):
        with server.http() as http, http.stream("POST", COMPLETIONS, json={**body, "stream": True}) as r:
            lines = r.iter_lines()
            first = next(lines)
            self._begun.set()
            self.events = events(_Lines(itertools.chain([first], lines)))

    def join(self) -> list:
        self._thread.join(120)
        assert not self._thread.is_alive()
        return self.events


class _Lines:
    def __init__(self, lines):
        self._lines = lines

    def iter_lines(self):
        return self._lines


def no_orphans(server) -> None:
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", server.port)) != 0
    assert subprocess.run(["pgrep", "-P", str(server.process.pid)], capture_output=True).stdout == b""


def test_sigterm_when_idle(start_server):
    """A78"""
    server = start_server()
    assert server.stop() == 0
    no_orphans(server)


def test_sigterm_drains(start_server, tmp_path):
    """A78: what runs finishes, new work is told 503, health says 503, the status is 0."""
    server = start_server("--drain-timeout-s", "600", *GATE_ARGS, env=GATE_ENV)
    gate = make_gate(tmp_path / "gate")
    asking = Asking(server, {**ONE, "return_token_ids": True, "vllm_xargs": {"gate": gate}})
    server.process.send_signal(signal.SIGTERM)
    server.wait_line("draining 1 requests")
    refused = server.post(COMPLETIONS, {"prompt": [5]})
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    assert server.get("/health").status_code == 503
    open_gate(gate)
    got = asking.join()
    assert got[-1] == "[DONE]"
    assert sum(len(e["choices"][0]["token_ids"]) for e in got[:-1]) == 1000
    assert {e["choices"][0]["finish_reason"] for e in got[:-1]} == {None, "length"}
    assert server.wait() == 0
    no_orphans(server)


def test_sigterm_drain_time_is_bounded(start_server, endless_folder):
    """The rest is aborted, its clients are told, and the status says so."""
    server = start_server(*ENDLESS_ARGS, "--drain-timeout-s", "0", model=endless_folder)
    asking = Asking(server, MANY)
    assert server.stop() == 3
    got = asking.join()
    assert got[-1] == "[DONE]"
    assert "abort" in {e["choices"][0]["finish_reason"] for e in got[:-1]}
    no_orphans(server)


def test_a_second_signal_is_quick(start_server, endless_folder):
    server = start_server(*ENDLESS_ARGS, "--drain-timeout-s", "3600", model=endless_folder)
    asking = Asking(server, MANY)
    server.process.send_signal(signal.SIGTERM)
    server.wait_line("draining")
    assert server.stop(signal.SIGINT) == 3
    assert asking.join()[-1] == "[DONE]"


def test_port_in_use(start_server, tiny_folder, tiny):
    command = [sys.executable, "-m", "fastllm_core", "serve", tiny_folder, "--port", str(tiny.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert str(tiny.port) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_stalled_engine_is_seen(start_server, endless_folder):
    """A77: the engine's threads stand still. Health is 503, streams end with an error, the process ends with 5."""
    server = start_server(*ENDLESS_ARGS, "--stall-timeout-s", "1", model=endless_folder)
    asking = Asking(server, MANY)
    stopped = StoppedThreads(all_but_the_servers(server.process.pid))
    line = server.wait_line("the engine does not serve")
    assert "stall" in line
    got = asking.join()
    assert got[-1] == "[DONE]"
    assert got[-2]["error"]["code"] == 500
    stopped.reap()
    assert server.wait() == 5


def test_a_stalled_engine_without_exit(start_server, endless_folder):
    server = start_server(*ENDLESS_ARGS, "--stall-timeout-s", "1", "--no-exit-on-engine-death", model=endless_folder)
    asking = Asking(server, MANY)
    stopped = StoppedThreads(all_but_the_servers(server.process.pid))
    server.wait_line("the engine does not serve")
    assert asking.join()[-2]["error"]["code"] == 500
    health = server.get("/health")
    assert health.status_code == 503
    assert "stall" in health.json()["reason"]
    assert server.metric("engine_healthy") == 0
    server.process.kill()
    stopped.reap()
    server.kill()
