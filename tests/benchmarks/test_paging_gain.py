"""The table of paging_gain.py, and what makes its times worth nothing."""

from __future__ import annotations

from typing import Any

import paging_gain
import pytest

from leafage.config import EngineConfig
from leafage.core.usage import KINDS


def entry(system: str, seed: int, speed: float, digest: str = "same") -> dict[str, Any]:
    shares = dict.fromkeys(KINDS, 0.0) | {"stored": 0.5, "free": 0.3, "cached": 0.2}
    return {
        "seed": seed,
        "system": system,
        "seconds": 1.0,
        "tokens_per_second": speed,
        "mean_batch": 4.0,
        "preemptions": 0,
        "shares": shares,
        "digest": digest,
    }


def test_every_system_is_a_configuration() -> None:
    for settings in paging_gain.SYSTEMS.values():
        EngineConfig(**settings)


def test_ratios_are_of_the_same_repetition() -> None:
    runs = [entry("paged", 1, 100), entry("max", 1, 50), entry("paged", 2, 200), entry("max", 2, 50)]
    header, paged, reserved = paging_gain.report(runs).splitlines()
    assert header.split()[:3] == ["tok/s", "of", "paged"]
    assert paged.split()[1:5] == ["150", "(100-200)", "1.00x", "4.00"]
    assert "0.38x (0.25-0.50)" in reserved and "50.0 %" in reserved
    assert paging_gain.report([entry("max", 1, 50)]).splitlines()[1].split()[2] == "-"


def test_other_tokens_are_a_bug() -> None:
    paging_gain.check_tokens([entry("paged", 1, 1), entry("max", 1, 1), entry("max", 2, 1, "other")])
    with pytest.raises(SystemExit, match="different tokens"):
        paging_gain.check_tokens([entry("paged", 1, 1), entry("max", 1, 1, "other")])
