"""What netns_check.py and ray_check.py have in common: the answers of one rank, and a rank that is killed."""

import os
import pathlib
import signal
import time

from rank_support import wait_health
from server_support import TINY_ARGS, RunningServer, write_tiny_model

PROMPTS = [[7, 8, 9], [3] * 40, list(range(5, 90))]


def model_args(folder: str) -> tuple[str, ...]:
    """The arguments of a server on the tiny model, which is written into the folder."""
    return (write_tiny_model(pathlib.Path(folder)), *TINY_ARGS, "--num-gpu-blocks-override", "600")


def answers(server: RunningServer) -> list:
    return [server.complete(p, 12)["choices"] for p in PROMPTS]


def answers_of_one_rank(args: tuple[str, ...]) -> list:
    """What a server of one rank with these arguments answers."""
    one = RunningServer(*args)
    try:
        return answers(one)
    finally:
        one.stop()


def kill_rank_3(server: RunningServer, pid: int) -> None:
    """Kills the last of tensor 2 x pipeline 2 ranks. Returns when the server has named it and serves again."""
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    server.wait_line(rf"rank 3 \(tp 1, pp 1\), process {pid}, was killed by signal 9")
    print(f"a killed rank is named after {time.monotonic() - began:.2f} s")
    wait_health(server, 200)
    print(f"serving again after {time.monotonic() - began:.1f} s")
