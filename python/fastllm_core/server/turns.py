"""Turns: a burst of work takes many rounds of the event loop, so that what else there is waits for one of them only."""

import asyncio
from collections import deque

PER_ROUND = 4  # of some tenths of a millisecond each


class Turns:
    """Lets callers begin in their order, PER_ROUND of them in a round of the loop; the loop looks at its sockets
    between rounds. In the event loop alone."""

    def __init__(self, per_round: int = PER_ROUND):
        self._per_round = per_round
        self._waiting: deque[asyncio.Future] = deque()
        self._left = per_round  # of this round
        self._counting = False  # _next() is on its way

    async def take(self) -> None:
        """Returns when it is the caller's turn."""
        if self._left > 0 and not self._waiting:
            self._left -= 1
            self._count()
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._count()
        await turn  # one that is cancelled is passed over

    def _count(self) -> None:
        if not self._counting:
            self._counting = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._counting = False
        self._left = self._per_round
        while self._waiting and self._left > 0:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._left -= 1
        if self._waiting or self._left < self._per_round:
            self._count()
