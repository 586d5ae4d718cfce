"""One API request in the engine: plan, run, and the loops that answer with its whole or with its stream."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Protocol

from fastllm_core._C import GenerationRequest, SamplingParams
from fastllm_core.errors import of_request
from fastllm_core.inputs import Scheduling, make_prompt
from fastllm_core.outputs import Piece, join_all
from fastllm_core.server.errors import ApiError, from_exception
from fastllm_core.server.state import ServerState


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
        self._timer = state.metrics.timer(plan)
        self._group = state.llm.submit(plan.requests(), quiet=not plan.stream)
        self._failed = False
        self.keep_alive_s = state.config.sse_keep_alive_s
        self.unfinished = plan.choices
        state.runs[plan.request_id] = self

    async def news(self) -> list[tuple[int, Piece]]:
        """(choice, what is new), waiting for some; empty when nudge() woke it. ApiError when the engine failed."""
        out = []
        for slot, piece in await self._group.get():
            if piece.finish_reason == "error":
                raise self._failure(piece)
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
        self._state.runs.pop(self.plan.request_id, None)
        self._group.close()
        self._timer.close(self.unfinished, "error" if self._failed else "abort")

    def _failure(self, piece: Piece) -> ApiError:
        self._failed = True
        return from_exception(of_request(self.plan.request_id, piece), self._state.config.retry_after_s)


class EchoRun:
    """A Run that asks nothing of the engine: every choice is empty and ends at its length of 0."""

    def __init__(self, state: ServerState, plan: Plan):
        for request in plan.requests():
            state.llm.validate(request)
        self.plan = plan
        self.completion_tokens = self.cached_tokens = 0
        self.unfinished = plan.choices
        self.keep_alive_s = 0.0

    async def news(self) -> list[tuple[int, Piece]]:
        self.unfinished = 0
        return [(n, Piece([], "", "length", None, "", 0)) for n in range(self.plan.choices)]

    def close(self) -> None:
        pass


def start(state: ServerState, plan: Plan) -> Run | EchoRun:
    """Hands a plan to the engine; ApiError when it refuses."""
    try:
        return EchoRun(state, plan) if plan.only_echo else Run(state, plan)
    except Exception as e:
        raise from_exception(e, state.config.retry_after_s) from e


async def whole_answer(run: Run, writer: Writer) -> dict:
    """The answer without a stream."""
    pieces: list[list[Piece]] = [[] for _ in range(run.plan.choices)]
    while run.unfinished:
        for choice, piece in await run.news():
            pieces[choice].append(piece)
    return writer.whole([join_all(p) for p in pieces], run)


async def stream_answer(run: Run, writer: Writer, write) -> None:
    """The answer as a stream: `write` takes bytes. An error of the engine ends it as an event of its own."""
    keep_alive = _KeepAlive(run, run.keep_alive_s)
    interval = run.plan.stream_interval
    held: dict[int, list[Piece]] = {}
    begun = False
    try:
        while run.unfinished:
            news = await run.news()
            if not news:
                if keep_alive.due:
                    await write(b": keep-alive\n\n")
                continue
            out = [] if begun else [writer.first(run)]
            begun = True
            for choice, piece in news:
                if interval > 1:
                    piece = _hold(held, choice, piece, interval)
                    if piece is None:
                        continue
                out.append(writer.piece(choice, piece, run))
            data = b"".join(out)
            if data:
                keep_alive.touch()
                await write(data)
        await write(writer.last(run))
    except ApiError as e:
        await write(writer.error(e))
    finally:
        keep_alive.stop()


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

    @property
    def due(self) -> bool:
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
