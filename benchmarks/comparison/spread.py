"""Medians, ranges and ratios of repeated measurements, and what is wanted of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of some values."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Raises ValueError without values."""
        if not values:
            raise ValueError("no values to take a median of")
        return cls(statistics.median(values), min(values), max(values))

    def show(self, suffix: str = "") -> str:
        """Median and range with three digits: `1.94x (1.90-2.01)`."""
        if self.low == self.high:
            return f"{digits(self.median)}{suffix}"
        return f"{digits(self.median)}{suffix} ({digits(self.low)}-{digits(self.high)})"


def digits(value: float) -> str:
    """Three significant digits, thousands with a comma."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def ratios(ours: Sequence[float], theirs: Sequence[float], *, more_is_better: bool) -> list[float]:
    """How many times as good ours is, repetition by repetition."""
    pairs = list(zip(ours, theirs, strict=True))
    if any(a <= 0 or b <= 0 for a, b in pairs):
        raise ValueError(f"expected values above 0, got {min(min(pair) for pair in pairs)}")
    return [a / b if more_is_better else b / a for a, b in pairs]


@dataclass(frozen=True, slots=True)
class Target:
    """What is wanted of a median: at least `value`, or at most."""

    value: float
    at_most: bool = False

    def met(self, values: Sequence[float]) -> bool:
        median = statistics.median(values)
        return median <= self.value if self.at_most else median >= self.value

    def show(self, suffix: str = "") -> str:
        return f"{'<=' if self.at_most else '>='} {self.value:g}{suffix}"
