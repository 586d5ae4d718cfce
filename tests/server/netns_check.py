"""Ranks on two nodes that are two network namespaces with a cable between them: `make test-netns`, as root. Tensor 2 x
pipeline 2 through the OpenAI server, the answers of one rank, a node without the token, a killed rank, what is left."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

NETWORK = "10.193.7"
TOKEN = "FASTLLM_DISTRIBUTED_TOKEN"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def outside() -> int:
    """Makes the namespaces, and runs inside() in the first of them."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        print("test-netns makes network namespaces, which needs root and the program ip (Debian: iproute2)")
        return 1
    names = [f"fastllm-{end}-{os.getpid()}" for end in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "cable0", "netns", names[0], "type", "veth", "peer", "name", "cable0", "netns", names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "address", "add", f"{NETWORK}.{number}/24", "dev", "cable0")
            for device in ("lo", "cable0"):
                ip("-n", name, "link", "set", device, "up")
        here = [sys.executable, __file__, "inside", names[1]]
        return subprocess.run(["ip", "netns", "exec", names[0], *here], check=False).returncode
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def network_of(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


def inside(other: str) -> None:
    from rank_checks import answers, answers_of_one_rank, kill_rank_3, model_args
    from rank_support import ranks_of, wait_gone
    from server_support import RunningServer

    os.environ[TOKEN] = "of this check"
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:
        common = model_args(folder)
        ranked = (*common, "--tensor-parallel-size", "2", "--pipeline-parallel-size", "2", "--nnodes", "2")
        ranked += ("--distributed-executor-backend", "processes", "--restart-failed-engine")
        ranked += ("--master-addr", f"{NETWORK}.1", "--master-port", "29501")

        def node_1(token: str) -> subprocess.Popen:
            command = ["ip", "netns", "exec", other, sys.executable, "-m", "fastllm_core", "serve", *ranked]
            env = {**os.environ, TOKEN: token}
            return subprocess.Popen([*command, "--node-rank", "1"], stderr=subprocess.PIPE, text=True, env=env)

        wanted = answers_of_one_rank(common)
        starting = pool.submit(RunningServer, *ranked)
        stranger = node_1("another")
        _, text = stranger.communicate(timeout=60)
        assert stranger.returncode == 1, text
        assert "its distributed_token is not that of node 0" in text, text
        began = time.monotonic()
        node = node_1(os.environ[TOKEN])
        server = starting.result()
        print(f"ready {time.monotonic() - began:.1f} s after node 1 was started")
        assert any(f"connection from {NETWORK}.2:" in line and "refused" in line for line in server.lines)
        here, there = ranks_of(server.process.pid), ranks_of(node.pid)
        assert sorted(here) == ["fastllm-rank0", "fastllm-rank1"]
        assert sorted(there) == ["fastllm-rank2", "fastllm-rank3"]
        networks = [{network_of(pid) for pid in ranks.values()} for ranks in (here, there)]
        assert networks[0] == {network_of(os.getpid())}
        assert len(networks[1]) == 1
        assert networks[0] != networks[1]
        assert answers(server) == wanted
        kill_rank_3(server, there["fastllm-rank3"])
        assert answers(server) == wanted
        left = [*ranks_of(server.process.pid).values(), *ranks_of(node.pid).values()]
        assert server.stop() == 0
        assert node.wait(60) == 0
        wait_gone([*left, *here.values(), *there.values()])
    print("network namespaces: the answers of one rank; no rank is left")


if __name__ == "__main__":
    if sys.argv[1:2] == ["inside"]:
        inside(sys.argv[2])
    else:
        sys.exit(outside())
