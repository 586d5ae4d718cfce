"""Ranks on two nodes, which are two agents on loopback: by options, and under torchrun; through the OpenAI server."""

import contextlib
import hashlib
import hmac
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from rank_support import is_there, ranks_of, wait_gone, wait_health
from server_support import TINY_ARGS

from fastllm_core import LLM, nodes
from fastllm_core.errors import FastLLMError, InvalidArgumentError

RANKED = ("--distributed-executor-backend", "processes", "--num-gpu-blocks-override", "600")
FOUR = ("--tensor-parallel-size", "2", "--pipeline-parallel-size", "2", "--nnodes", "2")
PROMPTS = [[7, 8, 9], [3] * 40, list(range(5, 90))]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class OtherNode:
    """`fastllm serve` of node 1."""

    def __init__(self, *args: str, launcher: tuple[str, ...] = ()):
        command = [sys.executable, *launcher, "-m", "fastllm_core", "serve", *args]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def wait(self) -> tuple[int, str]:
        _, text = self.process.communicate(timeout=60)
        return self.process.returncode, text

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stderr.close()


@pytest.fixture
def other_node(tiny_folder):
    made: list[OtherNode] = []

    def start(*args: str, **options) -> OtherNode:
        made.append(OtherNode(tiny_folder, *TINY_ARGS, *args, **options))
        return made[-1]

    yield start
    for node in made:
        node.kill()


@pytest.fixture
def two_nodes(start_server, other_node):
    """(server, node 1) with ranks 0 and 1, and 2 and 3."""

    def start(*args: str):
        port = ("--master-port", str(free_port()))
        other = other_node(*RANKED, *FOUR, *port, "--node-rank", "1", *args)
        return start_server(*RANKED, *FOUR, *port, *args), other

    return start


def answers(server) -> list:
    return [server.complete(p, 12, logprobs=3)["choices"][0] for p in PROMPTS]


def same(got: list, wanted: list) -> None:
    for mine, other in zip(got, wanted, strict=True):
        assert mine["text"] == other["text"]
        close = pytest.approx(other["logprobs"]["token_logprobs"], rel=1e-5)
        assert mine["logprobs"]["token_logprobs"] == close


def test_four_ranks_on_two_nodes(two_nodes, tiny):
    server, other = two_nodes()
    assert set(ranks_of(server.process.pid)) == {"fastllm-rank0", "fastllm-rank1"}
    assert set(ranks_of(other.process.pid)) == {"fastllm-rank2", "fastllm-rank3"}
    same(answers(server), answers(tiny))
    there = list(ranks_of(other.process.pid).values())
    assert server.stop() == 0
    status, text = other.wait()
    assert status == 0
    assert "the engine has ended" in text
    assert not any(is_there(pid) for pid in there)


def test_a_rank_of_the_other_node_is_killed(two_nodes):
    server, other = two_nodes("--restart-failed-engine")
    wanted = answers(server)
    before = [*ranks_of(server.process.pid).values(), *ranks_of(other.process.pid).values()]
    victim = ranks_of(other.process.pid)["fastllm-rank3"]
    os.kill(victim, signal.SIGKILL)
    began = time.monotonic()
    server.wait_line(rf"rank 3 \(tp 1, pp 1\), process {victim}, was killed by signal 9 \(Killed\)")
    assert time.monotonic() - began < 5
    wait_health(server, 200)
    assert answers(server) == wanted
    assert not any(is_there(pid) for pid in before)
    server.stop()
    assert other.wait()[0] == 0


def test_the_other_node_is_killed(two_nodes):
    server, other = two_nodes("--no-exit-on-engine-death")
    left = [*ranks_of(other.process.pid).values(), *ranks_of(server.process.pid).values()]
    other.process.kill()
    server.wait_line("the node with ranks 2 to 3 has gone")
    wait_health(server, 503)
    wait_gone(left)
    server.stop()


def test_the_engine_is_killed(two_nodes):
    server, other = two_nodes()
    left = list(ranks_of(other.process.pid).values())
    server.kill()
    status, text = other.wait()
    assert status == 1
    assert "the other side has gone" in text
    assert not any(is_there(pid) for pid in left)


def test_tensor_ranks_on_two_nodes_have_the_numbers_of_threads(tiny_folder, other_node):
    options = {
        "model": tiny_folder,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "tensor_parallel_size": 2,
        "num_gpu_blocks_override": 600,
        "cpu_threads": 2,
    }
    results = []
    port = free_port()
    more = {"distributed_executor_backend": "processes", "nnodes": 2, "master_port": port}
    other_node(*RANKED, "--tensor-parallel-size", "2", "--nnodes", "2", "--master-port", str(port), "--node-rank", "1")
    for extra in ({}, more):
        with LLM(**options, **extra) as llm:
            outputs = llm.generate([{"prompt_token_ids": p} for p in PROMPTS], use_tqdm=False)
            results.append([list(o.outputs[0].token_ids) for o in outputs])
    assert results[0] == results[1]


@pytest.mark.parametrize("each", [1, 2])  # processes of torchrun on a node; of two the second waits for the first
def test_two_torchrun_agents(start_server, other_node, tiny, each):
    port = free_port()
    base = ("-m", "torch.distributed.run", "--nnodes=2", f"--nproc-per-node={each}", "--master-addr=127.0.0.1")
    launchers = [(*base, f"--master-port={port}", f"--node-rank={n}") for n in range(2)]
    args = (*RANKED, *FOUR[:4])
    other = other_node(*args, launcher=launchers[1])
    server = start_server(*args, launcher=launchers[0])
    same(answers(server), answers(tiny))
    started = [children_of(agent.process.pid) for agent in (server, other)]
    assert [len(processes) for processes in started] == [each, each]
    ranks = [list(ranks_of(processes[0]).values()) for processes in started]
    assert [len(processes) for processes in ranks] == [2, 2]
    server.process.send_signal(signal.SIGTERM)
    server.wait()
    other.wait()
    wait_gone([pid for processes in (*started, *ranks) for pid in processes])


def children_of(pid: int) -> list[int]:
    """In the order in which they were started."""
    return [
        int(c) for task in pathlib.Path(f"/proc/{pid}/task").iterdir() for c in (task / "children").read_text().split()
    ]


TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def test_what_torchrun_says():
    ranked = {"distributed_executor_backend": "processes"}
    said = {"nnodes": 2, "node_rank": 1, "master_addr": "10.0.0.1", "master_port": 29501}
    assert nodes.with_environment(ranked, TORCHRUN) == ranked | said
    for options in ({}, {**ranked, "nnodes": 3}):
        assert nodes.with_environment(options, TORCHRUN) == options
    assert nodes.with_environment(ranked, TORCHRUN | {"WORLD_SIZE": "1"}) == ranked
    assert not nodes.follows(TORCHRUN)


def test_what_torchrun_says_with_a_process_for_each_rank():
    environ = TORCHRUN | {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    four = {"distributed_executor_backend": "processes", "tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    said = {"nnodes": 2, "node_rank": 1, "master_addr": "10.0.0.1", "master_port": 29501}
    assert nodes.with_environment(four, environ) == four | said
    assert nodes.with_environment(four, environ | {"LOCAL_WORLD_SIZE": "4"}) == four  # one node
    assert nodes.follows(environ)
    assert not nodes.follows(environ | {"LOCAL_RANK": "0"})
    for options, got in ((four | {"tensor_parallel_size": 3}, "'processes' and 6"), ({}, "'threads' and 1")):
        message = f"torchrun starts 4 processes, 2 of them here.* must be 4; got {got}"
        with pytest.raises(InvalidArgumentError, match=message):
            nodes.with_environment(options, environ)
    with pytest.raises(InvalidArgumentError, match="WORLD_SIZE is 4 and LOCAL_WORLD_SIZE 3"):
        nodes.with_environment(four, environ | {"LOCAL_WORLD_SIZE": "3"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nnodes": 3}, "nnodes is 3, which does not divide the 2 ranks"),
        ({"nnodes": 2, "node_rank": 1}, "node_rank is 1; engines are made on node 0"),
        (
            {"nnodes": 2, "distributed_executor_backend": "threads"},
            "nnodes is 2; ranks that are threads are on one node",
        ),
        ({"nnodes": 2, "distributed_timeout_seconds": 1}, r"node 1 did not come to 127.0.0.1:\d+ within 1000 ms"),
        ({"nnodes": 2, "master_addr": "203.0.113.1"}, "cannot listen for nodes on 203.0.113.1:"),
    ],
)
def test_what_is_refused(tiny_folder, options, message):
    common = {"load_format": "dummy", "skip_tokenizer_init": True, "tensor_parallel_size": 2}
    common |= {"distributed_executor_backend": "processes", "master_port": free_port()}
    with pytest.raises(FastLLMError, match=message):
        LLM(model=tiny_folder, **common | options)


def test_who_does_not_belong_is_turned_away(tiny_folder, other_node, start_server):
    number = free_port()
    port = ("--master-port", str(number))
    token = ("--distributed-token", "of this test")
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(start_server, *RANKED, *FOUR, *port, env={"FASTLLM_DISTRIBUTED_TOKEN": token[1]})
        nodes_ = {
            "node 2 is refused: node_rank must be from 1 to 1": other_node(
                *RANKED, *FOUR, *port, *token, "--nnodes", "3", "--node-rank", "2"
            ),
            "node 1 is refused: its distributed_token is not that of node 0": other_node(
                *RANKED, *FOUR, *port, "--node-rank", "1", "--distributed-token", "another"
            ),
            "node 1 is refused: it has no distributed_token, and node 0 has one": other_node(
                *RANKED, *FOUR, *port, "--node-rank", "1"
            ),
        }
        for message, node in nodes_.items():
            status, text = node.wait()
            assert status == 1
            assert message in text
        with socket.create_connection(("127.0.0.1", number)) as silent:
            with socket.create_connection(("127.0.0.1", number)) as browser:
                browser.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                with contextlib.suppress(ConnectionResetError):
                    while browser.recv(4096):  # a challenge, and then the end
                        pass
                address = f"127.0.0.1:{browser.getsockname()[1]}"
            right = other_node(*RANKED, *FOUR, *port, *token, "--node-rank", "1")
            server = starting.result()
            assert silent.recv(4096)
    for message in nodes_:
        assert any(re.search(rf"connection from 127.0.0.1:\d+ refused: {message}", line) for line in server.lines)
    assert f"node 0: connection from {address} refused: what it says is not what a node says" in server.lines
    assert len(answers(server)) == len(PROMPTS)
    server.stop()
    assert right.wait()[0] == 0


def receive(sock: socket.socket) -> tuple[int, bytes]:
    """Kind and body of a frame."""
    head = sock.recv(5, socket.MSG_WAITALL)
    return head[4], sock.recv(int.from_bytes(head[:4], "little"), socket.MSG_WAITALL)


def test_the_greeting_by_its_description(tiny_folder):
    """An agent written from runtime/executor/node_greeting.h; what it is told does not hold the token."""
    token, number = b"known to both", free_port()
    challenge, hello, job, welcome = 8, 1, 2, 9
    options = {"load_format": "dummy", "skip_tokenizer_init": True, "tensor_parallel_size": 2, "nnodes": 2}
    options |= {"distributed_executor_backend": "processes", "master_port": number}
    with ThreadPoolExecutor(1) as pool:
        making = pool.submit(LLM, model=tiny_folder, distributed_token=token.decode(), **options)
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                sock = socket.create_connection(("127.0.0.1", number))
                break
        with sock:
            kind, body = receive(sock)
            assert (kind, body[:4], len(body)) == (challenge, b"\x02\0\0\0", 36)
            own, end = bytes(range(32)), b"\x02\0\0\0" + b"\x01\0\0\0"  # protocol, number of the node

            def proof(who: bytes) -> bytes:
                return hmac.new(token, who + body[4:] + own + end, hashlib.sha256).digest()

            said = end + own + proof(b"fastllm node")
            sock.sendall(len(said).to_bytes(4, "little") + bytes([hello]) + said)
            assert receive(sock) == (welcome, proof(b"fastllm driver"))
            kind, text = receive(sock)
            assert kind == job
            assert tiny_folder.encode() in text
            assert token not in text
        with pytest.raises(FastLLMError, match="the node with ranks 1 to 1 has gone"):
            making.result()
