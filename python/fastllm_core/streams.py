"""From the engine's eventfd to the readers of requests, for asyncio."""

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Sequence

from fastllm_core._C import Engine, StreamRelay
from fastllm_core.errors import EngineDeadError
from fastllm_core.outputs import Piece, join_all

# A timer that never fires in practice; see _ClosingBell.
_FAR_SECONDS = 10 * 365 * 86400
WAKES_PER_ROUND = 16


class Group:
    """Requests that were submitted together and are read together, by one reader in one event loop.

    When the last reference to it goes, what still runs is aborted: nothing else has to happen for that, so a
    generator that an abandoned loop never closes does not leave its request behind.
    """

    __slots__ = ("__weakref__", "_dispatcher", "_news", "_open", "_quiet", "_ready", "_waiter", "handles", "loop")

    def __init__(self, dispatcher: "Dispatcher", loop: asyncio.AbstractEventLoop, size: int, quiet: bool):
        self.loop = loop
        self.handles: list[int] = []
        self._dispatcher = dispatcher
        self._news: deque[tuple[int, Piece]] = deque()
        self._open = size  # outputs whose last piece has not come
        self._quiet = quiet
        self._ready = False
        self._waiter: asyncio.Future | None = None  # used in the thread of the loop alone

    def put(self, slot: int, piece: Piece) -> bool:
        """From any thread, in the order of the engine's deltas; True when wake() must follow."""
        self._news.append((slot, piece))
        if piece.finish_reason is not None:
            self._open -= 1
        if self._quiet and self._open > 0 and piece.finish_reason != "error":
            return False
        self._ready = True
        return True

    def wake(self) -> None:
        """In the thread of the loop: get() returns, with whatever there is."""
        self._ready = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> list[tuple[int, Piece]]:
        """All news since the last call as (place of the request in the group, piece), waiting for some; one piece at
        most for each output.

        A quiet group is woken when all its outputs have ended, or one in error. Empty after a wake() without news.
        """
        while not self._ready:
            self._waiter = self.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._take()

    def take_unfinished(self) -> list[tuple[int, Piece]] | None:
        """get() without waiting, for news that end no output; None, and nothing is taken, when some do."""
        if any(piece.finish_reason is not None for _, piece in self._news):
            return None
        return self._take()

    def _take(self) -> list[tuple[int, Piece]]:
        self._ready = False  # before the news are taken: what comes from now on sets it again
        news = [self._news.popleft() for _ in range(len(self._news))]
        return news if len(news) < 2 else _by_slot(news)

    def abort(self) -> None:
        """Ends what runs; the last pieces, with finish_reason "abort", still come."""
        for handle in self.handles:
            self._dispatcher.engine.abort(handle)

    def close(self) -> None:
        """Aborts what runs and stops listening. Idempotent, from any thread."""
        self._dispatcher.close(self)

    @property
    def finished(self) -> bool:
        return self._open <= 0

    def __del__(self):
        self._dispatcher.close(self)


def _by_slot(news: list[tuple[int, Piece]]) -> list[tuple[int, Piece]]:
    slots: dict[tuple[int, int], list[Piece]] = {}
    for slot, piece in news:
        slots.setdefault((slot, piece.index), []).append(piece)
    return [(slot, join_all(pieces)) for (slot, _), pieces in slots.items()]


class _ClosingBell:
    """Held by a timer of an event loop and by nothing else. A loop drops its timers when it is closed, and then this
    rings: there is no other sign of a loop that was closed with requests still running."""

    def __init__(self, ring):
        self.ring = ring

    def __call__(self) -> None:  # the timer ran out after all these years
        pass

    def __del__(self):
        if self.ring is not None:
            self.ring()


class _Listener:
    """Watches the eventfd in one event loop while that loop has open groups."""

    def __init__(self, dispatcher: "Dispatcher", loop: asyncio.AbstractEventLoop):
        self.groups: dict[int, weakref.ref[Group]] = {}  # by id()
        self._loop = loop
        self._fd = dispatcher.source.event_fd
        loop.add_reader(self._fd, dispatcher.on_readable)
        bell = _ClosingBell(lambda: dispatcher.close_loop(loop))
        self._bell = weakref.ref(bell)
        self._timer = weakref.ref(loop.call_later(_FAR_SECONDS, bell))

    def stop(self) -> None:
        bell, timer = self._bell(), self._timer()
        if bell is not None:
            bell.ring = None
        if timer is not None:
            timer.cancel()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.remove_reader(self._fd)


class Dispatcher:
    """Carries the engine's deltas to their groups: one reader of the eventfd per event loop with open groups."""

    def __init__(self, engine):
        self.engine = engine
        self.source = engine  # what has event_fd and drain(): the engine itself, or its relay
        # Loops may run in different threads; a group may also be closed by the garbage collector, in any thread and
        # in the middle of our own code, hence the R.
        self._lock = threading.RLock()
        self._slots: dict[int, tuple[weakref.ref[Group], int]] = {}  # by handle
        self._listeners: dict[asyncio.AbstractEventLoop, _Listener] = {}

    def start_relay(self, gap_edges: Sequence[float], round_us: int, per_output_us: int) -> StreamRelay | None:
        """A relay between the engine and this dispatcher, before anything is submitted; None when the text of the
        engine's deltas is made in Python."""
        if type(self.engine) is not Engine:
            return None
        self.source = StreamRelay(self.engine, list(gap_edges), round_us, per_output_us)
        return self.source

    def submit(self, requests: Sequence, quiet: bool = False) -> Group:
        """Submits all requests or none, and returns where their news come. In a running event loop.

        quiet: the reader wants the end only and is not woken before.
        """
        loop = asyncio.get_running_loop()
        group = Group(self, loop, sum(request.sampling_params.n for request in requests), quiet)
        ref = weakref.ref(group)
        try:
            with self._lock:  # the first delta must not be drained before its group is known
                for slot, request in enumerate(requests):
                    handle = self.engine.submit(request)
                    group.handles.append(handle)
                    self._slots[handle] = (ref, slot)
                if loop not in self._listeners:
                    self._listeners[loop] = _Listener(self, loop)
                self._listeners[loop].groups[id(group)] = ref
        except BaseException:
            self.close(group)
            raise
        return group

    def close(self, group: Group) -> None:
        with self._lock:
            known = [h for h in group.handles if self._slots.pop(h, None) is not None]
            listener = self._listeners.get(group.loop)
            if listener is not None:
                listener.groups.pop(id(group), None)
                if not listener.groups:
                    del self._listeners[group.loop]
                    listener.stop()
        if not group.finished:
            for handle in known:
                self.engine.abort(handle)

    def close_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop was closed: nobody will read what its groups get."""
        with self._lock:
            listener = self._listeners.get(loop)
            refs = [] if listener is None else list(listener.groups.values())
        for ref in refs:
            if (group := ref()) is not None:
                self.close(group)

    def fail_all(self, message: str) -> None:
        """Ends every open group with an error, as the engine would if it could still speak. From any thread."""
        with self._lock:
            open_groups = {ref for ref, _ in self._slots.values()}
            slots = [(h, ref(), slot) for h, (ref, slot) in self._slots.items()]
            for handle, group, slot in slots:
                if group is not None and not group.finished:
                    group.put(slot, Piece([], "", "error", None, message, 0))
                    del self._slots[handle]
                    self.engine.abort(handle)
        for ref in open_groups:
            if (group := ref()) is not None:
                _wake(group)

    def on_readable(self) -> None:
        # Put under the lock: a loop that drains later must not deliver earlier.
        fresh = {}
        with self._lock:
            deltas = self.source.drain()
            for delta in deltas:
                ref, slot = self._slots.get(delta.request_id, (None, 0))
                group = ref() if ref is not None else None
                if group is not None and group.put(slot, Piece.of(delta)):  # None: closed before its end
                    fresh[id(group)] = group
        self._wake_some(list(fresh.values()))
        if not deltas and self._is_dead():
            self.fail_all("the engine ended")  # it had not even the memory to say so

    def _wake_some(self, groups: list[Group], begin: int = 0) -> None:
        """A loop that has many to wake looks at its sockets in between."""
        end = begin + WAKES_PER_ROUND
        for group in groups[begin:end]:
            _wake(group)
        if end < len(groups):
            asyncio.get_running_loop().call_soon(self._wake_some, groups, end)

    def _is_dead(self) -> bool:
        try:
            self.engine.check_health()
        except EngineDeadError:
            return True
        return False


def _wake(group: Group) -> None:
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if group.loop is here:
        group.wake()
    else:
        with contextlib.suppress(RuntimeError):  # its thread may close it at any time
            group.loop.call_soon_threadsafe(group.wake)
