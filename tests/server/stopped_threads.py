"""Threads of another process that stand still, as under a debugger."""

import ctypes
import os
import pathlib

_ATTACH, _DETACH, _WALL = 16, 17, 0x40000000


def thread_names(pid: int) -> dict[int, str]:
    """By thread id, in the order in which they began."""
    tids = sorted(map(int, os.listdir(f"/proc/{pid}/task")))
    return {tid: pathlib.Path(f"/proc/{pid}/task/{tid}/comm").read_text().strip() for tid in tids}


def engine_threads(pid: int) -> list[int]:
    """In the order of the replicas."""
    return [tid for tid, name in thread_names(pid).items() if name == "fastllm-engine"]


def all_but_the_servers(pid: int) -> list[int]:
    """All but the main one and the one that writes streams: that one would go on when the engine stands still, and
    stopped in a write it would hold the main one."""
    return [tid for tid, name in thread_names(pid).items() if tid != pid and name != "fastllm-relay"]


class StoppedThreads:
    """Stands still from its making on. Only the thread that made it may use it."""

    def __init__(self, threads: list[int]):
        self._threads: list[int] = []
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        for tid in threads:
            self._call(_ATTACH, tid)
            os.waitpid(tid, _WALL)
            self._threads.append(tid)

    def go_on(self) -> None:
        for tid in self._threads:
            self._call(_DETACH, tid)
        self._threads.clear()

    def reap(self) -> None:
        """After the end of their process, which cannot be waited for before them."""
        for tid in self._threads:
            os.waitpid(tid, _WALL)

    def _call(self, what: int, tid: int) -> None:
        if self._libc.ptrace(what, tid, None, None) != 0:
            raise OSError(ctypes.get_errno(), f"ptrace({what}) of thread {tid}")
