"""Load on an OpenAI-compatible server: Poisson arrivals or a closed loop, streams, and what their clients saw."""

import asyncio
import random
import time
from dataclasses import dataclass, field

from fastllm_core.bench.datasets import Sample
from fastllm_core.errors import FastLLMError
from fastllm_core.http_client import HttpClient


@dataclass
class Seen:
    """One request as its client saw it; times in seconds."""

    prompt_tokens: int = 0
    tokens: int = 0
    ttft: float | None = None
    itl: list[float] = field(default_factory=list)
    e2e: float = 0.0
    error: str | None = None

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first."""
        if self.ttft is None or self.tokens < 2:
            return None
        return (self.e2e - self.ttft) / (self.tokens - 1)


@dataclass
class Load:
    """How to send: requests per second (None: as fast as allowed), and how many at one time (None: no limit)."""

    endpoint: str
    model: str
    rate: float | None
    concurrency: int | None
    seed: int
    extra: dict


async def run_load(client: HttpClient, samples: list[Sample], load: Load, progress) -> tuple[list[Seen], float]:
    """All samples; what was seen of each, and the seconds from the first to the last."""
    gate = asyncio.Semaphore(load.concurrency or len(samples))
    rng = random.Random(load.seed)

    async def one(sample: Sample) -> Seen:
        async with gate:
            seen = await _ask(client, sample, load)
        progress.update(1)
        return seen

    begin = time.perf_counter()
    due = begin
    tasks = []
    for sample in samples:
        if load.rate is not None:
            due += rng.expovariate(load.rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(sample)))
    seen = await asyncio.gather(*tasks)
    return seen, time.perf_counter() - begin


async def _ask(client: HttpClient, sample: Sample, load: Load) -> Seen:
    body = {
        "model": load.model,
        "max_tokens": sample.output_len,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **load.extra,
    }
    if load.endpoint.endswith("/chat/completions"):
        text = sample.prompt if isinstance(sample.prompt, str) else " ".join(f"w{i}" for i in sample.prompt)
        body["messages"] = [{"role": "user", "content": text}]
    else:
        body["prompt"] = sample.prompt
    seen = Seen()
    start = last = time.perf_counter()
    try:
        async for event in client.stream(load.endpoint, body):
            now = time.perf_counter()
            if event.get("usage"):
                seen.prompt_tokens = event["usage"]["prompt_tokens"]
                seen.tokens = event["usage"]["completion_tokens"]
            if not _says_something(event):
                continue
            if seen.ttft is None:
                seen.ttft = now - start
            else:
                seen.itl.append(now - last)
            last = now
        seen.e2e = last - start
    except (FastLLMError, OSError, asyncio.IncompleteReadError, ValueError) as e:
        seen.error = str(e)[:200]
    return seen


def _says_something(event: dict) -> bool:
    """Chunks that carry output, as opposed to roles and counts."""
    for choice in event.get("choices", ()):
        if choice.get("text") or (choice.get("delta") or {}).get("content") or choice.get("finish_reason"):
            return True
    return False
