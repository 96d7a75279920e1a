"""Rows of servers, what they cost, and their section of the page, from made-up measurements."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import http_overhead
import pytest
from comparison import http_page, http_plan, http_rows, plan
from comparison.http_rows import HTTPTable
from comparison.rows import Row
from comparison.runs import Record, Sample
from comparison.sides import Side
from peers import client

Samples = dict[tuple[Side, str], list[Sample]]


def sample(wall: float, **answer: Any) -> Sample:
    times = {"ttft": {"p50": 0.2, "p99": 0.3}, "tpot": {"p50": 0.03, "p99": 0.04}}
    return Sample(
        {
            "wall": wall,
            "cpu": 2 * wall,
            "num_output_tokens": 9352,
            "client_cpu": 0.1,
            "times": times,
            **answer,
        },
        0.0,
        0.0,
        0.1,
    )


def rows(name: str, samples: Samples, known: dict[str, Any] | None = None) -> dict[tuple[str, str], Row]:
    sides: Any = SimpleNamespace(settings={})
    found = HTTPTable(Record(samples), sides, known or {}).rows({name})
    return {(row.title, row.against): row for row in found}


def test_a_server_is_judged_by_its_wall_time() -> None:
    samples: Samples = {
        (http_plan.OURS, "W3"): [sample(10.0), sample(12.0)],
        (http_plan.LLAMACPP, "W3"): [sample(49.0), sample(48.0)],
        (http_plan.VLLM, "W3"): [sample(15.0), sample(18.0)],
        (http_plan.LLAMACPP_Q4_1, "W3"): [sample(80.0)],
        (plan.OPENVINO, "W3"): [sample(20.0), sample(20.0)],
    }
    found = rows("http-w3", samples)
    llama = found["W3 over HTTP", "llama.cpp Q8_0"]
    assert llama.values == pytest.approx([4.9, 4.0]) and llama.verdict == "MISSED"
    vllm = found["W3 over HTTP", "vLLM BF16"]
    assert vllm.values == pytest.approx([1.5, 1.5]) and vllm.verdict == "ok"
    assert found["W3 over HTTP", "llama.cpp Q4_1"].values == [8.0]
    assert found["W3 over HTTP", "OpenVINO Q4_1, in its process"].verdict == "printed"
    slow = rows("http-w3", samples, {"vllm": {"BF16": {"W3": 12.0}}})
    assert (
        slow["W3 over HTTP", "vLLM BF16"].verdict == "INVALID: vLLM BF16 over HTTP at 73 % of its known 12.0"
    )


def test_chat_is_judged_by_mean_ttft_too_and_starts_are_printed() -> None:
    samples: Samples = {
        (http_plan.OURS, "W5"): [sample(5.0, mean_first_token=0.2)],
        (http_plan.VLLM, "W5"): [sample(9.0, mean_first_token=0.3)],
        (http_plan.OURS, "start"): [sample(1.0, first_token=1.1)],
        (http_plan.VLLM, "start"): [sample(30.0, first_token=33.0)],
    }
    found = rows("http-w5", samples)
    assert found["W5 over HTTP", "vLLM BF16"].verdict == "ok"
    first = found["W5 over HTTP, mean TTFT", "vLLM BF16"]
    assert (first.ours, first.unit, first.verdict) == ([200], "ms", "MISSED")
    assert found["W5 over HTTP", "llama.cpp Q8_0"].verdict.startswith("FAILED: llama.cpp Q8_0 over HTTP")
    found = rows("http-start", samples)
    assert found["start until ready", "vLLM BF16"].values == [30.0]
    assert found["start until the first answer", "vLLM BF16"].values == pytest.approx([30.0])


def test_every_side_runs_every_workload_in_turn() -> None:
    """Each on the same prompts; what is slow and only printed once."""
    for name in http_plan.WORKLOADS:
        first, second = (http_plan.groups(name)(repetition) for repetition in (0, 1))
        assert [group[0].side for group in first] == list(http_plan.SIDES)
        assert {group[0].side for group in second} == {*http_plan.SIDES} - {*http_plan.ONCE}
        assert len({id(group[0].work) for group in first}) == 1
        assert first[0][0].work.prompts != second[0][0].work.prompts


OVERHEAD = {
    "machine": {"cpu": "a CPU", "threads": 2},
    "runs": {
        "engine": [{"wall": 10.0, "cpu": 20.0, "client_cpu": 0.0}] * 2,
        "whole": [{"wall": 10.4, "cpu": 20.2, "client_cpu": 0.2}] * 2,
        "stream": [{"wall": 10.8, "cpu": 21.0, "client_cpu": 0.4}] * 2,
    },
    "lone": {"engine": [0.050, 0.060, 0.055], "stream": [0.056, 0.058, 0.0565]},
}
NEIGHBOUR = {
    "cpu": "a CPU",
    "sides": {"Leafage": {"alone": [300.0], "beside": [180.0], "neighbour": [0.67], "idle": 0.0}},
}


def test_overhead_is_told_with_and_without_the_client() -> None:
    _, engine, whole, stream, lone = http_overhead.rows(OVERHEAD)
    assert engine[0] == "engine" and engine[-1] == ""
    assert whole[4:] == ("4.00 %", "3.00 %", "<= 3 %", "MISSED")
    assert stream[4:] == ("8.00 %", "6.00 %", "<= 10 %", "ok")
    assert lone[1] == "56.50 ms" and lone[4:] == ("1.50 ms", "", "<= 2 ms", "ok")


def test_the_section_has_what_was_measured() -> None:
    samples: Samples = {
        (http_plan.OURS, "W3"): [sample(10.0, mean_first_token=0.25)],
        (plan.OPENVINO, "W3"): [
            Sample({"wall": 20.0, "cpu": 40.0, "num_output_tokens": 9352}, 0.0, 0.0, 0.1)
        ],
    }
    record = Record(samples)
    sides: Any = SimpleNamespace(settings={})
    http = {
        "date": "2026-01-01T00:00:00",
        "machine": {"cpu": "a CPU", "cores": 2, "memory_bytes": 2**34, "threads": 2, "kernels": "avx512"},
        "load": {"before": 0.1, "after": 1.9},
        "repetitions": 1,
        "versions": {"leafage": "0.1.0"},
        "rows": [row.as_dict() for row in HTTPTable(record, sides, {}).rows(set(http_plan.ROWS))],
        "record": record.as_dict(),
    }
    text = http_page.section(http, OVERHEAD, NEIGHBOUR)
    ours = "| 10.0 s | 935 tok/s | 250 ms | 200 ms | 300 ms | 30.0 ms | 40.0 ms | 20.0 | 0.10 |"
    assert f"| Leafage Q4_1 over HTTP {ours}" in text
    assert "| OpenVINO Q4_1 | 20.0 s | 468 tok/s | - | - | - | - | - | 40.0 | - |" in text
    assert "| whole | 10.4 s |" in text and "| Leafage | 300 tok/s | 180 tok/s | 60.0 % |" in text
    assert "W7" not in http_rows.text(record) and "$" not in text


def test_a_server_that_is_not_installed_says_so(tmp_path: Any) -> None:
    from comparison.sides import Files, Sides

    sides = Sides(Files(tmp_path / "a.gguf", None, None), tmp_path, 2)
    with pytest.raises(client.PeerError, match="run benchmarks/peers/setup vllm"):
        sides.get(http_plan.VLLM)
