"""ServerState: what all routes of one server share."""

import asyncio
import hashlib
import time
import uuid

import fastllm_core
from fastllm_core.async_llm import AsyncLLM
from fastllm_core.server.body import BodyReader
from fastllm_core.server.config import ServerConfig
from fastllm_core.server.errors import ApiError
from fastllm_core.server.metrics import ITL_BUCKETS, Metrics
from fastllm_core.server.turns import Turns

# Of all streams together the relay makes an event per so many microseconds at most: a client in Python, one for all
# streams, takes 12 to 35 us to read one (bench/RESULTS.md, "Bursts"), and 256 still come before a model's next step.
STREAM_EVENT_US = 25


class ServerState:
    """One model and its server. Used in the event loop alone.

    `runs` are the API requests in the engine, by id. `refusal` is why new ones are turned away, or None.
    """

    def __init__(self, llm: AsyncLLM, model: str, config: ServerConfig):
        self.llm = llm
        llm.text_workers.render_timeout_s = config.chat_template_timeout_s
        self.config = config
        self.names = config.served_model_name or [model]
        self.bodies = BodyReader(config)
        self.relay = (
            llm.start_relay(ITL_BUCKETS, config.stream_round_us, STREAM_EVENT_US) if config.stream_relay else None
        )
        self.metrics = Metrics(config.metrics_prefix, self.names[0], llm, self.relay)
        self.tracer = _tracer(config.otlp_traces_endpoint)
        self.turns = Turns()
        self.runs: dict[str, object] = {}
        self.refusal: str | None = None
        self.started = int(time.time())
        self.fingerprint = _fingerprint(llm)
        self._requests = 0  # of generation routes, from their first byte to their last
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def load(self) -> int:
        """Generation requests that are being answered."""
        return self._requests

    def enter(self) -> None:
        """A generation request begins; ApiError 503 when new work is refused."""
        if self.refusal is not None:
            raise ApiError(503, self.refusal, headers={"Retry-After": str(self.config.retry_after_s)})
        self._requests += 1
        self._idle.clear()

    def leave(self) -> None:
        self._requests -= 1
        if self._requests == 0:
            self._idle.set()

    async def wait_idle(self, timeout: float) -> bool:
        """True when no generation request is left, False when the time is over."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
            return True
        except asyncio.TimeoutError:
            return False

    def check_model(self, name: str | None) -> str:
        """The name to answer with; ApiError 404 for a model that is not served here."""
        if name is None:
            return self.names[0]
        if name not in self.names:
            shown = name if len(name) <= 200 else name[:197] + "..."
            raise ApiError(404, f"the model {shown!r} does not exist; served: {', '.join(self.names)}", "model")
        return name

    def new_id(self, prefix: str, wanted: str | None) -> str:
        """A request id that no running request has: the client's own when it is free."""
        name = f"{prefix}{wanted}" if wanted else f"{prefix}{uuid.uuid4().hex}"
        return name if name not in self.runs else f"{name}-{uuid.uuid4().hex[:8]}"

    def health(self) -> str | None:
        """What is wrong, or None."""
        try:
            self.llm.check_health_now()
        except fastllm_core.FastLLMError as e:
            return str(e)
        return None


def _tracer(endpoint: str | None):
    if endpoint is None:
        return None
    from fastllm_core.server.tracing import Tracer

    return Tracer(endpoint)


def _fingerprint(llm: AsyncLLM) -> str:
    """Changes when the answers to a seeded request may: with the version and with the resolved configuration."""
    values = sorted((v.name, v.value) for v in llm.info.resolved)
    digest = hashlib.sha256(repr((llm.info.architecture, llm.info.vocab_size, values)).encode()).hexdigest()
    return f"fastllm-{fastllm_core.__version__}-{digest[:8]}"
