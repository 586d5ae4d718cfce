"""OpenTelemetry: one span per generation request, sent by OTLP over HTTP. Needs the extra `tracing`."""

import time

from fastllm_core.errors import FastLLMError


class Tracer:
    """Makes spans and sends them in the background; shutdown() sends what is left."""

    def __init__(self, endpoint: str):
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as e:
            raise FastLLMError(f"traces need pip install 'fastllm-core[tracing]': {e}") from None
        self._provider = TracerProvider(resource=Resource.create({"service.name": "fastllm"}))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer("fastllm_core.server")

    def start(self, headers, plan) -> "RequestSpan":
        """A span for a plan, below the caller's when the request has a traceparent header."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {k.decode("latin-1"): v.decode("latin-1") for k, v in headers if k in (b"traceparent", b"tracestate")}
        context = TraceContextTextMapPropagator().extract(carrier)
        span = self._tracer.start_span("llm_request", context=context, kind=SpanKind.SERVER)
        params = plan.params
        span.set_attributes(
            {
                "gen_ai.response.model": plan.model,
                "gen_ai.request.id": plan.request_id,
                "gen_ai.request.n": params.n,
                "gen_ai.request.temperature": params.temperature,
                "gen_ai.request.top_p": params.top_p,
                "gen_ai.request.max_tokens": params.max_tokens or 0,
                "gen_ai.usage.prompt_tokens": plan.prompt_tokens,
            }
        )
        return RequestSpan(span)

    def shutdown(self) -> None:
        self._provider.shutdown()


class RequestSpan:
    """The span of one request."""

    def __init__(self, span):
        self._span = span
        self._start = time.perf_counter()

    def end(self, completion_tokens: int, error: str | None) -> None:
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attribute("gen_ai.usage.completion_tokens", completion_tokens)
        self._span.set_attribute("gen_ai.latency.e2e", time.perf_counter() - self._start)
        if error is not None:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end()
