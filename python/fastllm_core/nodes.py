"""Ranks on several nodes: which node this is, and the ranks of a node that is not the engine's."""

import os
import signal
import sys
from collections.abc import Mapping

from fastllm_core import worker
from fastllm_core.errors import InvalidArgumentError
from fastllm_core.vllm_keywords import engine_config


def with_environment(options: dict, environ: Mapping[str, str] = os.environ) -> dict:
    """Engine options with what torchrun says of the nodes, for ranks in processes and unless options say so."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    if options.get("distributed_executor_backend") != "processes" or not all(name in environ for name in names):
        return options
    rank, world, _, address, port = (environ[name] for name in names)
    if world == "1" or {"nnodes", "node_rank", "master_addr", "master_port"} & set(options):
        return options
    local = environ.get("LOCAL_WORLD_SIZE", "1")
    if local != "1":
        raise InvalidArgumentError(
            f"LOCAL_WORLD_SIZE is {local}: start one process per node (--nproc-per-node 1), which starts its ranks"
        )
    # torchrun's own store has MASTER_PORT.
    own = int(port) + (environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true")
    return {**options, "nnodes": int(world), "node_rank": int(rank), "master_addr": address, "master_port": own}


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
