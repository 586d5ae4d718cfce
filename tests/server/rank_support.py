"""What tests of ranks look at: processes by their names, and waiting with a bound."""

import os
import pathlib
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


def wait_until(what, within: float = WITHIN_S) -> float:
    """Seconds until what() is true."""
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < within
        time.sleep(0.01)
    return time.monotonic() - began


def named_memory() -> set[str]:
    """Shared memory with a name that is an engine's or torch's; other tests run beside these and have theirs."""
    return {name for name in os.listdir("/dev/shm") if "fastllm" in name or "torch" in name}
