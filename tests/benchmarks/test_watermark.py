"""Preemption under load (R5-5) and the watermark (R5-6, E3) against published figures, within their bands."""

from __future__ import annotations

import pytest
import watermark


def test_r5_5_preemption_is_frequent_and_swap_is_as_fast_as_recompute() -> None:
    """Scenario A at 3 requests a second; published: hundreds of preemptions, 80,000 to 100,000 tokens."""
    recompute, swap = (
        watermark.run(0.01, seed=1, num_requests=600, rate=3.0, preemption=preemption)
        for preemption in ("recompute", "swap")
    )
    for measured in (recompute, swap):
        assert 250 <= measured["preemptions"] <= 450
    assert 70_000 <= recompute["recomputed"] <= 110_000 and recompute["swapped"] == 0
    assert swap["recomputed"] == 0 and swap["swapped"] >= recompute["recomputed"] / watermark.BLOCK_SIZE
    assert swap["tok/s"] == pytest.approx(recompute["tok/s"], rel=0.02)


def test_r5_6_a_watermark_of_5_percent_saves_preemptions_and_20_costs_throughput() -> None:
    none, some, much = (
        watermark.run(share, seed=2, num_requests=300, rate=3.0) for share in (0.0, 0.05, 0.2)
    )
    assert none["preemptions"] >= 4 * some["preemptions"] and much["preemptions"] == 0
    assert none["recomputed"] > 4 * some["recomputed"]
    assert some["tok/s"] > 0.995 * none["tok/s"] and much["tok/s"] < 0.97 * some["tok/s"]
    assert much["SLO"] < some["SLO"]
