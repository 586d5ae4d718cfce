"""One API request in the engine: plan, run, and the loops that answer with its whole or with its stream."""

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import Protocol

from fastllm_core._C import GenerationRequest, SamplingParams, replica_of
from fastllm_core.errors import EngineDeadError, of_request
from fastllm_core.inputs import Scheduling, make_prompt
from fastllm_core.outputs import Piece, join_all
from fastllm_core.server.errors import ApiError, from_exception
from fastllm_core.server.relay import Events, RelayedConnection
from fastllm_core.server.state import ServerState

_log = logging.getLogger("fastllm.server")


@dataclass
class PromptInput:
    """One prompt: its text, if it came as text, and its ids."""

    text: str | None
    ids: list[int]


@dataclass
class Plan:
    """What an API request asks for, checked and tokenized."""

    request_id: str
    model: str
    prompts: list[PromptInput]
    params: SamplingParams
    cache_salt: str = ""
    scheduling: Scheduling = field(default_factory=Scheduling)
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    stream_interval: int = 1
    only_echo: bool = False  # the prompt is all that is asked for: nothing is generated
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def n(self) -> int:
        """Choices per prompt."""
        return self.params.n

    @property
    def prompt_tokens(self) -> int:
        return sum(len(p.ids) for p in self.prompts)

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.n

    def requests(self) -> list[GenerationRequest]:
        # No tokenizer: what only it knows is in the parameters already (Api.finish_params).
        made = ({"prompt_token_ids": p.ids, "cache_salt": self.cache_salt} for p in self.prompts)
        return [make_prompt(m, self.params, None, self.scheduling).request for m in made]


class Writer(Protocol):
    """How one API writes answers. Choices are numbered prompt by prompt."""

    def first(self, run: "Run") -> bytes:
        """Stream: what comes before the news, once the engine has said something."""

    def events(self) -> list[Events] | None:
        """Stream: by choice, what its events are made of. None when they cannot be made of their text alone."""

    def begins_with_news(self) -> bool:
        """Stream: whether there is nothing before or in the first news that events() does not make."""

    def piece(self, choice: int, piece: Piece, run: "Run") -> bytes:
        """Stream: one choice's news; b"" when there is nothing to say."""

    def last(self, run: "Run") -> bytes:
        """Stream: what comes after the end of all choices."""

    def error(self, error: ApiError) -> bytes:
        """Stream: the end of a stream that failed."""

    def whole(self, pieces: list[Piece], run: "Run") -> dict:
        """The answer without a stream; one piece per choice."""


class Run:
    """An API request while the engine works on it. close() ends what is left of it."""

    def __init__(self, state: ServerState, plan: Plan):
        self.plan = plan
        self.completion_tokens = 0
        self.cached_tokens = 0
        self._state = state
        self._cached: dict[int, int] = {}
        self._group = state.llm.submit(plan.requests(), quiet=not plan.stream)
        self._timer = state.metrics.timer(plan, self._group.handles)
        self._failed = False
        self._connection: RelayedConnection | None = None
        self.last_spoken = 0.0  # when the relay wrote last, by time.monotonic()
        self.told: set[int] = set()  # choices whose end the relay has written
        self.keep_alive_s = state.config.sse_keep_alive_s
        self.unfinished = plan.choices
        state.runs[plan.request_id] = self

    async def news(self) -> list[tuple[int, Piece]]:
        """(choice, what is new), waiting for some; empty when nudge() woke it. ApiError when the engine failed."""
        news = await self._group.get()
        self._take_back()
        return self._count(news)

    def hand_over(self, connection: RelayedConnection, writer: Writer) -> bytes:
        """Lets the relay write what comes up to the end of a choice, if it can. What Python is to write now."""
        news = self._group.take_unfinished() if connection.free else None
        if news is None:
            return b""
        begin = b"".join([writer.piece(choice, piece, self) for choice, piece in self._count(news)])
        n, handles, last = self.plan.n, self._group.handles, self._timer.last_time
        outputs = [(handles[choice // n], choice % n, last(choice)) for choice in range(self.plan.choices)]
        if not connection.hand_over(outputs, begin):
            return begin
        self._connection = connection
        return b""

    def _take_back(self) -> None:
        if self._connection is None:
            return
        connection, self._connection = self._connection, None
        tokens, last_times, ended = connection.take_back()
        self.told.update(choice for choice, end in enumerate(ended) if end)
        self.completion_tokens += tokens
        self._timer.relayed(last_times)
        self.last_spoken = max(last_times)

    def _count(self, news: list[tuple[int, Piece]]) -> list[tuple[int, Piece]]:
        out = []
        for slot, piece in news:
            if piece.finish_reason == "error":
                raise self._failure(slot, piece)
            if piece.finish_reason is None and not piece.token_ids:
                continue  # the relay could not go on
            self.completion_tokens += len(piece.token_ids)
            # The other outputs find the prompt of the first in the cache.
            if piece.index == 0 and piece.num_cached_tokens != self._cached.get(slot, 0):
                self._cached[slot] = piece.num_cached_tokens
                self.cached_tokens = sum(self._cached.values())
            choice = slot * self.plan.n + piece.index
            if piece.finish_reason is not None:
                self.unfinished -= 1
            self._timer.piece(choice, piece)
            out.append((choice, piece))
        return out

    def nudge(self) -> None:
        self._group.wake()

    def abort(self) -> None:
        """Ends it with finish_reason "abort", which its client is told."""
        self._group.abort()

    def close(self) -> None:
        try:
            self._take_back()
        finally:
            self._state.runs.pop(self.plan.request_id, None)
            self._group.close()
            self._timer.close("error" if self._failed else "abort")

    def _failure(self, slot: int, piece: Piece) -> ApiError:
        self._failed = True
        retry_after = self._state.config.retry_after_s
        if piece.error_code == "unavailable" and len(self._state.metrics.engines) > 1:
            replica = replica_of(self._group.handles[slot])
            _log.error("request %s: %s", self.plan.request_id, piece.error)
            again = f"replica {replica} failed while it worked on the request; send it again"
            return ApiError(503, again, headers={"Retry-After": str(retry_after)})
        return from_exception(of_request(self.plan.request_id, piece), retry_after)


class EchoRun:
    """A Run that asks nothing of the engine: every choice is empty and ends at its length of 0."""

    def __init__(self, state: ServerState, plan: Plan):
        for request in plan.requests():
            state.llm.validate(request)
        self.plan = plan
        self.completion_tokens = self.cached_tokens = 0
        self.unfinished = plan.choices
        self.keep_alive_s = self.last_spoken = 0.0
        self.told: set[int] = set()

    async def news(self) -> list[tuple[int, Piece]]:
        self.unfinished = 0
        return [(n, Piece([], "", "length", None, "", 0)) for n in range(self.plan.choices)]

    def close(self) -> None:
        pass


def start(state: ServerState, plan: Plan) -> Run | EchoRun:
    """Hands a plan to the engine; ApiError when it refuses."""
    try:
        return EchoRun(state, plan) if plan.only_echo else Run(state, plan)
    except EngineDeadError as e:
        if len(state.metrics.engines) == 1:
            raise from_exception(e) from e
        _log.error("request %s: %s", plan.request_id, e)
        again = {"Retry-After": str(state.config.retry_after_s)}
        raise ApiError(503, "no replica takes the request; see /replicas", headers=again) from e
    except Exception as e:
        raise from_exception(e, state.config.retry_after_s) from e


async def whole_answer(run: Run, writer: Writer) -> dict:
    """The answer without a stream."""
    pieces: list[list[Piece]] = [[] for _ in range(run.plan.choices)]
    while run.unfinished:
        for choice, piece in await run.news():
            pieces[choice].append(piece)
    return writer.whole([join_all(p) for p in pieces], run)


async def stream_answer(run: Run, writer: Writer, write, connection: RelayedConnection | None = None) -> None:
    """The answer as a stream: `write` takes bytes. An error of the engine ends it as an event of its own. With a
    `connection` the engine writes what Python has nothing to add to."""
    keep_alive = _KeepAlive(run, run.keep_alive_s)
    pieces = _Pieces(run, writer)

    async def hand_over() -> None:
        await asyncio.sleep(0)  # the loop sends what was written when its turn ends
        rest = run.hand_over(connection, writer)
        if rest:
            await write(rest)

    try:
        if connection is not None and writer.begins_with_news():
            pieces.begun = True
            await hand_over()
        while run.unfinished:
            news = await run.news()
            data = pieces.write(news)
            if data:
                keep_alive.touch()
                await write(data)
            elif not news and keep_alive.due(run.last_spoken):
                await write(b": keep-alive\n\n")
            if connection is not None and pieces.begun and run.unfinished:
                await hand_over()
        await write(writer.last(run))
    except ApiError as e:
        await write(writer.error(e))
    finally:
        keep_alive.stop()


class _Pieces:
    """The events of a stream, out of its pieces."""

    def __init__(self, run: Run, writer: Writer):
        self._run = run
        self._writer = writer
        self._interval = run.plan.stream_interval
        self._held: dict[int, list[Piece]] = {}
        self.begun = False

    def write(self, news: list[tuple[int, Piece]]) -> bytes:
        if not news:
            return b""
        out = [] if self.begun else [self._writer.first(self._run)]
        self.begun = True
        for choice, piece in news:
            if choice in self._run.told:
                continue
            if self._interval > 1:
                piece = _hold(self._held, choice, piece, self._interval)
                if piece is None:
                    continue
            out.append(self._writer.piece(choice, piece, self._run))
        return b"".join(out)


def _hold(held: dict[int, list[Piece]], choice: int, piece: Piece, interval: int) -> Piece | None:
    """Pieces of a choice until there are `interval` tokens; the first and the last are never held."""
    if choice not in held:
        held[choice] = []
        return piece
    pieces = held[choice]
    pieces.append(piece)
    if piece.finish_reason is None and sum(len(p.token_ids) for p in pieces) < interval:
        return None
    held[choice] = []
    return join_all(pieces)


class _KeepAlive:
    """Nudges a run whose stream has said nothing for a while."""

    def __init__(self, run: Run, interval: float):
        self._run = run
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer = self._loop.call_later(interval, self._check) if interval > 0 else None

    def due(self, last_spoken: float) -> bool:
        """Whether it is time for a comment; last_spoken: when another wrote to the stream."""
        self._last = max(self._last, last_spoken)
        if self._interval <= 0 or self._loop.time() - self._last < self._interval:
            return False
        self.touch()
        return True

    def touch(self) -> None:
        self._last = self._loop.time()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        silent = self._loop.time() - self._last
        if silent >= self._interval:
            self._run.nudge()
            silent = 0.0
        self._timer = self._loop.call_later(self._interval - silent, self._check)
