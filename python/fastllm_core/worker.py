"""The process of one rank (distributed_executor_backend="processes"): `python -m fastllm_core.worker`, by an engine."""

import os
import sys

SOCKET = 3  # where the engine is, in the processes that it starts


def command() -> list[str]:
    """What starts such a process."""
    return [sys.executable, "-m", "fastllm_core.worker"]


def main() -> None:
    from fastllm_core._C import run_worker

    status = run_worker(SOCKET, make_groups)
    sys.stderr.flush()
    os._exit(status)  # there is nothing to tidy up, and the engine waits


def make_groups(request) -> list[str]:
    """The groups of ranks across nodes, over gloo; imports torch, which ranks on one node do without."""
    from datetime import timedelta

    from torch import distributed

    timeout = timedelta(milliseconds=request.timeout_ms)
    if "GLOO_SOCKET_IFNAME" not in os.environ and (name := interface_of(request.interface_address)):
        os.environ["GLOO_SOCKET_IFNAME"] = name
    store = distributed.TCPStore(
        request.store_host, request.store_port, is_master=False, wait_for_workers=False, timeout=timeout
    )
    distributed.init_process_group("gloo", store=store, rank=request.rank, world_size=request.world, timeout=timeout)
    groups = [distributed.new_group(ranks, timeout=timeout, backend="gloo") for ranks in request.groups]
    return [getattr(group, "group_name", "") for group in groups]


def interface_of(address: str) -> str | None:
    """The name of the network interface that has an IPv4 address; None when there is none."""
    import fcntl
    import socket
    import struct

    get_address = 0x8915  # SIOCGIFADDR
    wanted = socket.gethostbyname(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(sock, get_address, struct.pack("256s", name.encode()))
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(answer[20:24]) == wanted:
                return name
    return None


if __name__ == "__main__":
    main()
