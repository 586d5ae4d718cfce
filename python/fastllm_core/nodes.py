"""Ranks on several nodes: which node this is, and the ranks of a node that is not the engine's."""

import os
import pathlib
import select
import signal
import sys
from collections.abc import Mapping

from fastllm_core import worker
from fastllm_core.errors import InvalidArgumentError, InvalidStateError
from fastllm_core.vllm_keywords import engine_config

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def with_environment(options: dict, environ: Mapping[str, str] = os.environ) -> dict:
    """Engine options with what torchrun says of the nodes, for ranks in processes and unless options say so.

    Of the processes that torchrun starts on a node the first is the node's, and starts its ranks; the others wait for
    it (follow). More than one of them must be as many as there are ranks, which is what was asked for then."""
    if not all(name in environ for name in _TORCHRUN):
        return options
    rank, world, local = int(environ["RANK"]), int(environ["WORLD_SIZE"]), _local_world(environ)
    backend = options.get("distributed_executor_backend", "threads")
    if local > 1:
        ranks = options.get("tensor_parallel_size", 1) * options.get("pipeline_parallel_size", 1)
        if backend != "processes" or world != ranks:
            raise InvalidArgumentError(
                f"torchrun starts {world} processes, {local} of them here: with more than one for each node they must "
                "be the ranks, so distributed_executor_backend must be 'processes' and tensor_parallel_size x "
                f"pipeline_parallel_size must be {world}; got '{backend}' and {ranks}"
            )
    if backend != "processes" or world == local or {"nnodes", "node_rank", "master_addr", "master_port"} & set(options):
        return options
    if world % local:
        raise InvalidArgumentError(f"WORLD_SIZE is {world} and LOCAL_WORLD_SIZE {local}: all nodes need as many ranks")
    # torchrun's own store has MASTER_PORT.
    own = int(environ["MASTER_PORT"]) + (environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true")
    place = {"master_addr": environ["MASTER_ADDR"], "master_port": own}
    return {**options, "nnodes": world // local, "node_rank": rank // local, **place}


def _local_world(environ: Mapping[str, str]) -> int:
    return int(environ.get("LOCAL_WORLD_SIZE", "1"))


def follows(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether torchrun has started another process here before this one, which is the node's."""
    return all(name in environ for name in _TORCHRUN) and _local_world(environ) > 1 and environ["LOCAL_RANK"] != "0"


def follow() -> int:
    """The command of a process that follows: returns when the node's has ended. How that ended torchrun sees there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    end = os.pidfd_open(_first_process())
    poll = select.poll()
    poll.register(end, select.POLLIN)
    poll.poll()
    return 0


def _first_process() -> int:
    """The process of LOCAL_RANK 0. torchrun starts it first, so that it is there, among the children of its own."""
    names = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
    wanted = {f"{name}={os.environ[name]}".encode() for name in names if name in os.environ} | {b"LOCAL_RANK=0"}
    for task in pathlib.Path(f"/proc/{os.getppid()}/task").iterdir():
        for child in (task / "children").read_text().split():
            try:
                said = pathlib.Path(f"/proc/{child}/environ").read_bytes()
            except OSError:  # it has ended
                continue
            if wanted <= set(said.split(b"\0")):
                return int(child)
    raise InvalidStateError(
        f"LOCAL_RANK is {os.environ['LOCAL_RANK']}, and no process of LOCAL_RANK 0 runs beside this one: start them "
        "with torchrun, or one for each node"
    )


def run(options: dict) -> int:
    """The command of a node other than 0: runs its ranks until the engine of node 0 ends."""
    from fastllm_core._C import run_node

    config = engine_config({name: value for name, value in options.items() if name not in ("model", "tokenizer")})
    if config.distributed_executor_backend != "processes" or config.node_rank >= config.nnodes:
        raise InvalidArgumentError(
            f"node_rank {config.node_rank} needs distributed_executor_backend 'processes' and more than "
            f"{config.node_rank} nnodes, got '{config.distributed_executor_backend}' and {config.nnodes}"
        )
    prepare(config)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ranks end with this process
    place = f"{config.master_addr}:{config.master_port}"
    print(f"node {config.node_rank}: ranks for the engine of node 0 at {place}", file=sys.stderr, flush=True)
    run_node(config)
    print(f"node {config.node_rank}: the engine has ended", file=sys.stderr, flush=True)
    return 0


def prepare(config) -> None:
    """Fills in the program of the ranks."""
    if not config.distributed_worker_command:
        config.distributed_worker_command = worker.command()
