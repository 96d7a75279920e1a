from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families


def samples(url: str) -> dict[str, float]:
    """Values by name and labels, without the model's."""
    found = {}
    for family in text_string_to_metric_families(httpx.get(f"{url}/metrics").text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sample.labels.items() if k != "model_name")
            found[sample.name.removeprefix("leafage:") + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


def test_what_was_served_is_in_the_metrics(tiny_url: str) -> None:
    before = samples(tiny_url)
    body = {"prompt": "hello there", "max_tokens": 4, "ignore_eos": True}
    for _ in range(2):
        httpx.post(f"{tiny_url}/v1/completions", json=body).raise_for_status()
    assert httpx.post(f"{tiny_url}/v1/completions", json={"promt": "x"}).status_code == 400
    assert httpx.get(f"{tiny_url}/nothing/here").status_code == 404
    after = samples(tiny_url)
    grown = {name: value - before[name] for name, value in after.items() if name in before}
    assert grown["request_success_total{finished_reason=length}"] == 2
    assert grown["generation_tokens_total"] == 8
    assert grown["prompt_tokens_total"] == 2 * 11 and grown["prompt_tokens_cached_total"] == 10
    assert grown["time_to_first_token_seconds_count"] == grown["e2e_request_latency_seconds_count"] == 2
    assert grown["e2e_request_latency_seconds_sum"] > 0
    assert grown["http_responses_total{status=2xx}"] == 2, "scrapes and health checks do not count"
    assert grown["http_responses_total{status=4xx}"] == 2
    assert after["http_requests_in_flight"] == 0
    assert set(before) == set(after)


def test_what_the_process_uses_is_there(tiny_url: str) -> None:
    assert samples(tiny_url)["process_resident_memory_bytes"] > 1 << 20


def test_the_format_is_the_one_asked_for(tiny_url: str) -> None:
    plain = httpx.get(f"{tiny_url}/metrics")
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"
    opened = httpx.get(f"{tiny_url}/metrics", headers={"accept": accept})
    assert opened.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert opened.text.endswith("# EOF\n")
