"""Metrics -> Prometheus text, through prometheus_client."""

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from fastllm_core.server.metrics import Metrics

STATES = ("serving", "draining", "drained", "failed", "restarting")


class _Collector:
    def __init__(self, metrics: Metrics):
        self._metrics = metrics

    def collect(self):
        metrics = self._metrics
        metrics.count_relayed()
        replicas = metrics.llm.replicas()
        healthy = metrics.healthy(replicas)
        yield from self._engine_families(replicas, healthy)
        yield from self._replica_families(replicas)
        yield from self._server_families()
        for name, first in metrics.engines[0].histograms.items():
            family = HistogramMetricFamily(self._name(name), first.help_text, labels=["model_name", "engine"])
            for engine, counts in enumerate(metrics.engines):
                histogram = counts.histograms[name]
                family.add_metric([metrics.model, str(engine)], histogram.cumulative(), histogram.total)
            yield family

    def _engine_families(self, replicas, healthy: list[bool]):
        stats = [replica.stats for replica in replicas]
        yield self._gauge("num_requests_running", "Requests in the running batch.", [s.running for s in stats])
        yield self._gauge("num_requests_waiting", "Requests that wait.", [s.waiting for s in stats])
        reasons = [
            {
                "capacity": max(0, s.waiting - s.waiting_paused - s.waiting_preempted),
                "paused": s.waiting_paused,
                "preempted": s.waiting_preempted,
            }
            for s in stats
        ]
        yield self._gauge("num_requests_waiting_by_reason", "Requests that wait, by reason.", reasons, "reason")
        yield self._gauge(
            "kv_cache_usage_perc", "Share of the KV blocks that are held; 1 is all.", [s.kv_cache_usage for s in stats]
        )
        sleep = [{"awake": int(not s.asleep), "weights_offloaded": int(s.asleep)} for s in stats]
        yield self._gauge("engine_sleep_state", "1 for the state that the engine is in.", sleep, "sleep_state")
        for name, text, values in (
            ("num_preemptions", "Preemptions.", [s.preemptions for s in stats]),
            ("prefix_cache_queries", "Prompt tokens that were looked up.", [s.prefix_query_tokens for s in stats]),
            ("prefix_cache_hits", "Prompt tokens that were found.", [s.prefix_hit_tokens for s in stats]),
            ("engine_steps", "Steps of the engine.", [s.steps for s in stats]),
            ("scheduled_tokens", "Tokens that were scheduled.", [s.scheduled_tokens for s in stats]),
            ("engine_execute_seconds", "Time in the executor.", [s.execute_ns / 1e9 for s in stats]),
            ("engine_schedule_seconds", "Time in the scheduler.", [s.schedule_ns / 1e9 for s in stats]),
            ("engine_update_seconds", "Time for stops, text and deltas.", [s.update_ns / 1e9 for s in stats]),
        ):
            yield self._counter(name, text, values)
        yield self._gauge("engine_healthy", "1 while the engine serves.", [int(ok) for ok in healthy])
        yield self._cache_info(len(replicas))

    def _replica_families(self, replicas):
        if len(replicas) < 2:
            return
        states = [{state: int(state == r.state) for state in STATES} for r in replicas]
        yield self._gauge("replica_state", "1 for the state that the replica is in.", states, "state")
        yield self._gauge("replica_live_outputs", "Outputs that have not ended.", [r.live for r in replicas])
        routed = [
            {
                "prefix": r.routed_prefix,
                "session": r.routed_session,
                "load": r.requests - r.routed_prefix - r.routed_session,
            }
            for r in replicas
        ]
        yield self._counter("replica_requests", "Requests that were sent to the replica, by reason.", routed, "reason")
        yield self._counter("replica_restarts", "How often the replica was made anew.", [r.restarts for r in replicas])

    def _server_families(self):
        engines = self._metrics.engines
        yield self._counter("prompt_tokens", "Prompt tokens.", [e.prompt_tokens for e in engines])
        yield self._counter(
            "prompt_tokens_cached", "Prompt tokens from the prefix cache.", [e.cached_tokens for e in engines]
        )
        yield self._counter("generation_tokens", "Generated tokens.", [e.generation_tokens for e in engines])
        yield self._counter(
            "relayed_stream_events", "Events of streams that Python did not write.", [e.relayed_events for e in engines]
        )
        ended = [e.finished for e in engines]
        yield self._counter("request_success", "Choices that ended, by reason.", ended, "finished_reason")
        rejected = [dict(sorted(self._metrics.rejected.items()))]
        yield self._counter("admission_rejections", "Requests refused before any work.", rejected, "reason")

    def _cache_info(self, engines: int):
        info = self._metrics.llm.info
        facts = {"block_size": str(info.block_size), "num_gpu_blocks": str(info.num_kv_blocks)}
        family = GaugeMetricFamily(
            self._name("cache_config_info"), "The KV cache, as labels.", labels=["model_name", "engine", *facts]
        )
        for engine in range(engines):
            family.add_metric([self._metrics.model, str(engine), *facts.values()], 1)
        return family

    def _name(self, name: str) -> str:
        # vLLM's colon is what dashboards know; by Prometheus' own rules it is for recording rules.
        separator = ":" if self._metrics.prefix == "vllm" else "_"
        return f"{self._metrics.prefix}{separator}{name}"

    def _gauge(self, name: str, text: str, values: list, label: str | None = None):
        return self._family(GaugeMetricFamily, name, text, values, label)

    def _counter(self, name: str, text: str, values: list, label: str | None = None):
        return self._family(CounterMetricFamily, name, text, values, label)

    def _family(self, kind, name: str, text: str, values: list, label: str | None):
        """values: one per engine, with a `label` a dict of its values."""
        labels = ["model_name", "engine", *([label] if label else [])]
        family = kind(self._name(name), text, labels=labels)
        for engine, value in enumerate(values):
            for more, number in value.items() if label else [((), value)]:
                family.add_metric([self._metrics.model, str(engine), *([more] if label else [])], number)
        return family


def exposition(metrics: Metrics) -> tuple[bytes, str]:
    """The text of a scrape and its content type."""
    registry = CollectorRegistry()
    registry.register(_Collector(metrics))
    return generate_latest(registry), CONTENT_TYPE_LATEST
