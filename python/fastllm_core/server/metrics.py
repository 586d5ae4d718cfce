"""Counters and histograms of a server under vLLM's names, and their Prometheus text."""

import time
from bisect import bisect_left

from fastllm_core._C import replica_of
from fastllm_core.errors import FastLLMError
from fastllm_core.outputs import Piece

_LATENCY = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
_LATENCY += (960.0, 1920.0, 7680.0)
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_TTFT += (160.0, 640.0, 2560.0)
ITL_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
ITL_BUCKETS += (20.0, 40.0, 80.0)
_COUNTS = (1, 2, 5, 10, 20)
REASONS = ("stop", "length", "abort", "error", "repetition")


def token_buckets(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, ... up to a limit."""
    out, scale = [], 1
    while scale <= limit:
        out += [m * scale for m in (1, 2, 5) if m * scale <= limit]
        scale *= 10
    return tuple(out)


class Histogram:
    """Counts by bucket; observe() takes half a microsecond."""

    def __init__(self, help_text: str, buckets: tuple[float, ...]):
        self.help_text = help_text
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.buckets, value)] += times
        self.total += value * times

    def cumulative(self) -> list[tuple[str, float]]:
        out, running = [], 0
        for edge, count in zip([*self.buckets, None], self.counts):
            running += count
            out.append(("+Inf" if edge is None else repr(float(edge)), running))
        return out


class EngineCounts:
    """What a server counts of the requests of one engine."""

    def __init__(self, max_model_len: int):
        sizes = token_buckets(max_model_len)
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.relayed_events = 0
        self.finished = dict.fromkeys(REASONS, 0)
        self.histograms = {
            "time_to_first_token_seconds": Histogram("Time to the first token.", _TTFT),
            "inter_token_latency_seconds": Histogram("Time between two tokens of a request.", ITL_BUCKETS),
            "request_time_per_output_token_seconds": Histogram(
                "Mean time per output token after the first.", ITL_BUCKETS
            ),
            "e2e_request_latency_seconds": Histogram("Time from arrival to the end.", _LATENCY),
            "request_queue_time_seconds": Histogram("Time in the queue.", _LATENCY),
            "request_inference_time_seconds": Histogram("Time from the first step to the last token.", _LATENCY),
            "request_prefill_time_seconds": Histogram("Time from the first step to the first token.", _LATENCY),
            "request_decode_time_seconds": Histogram("Time from the first token to the last.", _LATENCY),
            "request_prompt_tokens": Histogram("Tokens of a prompt.", sizes),
            "request_generation_tokens": Histogram("Tokens that were made for a request.", sizes),
            "request_params_n": Histogram("The parameter n.", _COUNTS),
            "request_params_max_tokens": Histogram("The parameter max_tokens.", sizes),
            "request_num_preemptions": Histogram("Preemptions of a request.", _COUNTS),
        }

    def finish(self, reason: str, piece: Piece) -> None:
        """A choice ended; its engine's metrics are in the last piece."""
        self.finished[reason] = self.finished.get(reason, 0) + 1
        times = piece.metrics
        if times is None:
            return
        h = self.histograms
        h["e2e_request_latency_seconds"].observe(times.e2e_latency)
        h["request_generation_tokens"].observe(times.num_generation_tokens)
        h["request_num_preemptions"].observe(times.num_preemptions)
        if times.scheduled_ts > 0:
            h["request_queue_time_seconds"].observe(times.queued_time)
        if times.first_token_ts > 0:
            h["time_to_first_token_seconds"].observe(times.first_token_latency)
            h["request_prefill_time_seconds"].observe(times.prefill_time)
            h["request_decode_time_seconds"].observe(times.decode_time)
            h["request_inference_time_seconds"].observe(times.inference_time)
        if times.num_generation_tokens > 1:
            h["request_time_per_output_token_seconds"].observe(times.mean_time_per_output_token)


class Metrics:
    """What a server counts itself, by engine; what engines count is read from their statistics at scrape time."""

    def __init__(self, prefix: str, model: str, llm, relay=None):
        self.prefix = prefix
        self.model = model
        self.llm = llm
        self.engines = [EngineCounts(llm.info.max_model_len) for _ in llm.replicas()]
        self.rejected: dict[str, int] = {}
        self._relay = relay
        self._relayed: list = []  # the relay's totals that are counted already

    def healthy(self, replicas) -> list[bool]:
        """By engine, whether it serves."""
        if len(replicas) > 1:
            return [replica.state not in ("failed", "restarting") for replica in replicas]
        try:
            self.llm.check_health_now()
        except FastLLMError:
            return [False]
        return [True]

    def count_relayed(self) -> None:
        """Adds what the relay has written since the last call."""
        if self._relay is None:
            return
        now, before = self._relay.totals(), self._relayed
        self._relayed = now
        for n, (counts, lane) in enumerate(zip(self.engines, now)):
            old = before[n] if n < len(before) else None
            counts.generation_tokens += lane.tokens - (old.tokens if old else 0)
            counts.relayed_events = lane.events
            gaps = counts.histograms["inter_token_latency_seconds"]
            gaps.total += lane.gap_seconds - (old.gap_seconds if old else 0.0)
            gaps.counts = [
                c + new - was for c, new, was in zip(gaps.counts, lane.gaps, old.gaps if old else [0] * len(lane.gaps))
            ]

    def timer(self, plan, handles: list[int]) -> "RunTimer":
        """For a plan whose prompts have these handles."""
        return RunTimer([self.engines[replica_of(handle)] for handle in handles], plan)

    def reject(self, status: int) -> None:
        """A request that got an error before any work."""
        reason = str(status)
        self.rejected[reason] = self.rejected.get(reason, 0) + 1


class RunTimer:
    """What one API request adds to the metrics, as its pieces come. `engines`: the counts for each prompt."""

    def __init__(self, engines: list[EngineCounts], plan):
        self._engines = engines
        self._n = plan.n
        self._stream = plan.stream
        self._last: dict[int, float] = {}  # by choice: when its last piece came
        self._open = set(range(plan.choices))
        for counts, prompt in zip(engines, plan.prompts):
            counts.prompt_tokens += len(prompt.ids)
            counts.histograms["request_prompt_tokens"].observe(len(prompt.ids))
        counts = engines[0]
        counts.histograms["request_params_n"].observe(plan.n)
        if plan.params.max_tokens is not None:
            counts.histograms["request_params_max_tokens"].observe(plan.params.max_tokens)

    def piece(self, choice: int, piece: Piece) -> None:
        now = time.perf_counter()
        before = self._last.get(choice)
        counts = self._engines[choice // self._n]
        counts.generation_tokens += len(piece.token_ids)
        gaps = counts.histograms["inter_token_latency_seconds"]
        if self._stream:
            if before is not None and piece.token_ids:
                gaps.observe(now - before)
            self._last[choice] = now
        if piece.finish_reason is not None:
            self._open.discard(choice)
            counts.cached_tokens += piece.num_cached_tokens
            counts.finish(piece.finish_reason, piece)
            if not self._stream and piece.metrics is not None and piece.metrics.num_generation_tokens > 1:
                # Nobody saw the single tokens of an answer that came as a whole.
                gaps.observe(piece.metrics.mean_time_per_output_token, piece.metrics.num_generation_tokens - 1)

    def last_time(self, choice: int) -> float:
        """When the choice's last tokens came; 0 when none have."""
        return self._last.get(choice, 0.0)

    def relayed(self, last_times: list[float]) -> None:
        """By choice, when the relay wrote the last tokens; the relay has counted them."""
        self._last.update((choice, time) for choice, time in enumerate(last_times) if time > 0)

    def close(self, reason: str) -> None:
        """The request is over, with choices that had not ended: its client went away, or it failed."""
        for choice in self._open:
            self._engines[choice // self._n].finished[reason] += 1
