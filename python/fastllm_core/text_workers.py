"""Tokenizers and chat templates at work in threads of their own, so that no long text holds an event loop up."""

import asyncio
import ctypes
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

from fastllm_core.errors import ChatTemplateError, InvalidArgumentError, ResourceExhaustedError

LONG_TEXT_CHARS = 1 << 16  # longer ones queue apart, so that short ones never wait behind them
MAX_WAITING = 1024  # texts in line for one pool
RENDER_TIMEOUT_S = 30.0


class TextWorkers:
    """Runs one tokenizer. All methods are for use in an event loop, any number of them.

    A text that cannot fit in the context is refused by its length, before any work.
    """

    def __init__(self, tokenizer, max_model_len: int, render_timeout_s: float = RENDER_TIMEOUT_S):
        self._tokenizer = tokenizer
        self.render_timeout_s = render_timeout_s
        self._max_model_len = max_model_len
        self._short = _Pool("fastllm-text", 2)
        self._long = _Pool("fastllm-long-text", 1)

    @cached_property
    def max_text_bytes(self) -> int:
        """No text of more bytes fits in the context."""
        return 0 if self._tokenizer is None else self._max_model_len * self._tokenizer.longest_token_bytes

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """As Tokenizer.encode()."""
        self._need_tokenizer()
        self.check_length(text)
        return await self._pool(text).run(self._tokenizer.encode, text, add_special_tokens)

    async def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """As Tokenizer.decode()."""
        self._need_tokenizer()
        return await self._short.run(self._tokenizer.decode, ids, skip_special_tokens)

    async def chat(self, messages, add_special_tokens: bool = False, **options) -> tuple[str, list[int]]:
        """The messages through the chat template: text and ids. Options as Tokenizer.apply_chat_template()."""
        self._need_tokenizer()
        size = _text_size(messages)
        if size > self.max_text_bytes:
            raise self._too_long(size)
        pool = self._long if size > LONG_TEXT_CHARS else self._short

        def render() -> str:
            return self._tokenizer.apply_chat_template(messages, **options)

        text = await pool.run(_time_limited, render, self.render_timeout_s)
        return text, await self.encode(text, add_special_tokens)

    async def run(self, function: Callable, *args):
        """function(*args), for short work with the tokenizer."""
        return await self._short.run(function, *args)

    def check_length(self, text: str) -> None:
        """InvalidArgumentError for a text of which every tokenization is longer than the context."""
        if len(text) > self._max_model_len and len(text) > self.max_text_bytes:  # a token has at least a byte
            raise self._too_long(len(text))

    def shutdown(self) -> None:
        """Drops what waits; what runs ends in its own time."""
        self._short.shutdown()
        self._long.shutdown()

    def _pool(self, text: str) -> "_Pool":
        return self._long if len(text) > LONG_TEXT_CHARS else self._short

    def _need_tokenizer(self) -> None:
        if self._tokenizer is None:
            raise InvalidArgumentError("text needs a tokenizer, but skip_tokenizer_init was given")

    def _too_long(self, size: int) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"the prompt has {size} characters; the model's context of {self._max_model_len} tokens holds at most "
            f"{self.max_text_bytes}"
        )


class _Pool:
    """A thread pool that refuses work when too much of it waits."""

    def __init__(self, name: str, threads: int):
        self._name = name
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._pending = 0

    async def run(self, function: Callable, *args):
        if self._pending >= MAX_WAITING:
            raise ResourceExhaustedError(f"{self._pending} texts wait to be tokenized; the limit is {MAX_WAITING}")
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, function, *args)
        finally:
            self._pending -= 1

    def shutdown(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


def _text_size(node, depth: int = 0) -> int:
    """Characters in all strings of a JSON value."""
    if isinstance(node, str):
        return len(node)
    if depth > 64:
        raise InvalidArgumentError("messages are nested more than 64 levels deep")
    if isinstance(node, dict):
        return sum(_text_size(v, depth + 1) for v in node.values())
    if isinstance(node, (list, tuple)):
        return sum(_text_size(v, depth + 1) for v in node)
    return 0


class _OutOfTime(BaseException):
    """Raised inside a rendering from outside; no template can catch it."""


class _Watchdog:
    """Stops Python code of other threads when its time is over. One thread, started with the first use."""

    def __init__(self):
        self._changed = threading.Condition()
        self._deadlines: dict[int, float] = {}  # by thread
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], str], seconds: float) -> str:
        """function() in this thread; _OutOfTime after `seconds`. A call into C is not interrupted before it returns."""
        me = threading.get_ident()
        with self._changed:
            self._deadlines[me] = time.monotonic() + seconds
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="fastllm-watchdog", daemon=True)
                self._thread.start()
            if len(self._deadlines) == 1:
                self._changed.notify()
        try:
            return function()
        finally:
            with self._changed:
                fired = self._deadlines.pop(me, None) is None
            while fired and not isinstance(sys.exc_info()[1], _OutOfTime):
                time.sleep(0)  # it is on its way, and must not arrive anywhere else

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for thread in [t for t, deadline in self._deadlines.items() if deadline <= now]:
                    del self._deadlines[thread]
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_OutOfTime))
                self._changed.wait(min(self._deadlines.values()) - now if self._deadlines else None)


_watchdog = _Watchdog()


def _time_limited(function: Callable[[], str], seconds: float) -> str:
    try:
        return _watchdog.call(function, seconds)
    except _OutOfTime:
        raise ChatTemplateError(f"the chat template took longer than {seconds:g} s") from None
