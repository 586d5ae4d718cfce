"""The server process: socket, model, uvicorn, signals, the engine's health, and the end."""

import asyncio
import contextlib
import dataclasses
import gc
import logging
import os
import resource
import socket
import sys
import threading
import time

import uvicorn

from fastllm_core.async_llm import AsyncLLM
from fastllm_core.errors import FastLLMError
from fastllm_core.server.app import build_app
from fastllm_core.server.config import ServerConfig
from fastllm_core.server.protocol import limited_protocol
from fastllm_core.server.state import ServerState

EXIT_CUT_OFF = 3  # the drain time was over and requests were aborted
EXIT_ENGINE_DEAD = 5
_WATCH_INTERVAL_S = 0.5
_SHUTDOWN_GRACE_S = 5.0

_log = logging.getLogger("fastllm.server")


def serve(model: str, engine_options: dict, config: ServerConfig) -> int:
    """Runs a server until a signal ends it; returns the exit status. The socket is bound before the model is loaded,
    and listens when it can answer."""
    _set_up_logging()
    _raise_file_limit()
    began = time.perf_counter()
    if engine_options.get("restart_failed_engine"):  # the process outlives its engine
        config = dataclasses.replace(config, exit_on_engine_death=False)
    sock = _bind(config)
    with contextlib.closing(sock):
        llm = AsyncLLM(model, **engine_options)
        server = Server(llm, model, config, began)
        try:
            _use_template(llm, config.chat_template)
            server.run_until_exit(sock)
        finally:
            if not _shut_down(llm, server.grace_s):
                _log.error("the engine does not end; leaving it behind")
                logging.shutdown()
                os._exit(EXIT_ENGINE_DEAD)
    return server.exit_code


class Server(uvicorn.Server):
    """uvicorn's server with a drain, a watch on the engine, and an exit status."""

    def __init__(self, llm: AsyncLLM, model: str, config: ServerConfig, began: float):
        self._llm = llm
        self._model = model
        self._options = config
        self._began = began
        self.exit_code = 0
        self._ending: asyncio.Task | None = None
        self._hurry: asyncio.Event | None = None

    @property
    def grace_s(self) -> float:
        """Time for the engine's threads to end: one that is known to stand still gets little."""
        return 1.0 if self.exit_code == EXIT_ENGINE_DEAD else 2 * _SHUTDOWN_GRACE_S

    def run_until_exit(self, sock: socket.socket) -> None:
        factory = uvicorn.Config("", loop="auto").get_loop_factory()
        with _runner(factory) as run:
            run(self._main(sock))

    async def _main(self, sock: socket.socket) -> None:
        self._state = ServerState(self._llm, self._model, self._options)
        super().__init__(_uvicorn_config(build_app(self._state), self._options))
        self._hurry = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._address = sock.getsockname()
        gc.collect()
        gc.freeze()  # what is here stays; collections need not walk it again
        await self.serve(sockets=[sock])

    async def startup(self, sockets=None) -> None:
        await super().startup(sockets=sockets)
        scheme = "https" if self._options.ssl_certfile else "http"
        host = f"[{self._address[0]}]" if ":" in self._address[0] else self._address[0]
        seconds = time.perf_counter() - self._began
        _log.info("ready in %.1f s: %s on %s://%s:%d", seconds, self._state.names[0], scheme, host, self._address[1])
        self._watcher = asyncio.create_task(self._watch())

    def handle_exit(self, sig: int, frame) -> None:
        """First signal: drain. Second: abort what runs."""
        self._loop.call_soon_threadsafe(self._on_signal)

    def _on_signal(self) -> None:
        if self._ending is not None:
            self._hurry.set()
            return
        self._state.refusal = "the server is shutting down"
        self._ending = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        left = self._state.load
        if left:
            _log.info("draining %d requests for up to %g s", left, self._options.drain_timeout_s)
        idle = asyncio.create_task(self._state.wait_idle(self._options.drain_timeout_s))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait((idle, hurry), return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not (idle.done() and idle.result()):
            _log.warning("aborting %d requests", self._state.load)
            self.exit_code = EXIT_CUT_OFF
            for run in list(self._state.runs.values()):
                run.abort()
            await self._state.wait_idle(_SHUTDOWN_GRACE_S)
        idle.cancel()
        self.should_exit = True

    async def _watch(self) -> None:
        """Polls the engine's heartbeat: a thread that stands still cannot say so."""
        while True:
            wrong = self._state.health()
            if wrong is not None and self._ending is None:
                _log.error("the engine does not serve: %s", wrong)
                self._llm.fail_open_requests(f"the engine does not serve: {wrong}")
                if self._options.exit_on_engine_death:
                    self.exit_code = EXIT_ENGINE_DEAD
                    self._state.refusal = f"the engine does not serve: {wrong}"
                    await self._state.wait_idle(_SHUTDOWN_GRACE_S)
                    self.should_exit = True
                    return
            await asyncio.sleep(_WATCH_INTERVAL_S)

    async def shutdown(self, sockets=None) -> None:
        self._watcher.cancel()
        await super().shutdown(sockets=sockets)
        if self._state.tracer is not None:
            await asyncio.to_thread(self._state.tracer.shutdown)


@contextlib.contextmanager
def _runner(factory):
    """asyncio.Runner, which Python 3.10 lacks."""
    loop = factory() if factory else asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        yield loop.run_until_complete
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                loop.run_until_complete(task)
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


def _uvicorn_config(app, config: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=limited_protocol(config),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=4096,
        timeout_keep_alive=config.keep_alive_s,
        timeout_graceful_shutdown=int(_SHUTDOWN_GRACE_S),
        root_path=config.root_path,
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
        ssl_ca_certs=config.ssl_ca_certs,
        ssl_cert_reqs=2 if config.ssl_cert_required else 0,
    )


def _bind(config: ServerConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((config.host, config.port))
    except OSError as e:
        sock.close()
        raise FastLLMError(f"cannot listen on {config.host}:{config.port}: {e.strerror or e}") from None
    return sock


def _raise_file_limit() -> None:
    """As many open files as the process may have: a stream takes two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # some systems have a lower limit than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _use_template(llm: AsyncLLM, path: str | None) -> None:
    if path is None or llm.get_tokenizer() is None:
        return
    with open(path, encoding="utf-8") as file:
        llm.get_tokenizer().use_chat_template(file.read())


def _shut_down(llm: AsyncLLM, grace_s: float) -> bool:
    """False when the engine's threads do not end, as those of a stalled engine."""
    thread = threading.Thread(target=llm.shutdown, daemon=True)
    thread.start()
    thread.join(grace_s)
    return not thread.is_alive()


def _set_up_logging() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    for name in ("fastllm", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO if name == "fastllm" else logging.WARNING)
    bare = logging.StreamHandler(sys.stderr)
    bare.setFormatter(logging.Formatter("%(message)s"))
    access = logging.getLogger("fastllm.access")
    access.handlers = [bare]
    access.propagate = False
