from __future__ import annotations

import http.server
import importlib.util
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from leafage.errors import InvalidParameterError
from leafage.server.app import create_app
from leafage.server.tracing import Tracing, check_installed
from tests.server.conftest import context_over, serving, tiny_build

if TYPE_CHECKING:
    from leafage.build import Assets
    from leafage.server.context import Context

BODY = {"prompt": "a secret plan", "max_tokens": 4, "ignore_eos": True, "seed": 7, "temperature": 0.5}
TRACE_ID, PARENT_ID = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
PARENT = f"00-{TRACE_ID:032x}-{PARENT_ID:016x}-01"


class Traced:
    """A server whose spans are kept."""

    def __init__(self, context: Context, url: str, spans: InMemorySpanExporter) -> None:
        self.context = context
        self.url = url
        self._spans = spans

    def post(self, path: str = "/v1/completions", **settings: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", timeout=20, **{"json": BODY, **settings})

    def spans(self, count: int = 1) -> list[ReadableSpan]:
        """So many, and no more, that came since the last call."""
        assert self.context.tracing is not None
        deadline = time.monotonic() + 20
        while len(self._spans.get_finished_spans()) < count and time.monotonic() < deadline:
            self.context.tracing._provider.force_flush()
            time.sleep(0.01)
        if not count:
            time.sleep(0.1)
            self.context.tracing._provider.force_flush()
        found = list(self._spans.get_finished_spans())
        self._spans.clear()
        assert len(found) == count and not self.context.tracing._begun
        return found


@pytest.fixture(scope="module")
def traced(tiny_assets: Assets) -> Iterator[Traced]:
    with context_over(tiny_build(tiny_assets)) as context:
        spans = InMemorySpanExporter()
        context.tracing = Tracing(spans, "tiny", context.metrics)
        with serving(create_app(context)) as url:
            yield Traced(context, url, spans)


def test_a_span_tells_what_a_request_asked_for_and_got(traced: Traced) -> None:
    before = time.time_ns()
    traced.post().raise_for_status()
    after = time.time_ns()
    [span] = traced.spans()
    assert (span.name, span.kind, span.parent) == ("text_completion tiny", SpanKind.SERVER, None)
    assert span.status.status_code is StatusCode.UNSET
    attributes = dict(span.attributes or {})
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "leafage",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.seed": 7,
        "gen_ai.usage.input_tokens": 13,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.response.finish_reasons": ("length",),
        "leafage.num_preemptions": 0,
    }
    assert {name: attributes.get(name) for name in expected} == expected
    times = {name: value for name, value in attributes.items() if name.startswith("gen_ai.latency.")}
    queue, prefill, decode = (
        times[f"gen_ai.latency.{name}"]
        for name in ("time_in_queue", "time_in_model_prefill", "time_in_model_decode")
    )
    assert times["gen_ai.latency.time_to_first_token"] == pytest.approx(queue + prefill)
    assert times["gen_ai.latency.time_in_model_inference"] == pytest.approx(prefill + decode)
    assert times["gen_ai.latency.e2e"] == pytest.approx(queue + prefill + decode)
    assert all(value > 0 for value in times.values())
    events = {event.name: event.timestamp for event in span.events}
    assert span.start_time is not None and span.end_time is not None
    moments = [span.start_time, events["scheduled"], events["first_token"], span.end_time]
    assert moments == sorted(moments) and len(set(moments)) == 4
    assert before < moments[0] and moments[-1] < after
    assert "secret" not in span.to_json()


def test_incoming_traceparent_is_honoured_and_nonsense_is_not(traced: Traced) -> None:
    for header, parent in ((PARENT, PARENT_ID), ("00-nonsense-01", None)):
        traced.post(headers={"traceparent": header}).raise_for_status()
        [span] = traced.spans()
        assert (span.parent and span.parent.span_id) == parent
        assert (span.context.trace_id == TRACE_ID) == (parent is not None)


def test_what_the_caller_does_not_sample_is_not_sent(traced: Traced) -> None:
    traced.post(headers={"traceparent": PARENT[:-2] + "00"}).raise_for_status()
    traced.spans(0)


def test_chats_streams_and_several_prompts(traced: Traced) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": True, "n": 2}
    traced.post("/v1/chat/completions", json=chat).raise_for_status()
    [span] = traced.spans()
    attributes = span.attributes or {}
    assert span.name == "chat tiny" and attributes["gen_ai.request.choice.count"] == 2
    assert len(attributes["gen_ai.response.finish_reasons"]) == 2  # type: ignore[arg-type]
    traced.post(json={**BODY, "prompt": ["one", "two", "three"]}, headers={"traceparent": PARENT})
    assert {span.context.trace_id for span in traced.spans(3)} == {TRACE_ID}


def test_a_client_that_leaves_and_a_request_that_is_refused(traced: Traced) -> None:
    body = {**BODY, "max_tokens": 3000, "stream": True}
    with httpx.stream("POST", f"{traced.url}/v1/completions", json=body, timeout=20) as response:
        next(response.iter_lines())
    [span] = traced.spans()
    attributes = span.attributes or {}
    assert span.status.status_code is StatusCode.ERROR and attributes["error.type"] == "aborted"
    assert attributes["gen_ai.response.finish_reasons"] == ("abort",)
    assert traced.post(json={**BODY, "max_tokens": 10**6}).status_code == 400
    traced.spans(0)


def test_an_error_of_the_engine_is_one_of_the_span(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(batch: Any) -> Any:
        raise RuntimeError("a cable is loose")

    monkeypatch.setattr(traced.context.core.executor, "execute", broken)
    assert traced.post().status_code == 500
    [span] = traced.spans()
    assert span.status.status_code is StatusCode.ERROR and "a cable is loose" in (
        span.status.description or ""
    )
    assert (span.attributes or {})["error.type"] == "ExecutorError"


class Collector(http.server.BaseHTTPRequestHandler):
    bodies: list[bytes]

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def test_spans_reach_a_collector(tiny_assets: Assets) -> None:
    handler = type("Handler", (Collector,), {"bodies": []})
    collector = http.server.HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=collector.serve_forever, daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    build = tiny_build(tiny_assets)
    with context_over(build, otlp_traces_endpoint=endpoint) as context, serving(create_app(context)) as url:
        httpx.post(f"{url}/v1/completions", json=BODY, timeout=20).raise_for_status()
    collector.shutdown()
    collector.server_close()
    [body] = handler.bodies
    assert b"text_completion" in body and b"leafage" in body


def test_a_collector_that_is_not_there_harms_nobody(tiny_assets: Assets) -> None:
    build = tiny_build(tiny_assets)
    endpoint = "http://127.0.0.1:9/v1/traces"
    with context_over(build, otlp_traces_endpoint=endpoint) as context, serving(create_app(context)) as url:
        httpx.post(f"{url}/v1/completions", json=BODY, timeout=20).raise_for_status()
        began = time.monotonic()
    assert time.monotonic() - began < 8, "it does not hold up the end"


def test_a_missing_package_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidParameterError, match=r"pip install 'leafage\[otel\]'"):
        check_installed()


def test_without_an_endpoint_nothing_is_traced(tiny_context: Context) -> None:
    assert tiny_context.tracing is None and tiny_context.metrics.on_finished is None
