"""OpenTelemetry traces: a span for each request, with what the engine did when.

Attributes are those of the GenAI semantic conventions, and vLLM's (`gen_ai.latency.*`) where these have none.
No texts. The packages come with `pip install 'leafage[otel]'`; without --otlp-traces-endpoint nothing of them
is imported.
"""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from leafage.core.request import FinishKind, Request
from leafage.engine.inputs import NewRequest
from leafage.engine.metrics import EngineMetrics, RequestMetrics
from leafage.errors import InvalidParameterError

if TYPE_CHECKING:
    from opentelemetry.context import Context as TraceContext
    from opentelemetry.sdk.trace.export import SpanExporter

EXPORT_TIMEOUT = 2.0
"""Seconds for a batch of spans to reach the collector, and for the last ones at the end."""

_OPERATIONS = {"/v1/completions": "text_completion"}
"""By path; all others chat."""


def check_installed() -> None:
    """Raises InvalidParameterError where a package is missing."""
    for name in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
        try:
            found = importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:
            found = False
        if not found:
            raise InvalidParameterError(
                "otlp_traces_endpoint needs OpenTelemetry, and a package is missing",
                value=name,
                remedy="install it with pip install 'leafage[otel]'",
            )


def otlp_exporter(endpoint: str) -> SpanExporter:
    """Sends spans to a collector over HTTP. Headers and certificates: OTEL_EXPORTER_OTLP_*.

    Args:
        endpoint: http://host:4318/v1/traces.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT)


class Tracing:
    """Makes the spans of a server. What goes wrong here, or at the collector, harms no request.

    Spans are made on the event loop when the engine tells that a request has ended, and sent by a thread.

    Args:
        exporter: where they go.
        model_name: what the answers call the model.
        metrics: of the engine whose requests are traced.
    """

    def __init__(self, exporter: SpanExporter, model_name: str, metrics: EngineMetrics) -> None:
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource({SERVICE_NAME: "leafage"}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, export_timeout_millis=EXPORT_TIMEOUT * 1e3)
        )
        self._tracer = self._provider.get_tracer("leafage")
        self._propagator = TraceContextTextMapPropagator()
        self._model_name = model_name
        self._clock = metrics.clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begun: dict[str, tuple[str, TraceContext]] = {}
        self._next = metrics.on_finished
        metrics.on_finished = self._finished

    @contextmanager
    def tracing(
        self, path: str, headers: Mapping[str, str], requests: Sequence[NewRequest]
    ) -> Iterator[None]:
        """Around the submission of requests; a `traceparent` among the headers is the parent of their spans.

        Those that are refused get no span.
        """
        self._loop = asyncio.get_running_loop()
        begun = _OPERATIONS.get(path, "chat"), self._propagator.extract(headers)
        self._begun |= dict.fromkeys((new.request_id for new in requests), begun)
        try:
            yield
        except BaseException:
            for new in requests:
                self._begun.pop(new.request_id, None)
            raise

    def close(self) -> None:
        """Send what is left, for a short while at most."""
        self._provider.force_flush(int(EXPORT_TIMEOUT * 1e3))
        self._provider.shutdown()

    def _finished(self, request: Request, metrics: RequestMetrics) -> None:
        """On the engine's thread."""
        begun = self._begun.pop(request.request_id, None)
        if begun is not None and self._loop is not None:
            now = time.time_ns(), self._clock.now()
            with suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._record, request, metrics, begun, now)
        if self._next is not None:
            self._next(request, metrics)

    def _record(
        self,
        request: Request,
        metrics: RequestMetrics,
        begun: tuple[str, TraceContext],
        now: tuple[int, float],
    ) -> None:
        from opentelemetry.trace import SpanKind

        def epoch(moment: float) -> int:
            return now[0] - int((now[1] - moment) * 1e9)

        operation, parent = begun
        span = self._tracer.start_span(
            f"{operation} {self._model_name}",
            context=parent,
            kind=SpanKind.SERVER,
            start_time=epoch(metrics.arrival_time),
        )
        if span.is_recording():
            span.set_attributes(self._attributes(operation, request, metrics))
            for name, moment in (
                ("scheduled", metrics.first_scheduled_time),
                ("first_token", metrics.first_token_time),
            ):
                if moment is not None:
                    span.add_event(name, timestamp=epoch(moment))
            _set_status(span, request)
        span.end(epoch(metrics.arrival_time + (metrics.e2e_latency or 0.0)))

    def _attributes(self, operation: str, request: Request, metrics: RequestMetrics) -> dict[str, Any]:
        params = request.params
        found = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "leafage",
            "gen_ai.request.model": self._model_name,
            "gen_ai.response.model": self._model_name,
            "gen_ai.request.id": request.request_id,
            "gen_ai.request.max_tokens": request.max_tokens,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.top_k": params.top_k or None,
            "gen_ai.request.frequency_penalty": params.frequency_penalty or None,
            "gen_ai.request.presence_penalty": params.presence_penalty or None,
            "gen_ai.request.seed": params.seed,
            "gen_ai.request.choice.count": params.n if params.n > 1 else None,
            "gen_ai.usage.input_tokens": len(request.prompt_token_ids),
            "gen_ai.usage.output_tokens": metrics.num_generation_tokens,
            "gen_ai.usage.cache_read.input_tokens": request.num_cached or 0,
            "gen_ai.response.finish_reasons": _finish_reasons(request),
            "gen_ai.latency.time_in_queue": metrics.queue_time,
            "gen_ai.latency.time_to_first_token": metrics.time_to_first_token,
            "gen_ai.latency.time_in_model_prefill": metrics.prefill_time,
            "gen_ai.latency.time_in_model_decode": metrics.decode_time,
            "gen_ai.latency.time_in_model_inference": metrics.inference_time,
            "gen_ai.latency.e2e": metrics.e2e_latency,
            "leafage.num_preemptions": request.num_preemptions,
        }
        return {name: value for name, value in found.items() if value is not None}


def _finish_reasons(request: Request) -> list[str]:
    """Of each sequence; beams that were found end as the first of them did."""
    return [seq.finish.kind.value for seq in request.sequences if seq.finish is not None]


def _set_status(span: Any, request: Request) -> None:
    """An error for what failed or was given up."""
    from opentelemetry.trace import Status, StatusCode

    for seq in request.sequences:
        if seq.finish is not None and seq.finish.kind is FinishKind.ERROR:
            error = seq.finish.error
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(Status(StatusCode.ERROR, str(error)))
            return
        if seq.finish is not None and seq.finish.kind is FinishKind.ABORT:
            span.set_attribute("error.type", "aborted")
            span.set_status(Status(StatusCode.ERROR, "the client left, or the server gave it up"))
            return
