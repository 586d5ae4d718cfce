"""Metrics -> Prometheus text, through prometheus_client."""

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from fastllm_core.errors import FastLLMError
from fastllm_core.server.metrics import Metrics


class _Collector:
    def __init__(self, metrics: Metrics):
        self._metrics = metrics
        self._names = list(metrics.labels)
        self._values = list(metrics.labels.values())

    def collect(self):
        yield from self._engine_families()
        yield from self._server_families()
        for name, histogram in self._metrics.histograms.items():
            family = HistogramMetricFamily(self._name(name), histogram.help_text, labels=self._names)
            family.add_metric(self._values, histogram.cumulative(), histogram.total)
            yield family

    def _engine_families(self):
        stats = self._metrics.llm.stats()
        asleep = int(stats.asleep)
        yield self._gauge("num_requests_running", "Requests in the running batch.", stats.running)
        yield self._gauge("num_requests_waiting", "Requests that wait.", stats.waiting)
        waiting = self._gauge("num_requests_waiting_by_reason", "Requests that wait, by reason.", None, ["reason"])
        preempted = getattr(stats, "waiting_preempted", 0)
        for reason, value in (
            ("capacity", stats.waiting - stats.waiting_paused - preempted),
            ("paused", stats.waiting_paused),
            ("preempted", preempted),
        ):
            waiting.add_metric([*self._values, reason], max(0, value))
        yield waiting
        yield self._gauge(
            "kv_cache_usage_perc", "Share of the KV blocks that are held; 1 is all.", stats.kv_cache_usage
        )
        state = self._gauge("engine_sleep_state", "1 for the state that the engine is in.", None, ["sleep_state"])
        for name, value in (("awake", 1 - asleep), ("weights_offloaded", asleep)):
            state.add_metric([*self._values, name], value)
        yield state
        yield self._counter("num_preemptions", "Preemptions.", stats.preemptions)
        yield self._counter("prefix_cache_queries", "Prompt tokens that were looked up.", stats.prefix_query_tokens)
        yield self._counter("prefix_cache_hits", "Prompt tokens that were found.", stats.prefix_hit_tokens)
        yield self._counter("engine_steps", "Steps of the engine.", stats.steps)
        yield self._counter("scheduled_tokens", "Tokens that were scheduled.", stats.scheduled_tokens)
        yield self._counter("engine_execute_seconds", "Time in the executor.", stats.execute_ns / 1e9)
        yield self._counter("engine_schedule_seconds", "Time in the scheduler.", stats.schedule_ns / 1e9)
        yield self._counter("engine_update_seconds", "Time for stops, text and deltas.", stats.update_ns / 1e9)
        yield self._gauge("engine_healthy", "1 while the engine serves.", int(self._healthy()))
        yield self._cache_info()

    def _server_families(self):
        m = self._metrics
        yield self._counter("prompt_tokens", "Prompt tokens.", m.prompt_tokens)
        yield self._counter("prompt_tokens_cached", "Prompt tokens from the prefix cache.", m.cached_tokens)
        yield self._counter("generation_tokens", "Generated tokens.", m.generation_tokens)
        success = self._counter("request_success", "Choices that ended, by reason.", None, ["finished_reason"])
        for reason, count in m.finished.items():
            success.add_metric([*self._values, reason], count)
        yield success
        rejected = self._counter("admission_rejections", "Requests refused before any work.", None, ["reason"])
        for reason, count in sorted(m.rejected.items()):
            rejected.add_metric([*self._values, reason], count)
        yield rejected

    def _cache_info(self):
        info = self._metrics.llm.info
        facts = {"block_size": str(info.block_size), "num_gpu_blocks": str(info.num_kv_blocks)}
        family = GaugeMetricFamily(
            self._name("cache_config_info"), "The KV cache, as labels.", labels=[*self._names, *facts]
        )
        family.add_metric([*self._values, *facts.values()], 1)
        return family

    def _healthy(self) -> bool:
        try:
            self._metrics.llm.check_health_now()
        except FastLLMError:
            return False
        return True

    def _name(self, name: str) -> str:
        # vLLM's colon is what dashboards know; by Prometheus' own rules it is for recording rules.
        separator = ":" if self._metrics.prefix == "vllm" else "_"
        return f"{self._metrics.prefix}{separator}{name}"

    def _gauge(self, name: str, text: str, value, labels=()):
        return self._family(GaugeMetricFamily, name, text, value, labels)

    def _counter(self, name: str, text: str, value, labels=()):
        return self._family(CounterMetricFamily, name, text, value, labels)

    def _family(self, kind, name: str, text: str, value, labels):
        family = kind(self._name(name), text, labels=[*self._names, *labels])
        if value is not None:
            family.add_metric(self._values, value)
        return family


def exposition(metrics: Metrics) -> tuple[bytes, str]:
    """The text of a scrape and its content type."""
    registry = CollectorRegistry()
    registry.register(_Collector(metrics))
    return generate_latest(registry), CONTENT_TYPE_LATEST
