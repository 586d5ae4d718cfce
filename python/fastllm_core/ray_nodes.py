"""Ranks on the nodes of a Ray cluster (distributed_executor_backend="ray"): an actor on each, in a placement group."""

import os
import secrets
import threading

from fastllm_core.errors import FastLLMError, ResourceExhaustedError, UnsupportedError


class Agent:
    """The actor: runs the ranks of its node, as processes below it."""

    def run(self, options: dict) -> None:
        from fastllm_core import nodes
        from fastllm_core._C import run_node
        from fastllm_core.vllm_keywords import engine_config

        config = engine_config(options)
        nodes.prepare(config)
        run_node(config)


def start(config) -> None:
    """Reserves the nodes and starts their agents, which wait for the engine that is made next; `config` gets the
    address under which they look for it. They end with the engine, and give their places back."""
    try:
        import ray
    except ImportError:
        raise UnsupportedError(
            "distributed_executor_backend='ray' needs the package ray: pip install 'fastllm-core[ray]'"
        ) from None
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    if not ray.is_initialized():
        ray.init(address="auto", log_to_driver=True)
    ranks = config.tensor_parallel_size * config.pipeline_parallel_size
    if ranks % config.nnodes:
        raise UnsupportedError(f"nnodes is {config.nnodes}, which does not divide the {ranks} ranks")
    each = ranks // config.nnodes
    if config.master_addr == "127.0.0.1":
        config.master_addr = ray.util.get_node_ip_address()
    group = placement_group([{"CPU": each}] * config.nnodes, strategy="STRICT_SPREAD" if config.nnodes > 1 else "PACK")
    try:
        ray.get(group.ready(), timeout=config.distributed_timeout_seconds)
    except ray.exceptions.GetTimeoutError:
        ray.util.remove_placement_group(group)
        raise ResourceExhaustedError(
            f"Ray has not found {config.nnodes} nodes with {each} CPUs each within "
            f"{config.distributed_timeout_seconds} s"
        ) from None
    # The agents get it with their options, so that nobody has to make one up.
    config.distributed_token = (
        config.distributed_token or os.environ.get("FASTLLM_DISTRIBUTED_TOKEN") or secrets.token_hex(32)
    )
    environment = {"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}} if "PYTHONPATH" in os.environ else None
    actor = ray.remote(num_cpus=each, max_restarts=-1, max_task_retries=-1, runtime_env=environment)(Agent)
    actors, runs = [], []
    for node in range(config.nnodes):
        place = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=node)
        actors.append(actor.options(scheduling_strategy=place).remote())
        options = {field.name: getattr(config, field.name) for field in type(config).fields()}
        runs.append(actors[-1].run.remote({**options, "node_rank": node}))

    def tidy() -> None:
        """When all agents have ended, which they do with the engine."""
        for run in runs:
            try:
                ray.get(run)
            except (FastLLMError, ray.exceptions.RayError):
                continue  # the engine has said why
        for one in actors:
            ray.kill(one)
        ray.util.remove_placement_group(group)

    threading.Thread(target=tidy, name="fastllm-ray", daemon=True).start()
