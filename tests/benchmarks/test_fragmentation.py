"""What contiguous memory wastes, against published figures (R1-5, R1-6), within their bands."""

from __future__ import annotations

import statistics
from typing import Any

import fragmentation
import pytest


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    return fragmentation.measure()


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


def test_a_report_has_a_line_for_each_row(measured: dict[str, Any]) -> None:
    text = fragmentation.report(measured)
    for row in [*measured["end_of_request"], *measured["events"]]:
        assert any(row["system"] in line for line in text.splitlines())
