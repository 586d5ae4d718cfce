"""Ranks on a Ray cluster of two nodes, which are two raylets of this machine: `make test-ray`. Tensor 2 x pipeline 2
through the OpenAI server, the answers of one rank, a killed rank, and what is left at the end."""

import pathlib
import tempfile
import time

import ray
from rank_checks import answers, answers_of_one_rank, kill_rank_3, model_args
from rank_support import is_there, wait_gone
from ray.cluster_utils import Cluster
from ray.util import placement_group_table
from server_support import RunningServer

ARGS = ("--distributed-executor-backend", "ray", "--tensor-parallel-size", "2", "--pipeline-parallel-size", "2")


def ranks() -> dict[str, list[int]]:
    """Processes of ranks of this machine, by name."""
    found: dict[str, list[int]] = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*/comm"):
        try:
            name = entry.read_text().strip()
        except OSError:
            continue
        if name.startswith("fastllm-rank") and is_there(pid := int(entry.parent.name)):
            found.setdefault(name, []).append(pid)
    return found


def main() -> None:
    before = {pid for pids in ranks().values() for pid in pids}

    def own() -> dict[str, int]:
        mine = {name: [pid for pid in pids if pid not in before] for name, pids in ranks().items()}
        return {name: pids[0] for name, pids in mine.items() if pids}

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(2):
        cluster.add_node(num_cpus=2)
    ray.init(address=cluster.address)
    with tempfile.TemporaryDirectory() as folder:
        common = model_args(folder)
        wanted = answers_of_one_rank(common)
        began = time.monotonic()
        server = RunningServer(
            *common, *ARGS, "--nnodes", "2", "--restart-failed-engine", env={"RAY_ADDRESS": cluster.address}
        )
        print(f"ready after {time.monotonic() - began:.1f} s; {sorted(own())}")
        assert sorted(own()) == [f"fastllm-rank{n}" for n in range(4)]
        assert answers(server) == wanted
        kill_rank_3(server, own()["fastllm-rank3"])
        assert answers(server) == wanted
        left = list(own().values())
        assert server.stop() == 0
        wait_gone(left)
    began = time.monotonic()
    while any(p["state"] != "REMOVED" for p in placement_group_table().values()):  # each look asks the cluster
        assert time.monotonic() - began < 30
    print("ray: the answers of one rank; no rank and no placement group is left")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
