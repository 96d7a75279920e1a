"""What contiguous memory wastes, against published figures (R1-4 to R1-6), within their bands."""

from __future__ import annotations

import statistics
from typing import Any

import fragmentation
import pytest


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    return fragmentation.measure(num_served=100)


@pytest.mark.parametrize(
    ("system", "percent"),
    [
        ("reserved-max", 26.4),
        ("reserved-pow2", 81.5),
        ("reserved-oracle", 100.0),
        ("paged, block 16", 98.7),
        ("paged, block 256", 81.4),
    ],
)
def test_r1_5_what_is_used_at_the_end_of_a_request(
    measured: dict[str, Any], system: str, percent: float
) -> None:
    [row] = [row for row in measured["end_of_request"] if row["system"] == system]
    assert statistics.median(row["utilisation"]) * 100 == pytest.approx(percent, abs=2)


@pytest.mark.parametrize(
    ("mean", "fewest", "most", "percent"), [(512, 97, 300, 99), (2048, 530, 800, 77), (4096, 1100, 1420, 55)]
)
def test_r1_6_first_fit_fails_with_enough_free_space(
    measured: dict[str, Any], mean: int, fewest: int, most: int, percent: float
) -> None:
    [row] = [r for r in measured["events"] if (r["mean"], r["system"]) == (mean, "first-fit")]
    assert fewest <= statistics.median(run["failures"] for run in row["runs"]) <= most
    shares = [100 * run["enough_free"] / run["failures"] for run in row["runs"]]
    assert statistics.median(shares) == pytest.approx(percent, abs=8)


@pytest.mark.parametrize("mean", fragmentation.MEANS)
def test_r1_6_paging_never_fails_with_enough_free_space(measured: dict[str, Any], mean: int) -> None:
    [row] = [r for r in measured["events"] if (r["mean"], r["system"]) == (mean, "paged")]
    [first_fit] = [r for r in measured["events"] if (r["mean"], r["system"]) == (mean, "first-fit")]
    for paged, contiguous in zip(row["runs"], first_fit["runs"], strict=True):
        assert paged["enough_free"] == 0
        assert paged["used"] > contiguous["used"], "what it does not lose, it uses"


def test_r1_4_each_waste_over_time_is_accounted_apart(measured: dict[str, Any]) -> None:
    found = {(row["workload"], row["system"]): row for row in measured["over_time"]}
    assert len(found) == len(fragmentation.WORKLOADS) * len(fragmentation.SYSTEMS)
    for row in found.values():
        duplicates = row["shares"]["duplicates"]  # a part of what is stored
        assert sum(row["shares"].values()) - duplicates == pytest.approx(1)
        assert 0 <= duplicates < row["shares"]["stored"]
    apart, common = fragmentation.SCENARIO_A, fragmentation.FEW_SHOT
    most = {system: max(found[apart, system]["shares"].items(), key=lambda pair: pair[1])[0]
            for system in fragmentation.SYSTEMS}  # fmt: skip
    assert most["Max"] == "internal" and most["Oracle"] == most["paged"] == "stored"
    lost = {system: found[apart, system]["shares"] for system in fragmentation.SYSTEMS}
    assert lost["Pow2, buddy"]["internal"] > lost["Pow2"]["internal"] > lost["Oracle"]["internal"]
    assert lost["Oracle"]["external"] > 0.05 and lost["Oracle"]["reservation"] > 0.15
    assert lost["paged"]["internal"] < 0.01 and lost["paged"]["external"] == 0
    assert all(shares["duplicates"] == 0 for shares in lost.values()), "they have nothing in common"
    assert found[common, "paged, not shared"]["shares"]["duplicates"] > 0.2
    assert found[common, "paged"]["shares"]["duplicates"] == 0 < found[common, "paged"]["shares"]["cached"]
    for workload in (apart, common):
        batches = [found[workload, system]["mean_batch"] for system in fragmentation.SYSTEMS]
        assert batches[:-1] == sorted(batches[:-1]), "who wastes less serves more at once"
    assert found[common, "paged"]["mean_batch"] > 1.4 * found[common, "paged, not shared"]["mean_batch"]


def test_a_report_has_a_line_for_each_row(measured: dict[str, Any]) -> None:
    text = fragmentation.report(measured)
    for row in [*measured["end_of_request"], *measured["events"], *measured["over_time"]]:
        assert any(row["system"] in line for line in text.splitlines())
