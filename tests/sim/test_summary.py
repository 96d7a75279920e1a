from __future__ import annotations

import math
from typing import Any

import pytest

from leafage.build import build_simulation
from leafage.config import EngineConfig
from leafage.errors import InvalidParameterError
from leafage.sim.hardware import Hardware
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.result import SLO, SimResult
from leafage.sim.summary import DEFAULT_SLO, METRICS, find_metric, summarize
from leafage.sim.workload import SimRequest, Trace


def simulated(requests: list[SimRequest], **settings: Any) -> SimResult:
    config = EngineConfig(**{"prefix_index": "none", "max_model_len": 512} | settings)
    return build_simulation(config, Hardware.load("a100-40gb"), LLMSpec.load("opt-13b")).run(Trace(requests))


def requests(count: int, *, prompt: int = 40, output: int = 20, gap: float = 0.1) -> list[SimRequest]:
    return [
        SimRequest(str(i), i * gap, range(i * 1000, i * 1000 + prompt), range(output)) for i in range(count)
    ]


def test_metrics_agree_with_the_columns_of_the_run() -> None:
    result = simulated(requests(30))
    numbers = summarize(result)
    assert list(numbers) == list(METRICS)
    assert numbers["ttft_mean"] == pytest.approx(result.ttft.mean())
    for name in ("ttft", "tpot", "e2e"):
        ranked = sorted(getattr(result, name))
        assert ranked[0] <= numbers[f"{name}_p50"] <= numbers[f"{name}_p90"] <= numbers[f"{name}_p99"]
        assert numbers[f"{name}_p99"] <= ranked[-1]
        assert sum(value <= numbers[f"{name}_p90"] for value in ranked) == 27
    assert numbers["throughput"] * result.seconds == pytest.approx(30 * 20)
    assert numbers["total_throughput"] * result.seconds == pytest.approx(30 * 60)
    assert numbers["request_throughput"] * result.seconds == pytest.approx(30)
    assert numbers["num_requests"] == 30 and numbers["num_refused"] == numbers["num_failed"] == 0
    assert numbers["occupancy"] == pytest.approx(
        numbers["stored"] + numbers["waste_reservation"] + numbers["waste_internal"]
    )


def test_the_service_level_counts_both_latencies_and_refused_requests() -> None:
    result = simulated([*requests(10), SimRequest("long", 0.0, range(500), range(500))])
    assert summarize(result)["slo_attainment"] == pytest.approx(10 / 11)
    assert summarize(result, SLO(ttft=0.0, tpot=1.0))["slo_attainment"] == 0
    numbers = summarize(result, SLO(ttft=9.0, tpot=1e-9))
    assert numbers["slo_attainment"] == numbers["good_throughput"] == 0


def test_refusals_say_how_many_and_why() -> None:
    tall = [SimRequest(f"tall {n}", 0.0, range(500), range(500)) for n in range(3)]
    full = [SimRequest("prompt", 0.0, range(600), range(5))]
    result = simulated([*requests(2), *tall, *full])
    assert result.records.num_refused == 4
    counts = {reason: refusals.count for reason, refusals in result.records.refusals.items()}
    assert counts == {
        "prompt and max_tokens exceed the context": 3,
        "the prompt leaves no room for an output token": 1,
    }
    assert "512 (max_model_len)" in result.records.refusals["prompt and max_tokens exceed the context"].first


def test_a_full_pool_preempts_and_is_counted() -> None:
    # A long decode beside a later one that is preempted when the pool is full.
    burst = requests(12, prompt=60, output=100, gap=0.0)
    recompute = simulated(burst, kv_cache_tokens=640, preemption="recompute", watermark=0.0)
    numbers = summarize(recompute)
    assert numbers["preemptions"] > 0 and numbers["recomputed_tokens"] > 0
    assert numbers["swap_outs"] == numbers["swapped_tokens"] == 0
    assert numbers["longest_wait"] == pytest.approx(max(recompute.wait)) and numbers["longest_wait"] > 0.5
    swap = simulated(burst, kv_cache_tokens=640, preemption="swap", swap_bytes=1 << 30, watermark=0.0)
    numbers = summarize(swap)
    assert numbers["swap_outs"] == numbers["preemptions"] > 0 and numbers["recomputed_tokens"] == 0
    assert (
        numbers["swapped_tokens"] == 16 * (swap.swap_counters.blocks_out + swap.swap_counters.blocks_in) > 0
    )


def test_who_was_passed_is_counted() -> None:
    long = SimRequest("long", 0.01, range(600, 1000), range(50))
    short = [SimRequest(str(n), 0.02, range(n * 9, n * 9 + 9), range(5)) for n in range(6)]
    first = SimRequest("first", 0.0, range(5000, 5200), range(100))
    settings = {"kv_cache_tokens": 512, "max_num_batched_tokens": 256}
    ordered = simulated([first, long, *short], **settings)
    assert summarize(ordered)["most_passed"] == 0
    skipping = simulated([first, long, *short], policy="first_fit", **settings)
    assert summarize(skipping)["most_passed"] == 6


def test_an_empty_run_has_no_latencies() -> None:
    numbers = summarize(simulated([]))
    assert numbers["throughput"] == 0 and numbers["seconds"] == 0
    for name in ("ttft_mean", "ttft_p99", "normalized_latency", "longest_wait"):
        assert math.isnan(numbers[name])


def test_common_prefixes_are_hits() -> None:
    shared = [SimRequest(str(n), float(n), range(64), range(5)) for n in range(4)]
    assert summarize(simulated(shared, prefix_index="radix"))["hit_rate"] == pytest.approx(3 * 63 / (4 * 64))


def test_metrics_are_documented_and_found_by_name() -> None:
    assert all(metric.help and metric.title for metric in METRICS.values())
    assert len({metric.title for metric in METRICS.values()}) == len(METRICS)
    assert find_metric("ttft-p90").name == "ttft_p90"
    with pytest.raises(InvalidParameterError, match=r"ttft_p95.*Did you mean ttft_p9"):
        find_metric("ttft_p95")
    assert SLO(2.0, 0.1) == DEFAULT_SLO


def test_the_timeline_agrees_with_the_totals() -> None:
    result = simulated(requests(40))
    timeline = result.timeline
    spans = timeline.edges[1:] - timeline.edges[:-1]
    assert timeline.edges[-1] == result.seconds
    assert (timeline.rate("generated_tokens") * spans).sum() == pytest.approx(40 * 20)
    assert (timeline.batch * spans).sum() == pytest.approx(result.usage.seq_seconds)
