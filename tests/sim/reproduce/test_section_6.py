"""Section 6: servers, and where a curve reaches a latency."""

from __future__ import annotations

import math

import pytest

from leafage.sim.reproduce.section_6 import rate_at
from tests.sim.reproduce.tools import assert_passed, run


def test_r6_1_each_device_has_its_share_of_the_heads() -> None:
    outcome = run("servers")
    assert_passed(outcome)
    [table] = outcome.tables
    assert [row[-1] for row in table.rows] == [11_969, 4_953, 47_818]


def test_the_rate_at_a_latency_lies_between_the_points() -> None:
    rates, latencies = (1.0, 2.0, 3.0), (0.05, 0.1, 0.4)
    assert rate_at(0.1, rates, latencies) == 2.0
    assert rate_at(0.2, rates, latencies) == pytest.approx(2.5)  # half way on a logarithmic scale
    assert rate_at(0.5, rates, latencies) == math.inf
    assert rate_at(0.01, rates, latencies) == 0


def test_the_card_only_quotes() -> None:
    assert not run("card-vllm").checks
