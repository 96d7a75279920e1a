"""Rows and verdicts from made-up measurements."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
import quality
from comparison import page, plan, plots, show
from comparison.rows import Row, Table
from comparison.runs import Record, Sample
from comparison.sides import LEAFAGE, Side
from comparison.spread import Target

from leafage import bench

KNOWN = {"openvino": {"Q4_1": {"W1": 107.0, "W3": 20.5}}}
SETTINGS = {plan.OURS: {"settings": {"linear_bytes": 96_000_000, "kv_bytes_per_token": 23_040}}}


def sample(others: float = 0.0, floors: float | None = None, **answer: Any) -> Sample:
    measured = [] if floors is None else [bench.Floors(floors * f, 1e12, "dot", 2) for f in (0.9, 1.1)]
    return Sample({"cpu": 1.0, "wall": 1.0, **answer}, others, 0.0, 0.1, measured)


def decoded(*rates: float, floors: float | None = None) -> list[Sample]:
    return [sample(num_output_tokens=128, decode=127 / rate, floors=floors) for rate in rates]


def batches(*walls: float, others: float = 0.0) -> list[Sample]:
    return [sample(wall=wall, num_output_tokens=9352, others=others) for wall in walls]


def rows(name: str, samples: dict[tuple[Side, str], list[Sample]], **record: Any) -> list[Row]:
    sides: Any = SimpleNamespace(settings=SETTINGS)
    return Table(Record(samples, **record), sides, KNOWN).rows({name})


def by_title(found: list[Row]) -> dict[tuple[str, str], Row]:
    return {(row.title, row.against): row for row in found}


def test_a_ratio_is_of_the_same_repetition_and_its_median_is_judged() -> None:
    samples = {
        (plan.OURS, "W1"): decoded(300, 200, 330, floors=40e9),
        (plan.llamacpp("Q4_1"), "W1"): decoded(100, 125, 110),
    }
    row = by_title(rows("w1", samples))["W1 Q4_1", "llama.cpp, same file"]
    assert row.values == pytest.approx([3.0, 1.6, 3.0])
    assert (row.target, row.verdict) == (Target(2.2), "ok")
    samples[plan.llamacpp("Q4_1"), "W1"] = decoded(200, 125, 200)
    assert by_title(rows("w1", samples))["W1 Q4_1", "llama.cpp, same file"].verdict == "MISSED"


def test_less_is_better_of_wall_times() -> None:
    samples = {(plan.OURS, "W3"): batches(10, others=0.3), (plan.OPENVINO, "W3"): batches(20, others=0.1)}
    row = by_title(rows("w3", samples))["W3 Q4_1", "OpenVINO, same file"]
    assert row.values == [2.0] and row.verdict == "ok" and row.others == 0.3
    assert row.note == "935 against 468 output tok/s"


@pytest.mark.parametrize(("workload", "made", "share"), [("W1", decoded(88), 82), ("W3", batches(30.0), 68)])
def test_a_peer_below_what_it_is_known_for_makes_its_row_invalid(
    workload: str, made: list[Sample], share: int
) -> None:
    ours = decoded(400, floors=40e9) if workload == "W1" else batches(1.0)
    samples = {(plan.OURS, workload): ours, (plan.OPENVINO, workload): made}
    row = by_title(rows(workload.lower(), samples))[f"{workload} Q4_1", "OpenVINO, same file"]
    assert row.verdict.startswith(f"INVALID: OpenVINO Q4_1 at {share} % of its known")


def test_a_peer_at_85_percent_counts() -> None:
    samples = {(plan.OURS, "W1"): decoded(400, floors=4e10), (plan.OPENVINO, "W1"): decoded(107 * 0.851)}
    assert by_title(rows("w1", samples))["W1 Q4_1", "OpenVINO, same file"].verdict == "ok"


def test_missing_peers_stay_in_the_table() -> None:
    missing = {(plan.VLLM, "W1"): "vllm is not in /x: run benchmarks/peers/setup vllm --into /x"}
    broken = {(plan.OPENVINO, "W1"): "the driver ended"}
    found = by_title(rows("w1", {(plan.OURS, "W1"): decoded(300, floors=4e10)}, errors=missing | broken))
    assert found["W1 Q4_1", "vLLM BF16"].verdict == "not installed"
    assert found["W1 Q4_1", "OpenVINO, same file"].verdict == "FAILED: OpenVINO Q4_1: the driver ended"
    assert found["W1 Q4_1", "llama.cpp, same file"].verdict.startswith("FAILED: llama.cpp Q4_1: not run")
    assert found["W1 Q4_1", "vLLM BF16"].ours == [300]


def test_share_of_the_memory_floor_counts_weights_and_kv() -> None:
    row = by_title(rows("w1", {(plan.OURS, "W1"): decoded(300, floors=40e9)}))["W1 Q4_1", "memory floor"]
    gigabytes = 300 * (96e6 + 192 * 23_040) / 1e9
    assert row.ours == pytest.approx([gigabytes]) and row.theirs == pytest.approx([40.0])
    assert row.values == pytest.approx([100 * gigabytes / 40]) and row.verdict == "ok"


def test_sampled_start_and_memory_are_at_most() -> None:
    gemma = Side(LEAFAGE, "Q4_K_M")
    sampled = rows("sampled", {(plan.OURS, "W3"): batches(10), (plan.OURS, "W3 sampled"): batches(10.9)})
    assert sampled[0].values == pytest.approx([9.0]) and sampled[0].verdict == "MISSED"
    start = rows("start", {(gemma, "cold"): batches(0.7), (plan.llamacpp("Q4_K_M"), "cold"): batches(0.4)})
    assert start[1].values == pytest.approx([1.75]) and start[1].verdict == "ok"
    figures = {"peak": 700e6, "file": 100e6, "pool": 420e6, "beyond": 180e6}
    memory = rows("memory", {(plan.in_small_pool("Q4_1"), "memory"): [sample(figures=figures)]})
    assert memory[0].values == [180.0] and memory[0].verdict == "ok"
    assert memory[1].problem


def test_other_tokens_are_an_error_and_equal_ones_are_said() -> None:
    name = "W4 = each request alone"
    for same, verdict in ((True, "equal"), (False, "TOKENS DIFFER")):
        assert rows("w4", {}, checks={name: same})[-1].verdict == verdict
    assert rows("w4", {})[-1].verdict == "FAILED: Leafage Q4_1: not run"
    broken = {(plan.OURS, "W4 alone"): "the driver ended"}
    assert rows("w4", {}, errors=broken)[-1].verdict == "FAILED: Leafage Q4_1: the driver ended"


def test_best_formats_are_chosen_by_what_was_measured() -> None:
    samples = {(Side(LEAFAGE, form), "W1"): decoded(rate) for form, rate in (("Q4_1", 290), ("Q4_0", 310))}
    samples |= {(plan.llamacpp(form), "W1"): decoded(rate) for form, rate in (("Q4_0", 190), ("BF16", 80))}
    row = rows("best", samples)[0]
    assert row.note == "Leafage Q4_0 against llama.cpp Q4_0" and row.verdict == "printed"


def test_a_best_format_counts_only_when_each_of_the_peer_s_is_set_up_well() -> None:
    samples = {(Side(LEAFAGE, "Q4_0"), "W1"): decoded(310), (plan.llamacpp("Q4_0"), "W1"): decoded(190)}
    samples[plan.llamacpp("BF16"), "W1"] = decoded(100)
    sides: Any = SimpleNamespace(settings=SETTINGS)
    for known, verdict in ((110.0, "printed"), (130.0, "INVALID: llama.cpp BF16 at 77 % of its known 130")):
        table = Table(Record(samples), sides, {"llamacpp": {"BF16": {"W1": known}}})
        assert table.rows({"best"})[0].verdict == verdict


def chats(wall: float, first: float, gap: float, **answer: Any) -> Sample:
    times = {"mean_first_token": first, "p99_inter_token": gap}
    counted = {"prompt_tokens": 3904, "generation_tokens": 2560}
    return sample(wall=wall, num_prompt_tokens=16_640, **times, counted=counted, **answer)


def test_chat_is_judged_by_wall_and_by_both_latencies() -> None:
    samples = {
        (plan.OURS, "W5"): [chats(5.0, 0.2, 0.06)] * 2,
        (plan.OPENVINO, "W5"): [chats(7.0, 0.21, 0.04, cached_tokens=None)] * 2,
        (plan.VLLM, "W5"): [chats(10.0, 0.5, 0.1, cached_tokens=12_000)] * 2,
        (plan.with_budget(64), "W5"): [chats(6.0, 0.3, 0.03)] * 2,
    }
    found = by_title(rows("w5", samples, checks={"W5 = each request alone": True}))
    wall = found["W5 Q4_1", "OpenVINO, same file"]
    assert wall.values == pytest.approx([1.4, 1.4]) and wall.verdict == "ok"
    assert wall.note == "prompts of 16,640 tokens, of which we computed 3,904; 2,560 generated"
    assert found["W5 Q4_1", "vLLM BF16"].note.endswith("; vLLM computed 4,640")
    first = found["W5 mean TTFT", "OpenVINO Q4_1"]
    assert (first.ours, first.verdict) == ([200, 200], "ok") and first.values == pytest.approx(
        [0.95] * 2, abs=0.01
    )
    gap = found["W5 P99 inter-token latency", "OpenVINO Q4_1"]
    assert gap.values == pytest.approx([1.5, 1.5]) and gap.verdict == "MISSED"
    assert found["W5 P99 inter-token latency", "vLLM BF16"].verdict == "printed"
    budget = found["W5, token budget 64", "the default"]
    assert budget.values == pytest.approx([1.2, 1.2]) and budget.verdict == "printed"
    assert budget.note == "mean TTFT 300 ms, P99 inter-token latency 30.0 ms"
    assert found["W5, token budget 512", "the default"].verdict.startswith(
        "FAILED: Leafage Q4_1 --token-budget"
    )
    assert found["tokens of W5 = each request alone", "batch 1"].verdict == "equal"


def test_a_peer_that_is_too_slow_in_chat_makes_its_latencies_invalid_too() -> None:
    sides: Any = SimpleNamespace(settings=SETTINGS)
    samples = {(side, "W5"): [chats(9.0, 0.2, 0.06)] for side in (plan.OURS, plan.OPENVINO)}
    table = Table(Record(samples), sides, {"openvino": {"Q4_1": {"W5": 7.0}}})
    found = by_title(table.rows({"w5"}))
    for row in ("W5 Q4_1", "OpenVINO, same file"), ("W5 mean TTFT", "OpenVINO Q4_1"):
        assert found[row].verdict == "INVALID: OpenVINO Q4_1 at 78 % of its known 7.00"


def test_beams_cost_is_against_our_own_sampling() -> None:
    samples = {
        (plan.OURS, "beam"): [sample(wall=0.6)] * 2,
        (plan.OURS, "n=4"): [sample(wall=0.5)] * 2,
        (plan.VLLM, "beam"): [sample(wall=7.2)] * 2,
    }
    found = by_title(rows("beam", samples))
    assert found["beam Q4_1", "vLLM BF16"].values == pytest.approx([12.0, 12.0])
    cost = found["beam Q4_1", "our n = 4 sampling"]
    assert cost.values == pytest.approx([1.2, 1.2]) and cost.verdict == "ok"


def test_pressure_is_a_share_of_our_own_speed_and_peers_run_once() -> None:
    counts = ({"num_preemptions": n, "recomputed_tokens": 100 * n} for n in (5, 9))
    walls = (15.0, 20.0)
    pressed = [sample(wall=wall, counted=count) for wall, count in zip(walls, counts, strict=True)]
    vllm, unified = plan.PRESSED_PEERS[1:3]
    samples = {
        (plan.OURS, "W3 pressed"): batches(12.0, 11.0),
        (plan.PRESSED, "W3 pressed"): pressed,
        (vllm, "W3 pressed"): batches(30.0),
    }
    errors = {(unified, "W3 pressed"): "16 of 64 failed, the first: llama-server answered 500"}
    checks = {"W3 in a small KV pool = in a large one": True}
    own, tokens, _, beside, failed, _ = rows("pressure", samples, errors=errors, checks=checks)
    assert own.values == pytest.approx([80.0, 55.0]) and own.verdict == "ok"
    assert own.note == "7.00 preemptions (5.00-9.00), 700 tokens computed again (500-900)"
    assert tokens.verdict == "equal"
    assert (beside.against, beside.values, beside.verdict) == ("vLLM BF16, as small a pool", [2.0], "printed")
    assert (
        failed.against == "llama.cpp Q8_0 --unified, as small a pool" and "16 of 64 failed" in failed.verdict
    )


def test_every_row_has_a_name_and_can_be_shown() -> None:
    sides: Any = SimpleNamespace(settings=SETTINGS)
    found = Table(Record(), sides, {}).rows(set(plan.ROWS))
    assert {row.group for row in found} == set(plan.ROWS)
    assert all(row.problem for row in found), "nothing was measured"
    lines = [line for line in show.text(found).splitlines() if not line.startswith("    ")]
    assert len(lines) == len(found), "the header starts with spaces too"
    for row in found:
        assert row.title in page.table(page.COLUMNS, [page._row(row.as_dict())])


def test_in_the_page_units_stand_behind_medians() -> None:
    row = Row("w1", "W1", "", "tok/s", ours=[300.0, 310.0], theirs=[100.0], values=[3.0, 3.1])
    assert page._row(row.as_dict())[2:5] == ("305 tok/s (300-310)", "100 tok/s", "**3.05x (3.00-3.10)**")


MEASURED = {
    "date": "2026-01-01T00:00:00",
    "machine": {"cpu": "a CPU", "threads": 2},
    "floors": [{"bandwidth": 4e10}],
}
GROWTH = {
    "decode": {
        "measured": MEASURED,
        "cells": [
            {"batch": batch, "context": context, "seconds": seconds}
            for batch, context, seconds in ((1, 128, 0.004), (1, 256, 0.005), (4, 128, None), (4, 256, None))
        ],
    },
    "sharing": {
        "measured": MEASURED,
        "cells": [
            {"name": name, "batch": 8, "context": 656, "share": share, "common": common, "seconds": seconds}
            for name in ("tasks", "beams")
            for share, common, seconds in ((0.0, 0, 0.06), (0.5, 320, 0.045), (1.0, 640, 0.03))
        ],
    },
    "scheduler": {
        "measured": MEASURED,
        "context": 512,
        "cells": [{"sequences": n, "schedule": 1e-5 * n, "update": 2e-5 * n} for n in (1, 9)],
    },
}

KINDS = ("reservation", "internal", "external", "cached", "pinned", "free")
FRAGMENTATION = {
    "end_of_request": [
        {"system": "paged", "utilisation": [0.98, 0.99, 0.97], "unused_slots": [7.5, 7.4, 7.6]}
    ],
    "events": [
        {"mean": 512, "system": system, "runs": [{"failures": n, "enough_free": n - 1, "used": 0.5}]}
        for system, n in (("first-fit", 100), ("paged", 0))
    ],
    "requests": 400,
    "over_time": [
        {
            "workload": workload,
            "system": system,
            "shares": {"stored": stored, "duplicates": 0.1} | dict.fromkeys(KINDS, (1 - stored) / 6),
            "mean_batch": 9.87,
            "preemptions": 1234,
            "seconds": 99.5,
        }
        for workload in ("nothing in common", "few-shot")
        for system, stored in (("Max", 0.25), ("paged", 0.9))
    ],
}

FIGURES = quality.Figures(
    positions=1023,
    perplexity=16.5,
    reference_perplexity=16.46,
    ratio=1.0024,
    ratio_error=0.0011,
    top1=0.9725,
    kl_mean=0.00213,
    kl_p999=0.0412,
)
QUALITY = {
    "models": {
        "smollm2": {
            "windows": 1,
            "window": 1024,
            "leafage": {"avx512, 16-bit KV": asdict(FIGURES)},
            "second_half": {"avx512, 16-bit KV": asdict(FIGURES)},
            "llamacpp": asdict(FIGURES) | {"positions": 511, "top1": 0.9697},
        }
    }
}


def test_the_page_has_what_was_measured() -> None:
    samples = {(plan.OURS, "W1"): decoded(300, floors=40e9)}
    found = rows("w1", samples)
    compare = {
        "date": "2026-01-01T00:00:00",
        "machine": {"cpu": "a CPU", "cores": 2, "memory_bytes": 2**34, "threads": 2, "kernels": "avx512"},
        "load": {"before": 0.1, "after": 1.9},
        "repetitions": 3,
        "versions": {"leafage": "0.1.0"},
        "rows": [row.as_dict() for row in found],
        "record": Record(samples, floors={"W1, W2": [bench.Floors(4e10, 9e11, "dot", 2)]}).as_dict(),
    }
    text = page.markdown(compare, GROWTH, FRAGMENTATION, QUALITY, "## Through HTTP")
    assert "**75" in text and "| W1, W2 | 40.0 | 900 | dot |" in text
    assert "|  | sequences, tokens | ms (0% common) | ms (50% common) | ms (100% common) | gain |" in text
    assert "| beams | 8 of 656 | 60.0 (0) | 45.0 (320) | 30.0 (640) | 2.00x |" in text
    assert "| 128 | 4.00 | - |" in text and "| 9 | 90.0 | 180 | 270 | 30.0 |" in text
    assert "| avx512, 16-bit KV | 16.500 | +0.24% ± 0.11% | 97.25% | 0.00213 | 0.0412 |" in text
    assert "511 positions" in text and "| llama.cpp | 16.500 | +0.24% ± 0.11% | 96.97% |" in text
    assert "| few-shot | Max | 25.0% | 10.0% | 12.5% |" in text and "| 9.9 | 1,234 | 100 |" in text
    assert "| 512 | first-fit | 100 | 99.0 % | 50.0 % |" in text and "| 512 | paged | 0.00 |  |" in text
    assert "| paged | 98.0 % (97.0-99.0) | 7.50 (7.40-7.60) |" in text
    assert "## Through HTTP" in text and "$" not in text


def test_plots_are_the_same_for_the_same_figures(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    for draw, figures in (
        (plots.decode, GROWTH),
        (plots.scheduler, GROWTH),
        (plots.memory, FRAGMENTATION),
    ):
        for name in ("a.svg", "b.svg"):
            draw(figures, tmp_path / name)
        assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
        assert b"<svg" in (tmp_path / "a.svg").read_bytes()
