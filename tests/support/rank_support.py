"""What tests of ranks look at: processes by their names, their ends, and what is left."""

import os
import pathlib
import select
import time

WITHIN_S = 5.0


def ranks_of(pid: int) -> dict[str, int]:
    """Process ids below a process, by the name of their rank."""
    found = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            name = pathlib.Path(f"/proc/{child}/comm").read_text().strip()
            if name.startswith("fastllm-rank"):
                found[name] = int(child)
    return found


def is_there(pid: int) -> bool:
    """Whether a process runs; a dead one that nobody has collected does not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_gone(pids, within: float = WITHIN_S) -> None:
    """Returns when all of the processes have ended, whoever's children they are."""
    deadline = time.monotonic() + within
    for pid in pids:
        try:
            end = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            poll = select.poll()
            poll.register(end, select.POLLIN)
            left = max(0.0, deadline - time.monotonic())
            assert poll.poll(left * 1000), f"process {pid} has not ended within {within} s"
        finally:
            os.close(end)


def wait_health(server, status: int, within: float = 60) -> float:
    """Seconds until the server's health is this. Each look is a request, so that time passes by the server's."""
    began = time.monotonic()
    with server.http() as http:
        while (answer := http.get("/health")).status_code != status:
            assert time.monotonic() - began < within, answer.text
    return time.monotonic() - began


def peak_bytes(pid: int) -> int:
    """Most memory that a process has had resident."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def named_memory() -> set[str]:
    """Shared memory with a name that is an engine's or torch's; other tests run beside these and have theirs."""
    return {name for name in os.listdir("/dev/shm") if "fastllm" in name or "torch" in name}
