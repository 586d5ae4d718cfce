"""The process of one rank (distributed_executor_backend="processes"): `python -m fastllm_core.worker`, by an engine."""

import os
import sys

SOCKET = 3  # where the engine is, in the processes that it starts


def command() -> list[str]:
    """What starts such a process."""
    return [sys.executable, "-m", "fastllm_core.worker"]


def main() -> None:
    from fastllm_core._C import run_worker

    status = run_worker(SOCKET)
    sys.stderr.flush()
    os._exit(status)  # there is nothing to tidy up, and the engine waits


if __name__ == "__main__":
    main()
