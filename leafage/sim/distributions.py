"""Distributions of lengths and of durations, and what is known of two datasets' lengths."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any, Protocol

from leafage.errors import InvalidParameterError

MAX_TOKENS = 1 << 24
"""Of one prompt or answer. A larger number is taken for a mistake."""

_NORMAL = NormalDist()


class Distribution(Protocol):
    """Where lengths (in tokens) or durations (in seconds) come from."""

    def draw(self, rng: random.Random) -> float:
        """A duration."""
        ...

    def draw_length(self, rng: random.Random) -> int:
        """A length: a whole number, at least 1."""
        ...

    @property
    def mean(self) -> float:
        """Of `draw`; of `draw_length` it is the same but for rounding."""
        ...

    @property
    def bounds(self) -> tuple[float, float]:
        """No value lies outside."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same value."""

    value: float

    def __post_init__(self) -> None:
        _check_finite(self, self.value)

    def __str__(self) -> str:
        return f"{self.value:g}"

    def draw(self, rng: random.Random) -> float:
        return self.value

    def draw_length(self, rng: random.Random) -> int:
        return max(1, round(self.value))

    @property
    def mean(self) -> float:
        return self.value

    @property
    def bounds(self) -> tuple[float, float]:
        return self.value, self.value


@dataclass(frozen=True, slots=True)
class Uniform:
    """All values from `low` to `high` alike; of lengths both ends belong to them."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_finite(self, self.low, self.high)
        _check_order(self, self.low, self.high)

    def __str__(self) -> str:
        return f"{self.low:g}-{self.high:g}"

    def draw(self, rng: random.Random) -> float:
        return self.low + (self.high - self.low) * rng.random()

    def draw_length(self, rng: random.Random) -> int:
        low = math.ceil(self.low)
        return max(1, low + int((math.floor(self.high) - low + 1) * rng.random()))

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low, self.high


@dataclass(frozen=True, slots=True)
class Exponential:
    """The durations between events that do not know of each other."""

    average: float

    def __post_init__(self) -> None:
        _check_finite(self, self.average)

    def __str__(self) -> str:
        return f"exponential:{self.average:g}"

    def draw(self, rng: random.Random) -> float:
        return -self.average * math.log(1 - rng.random())

    def draw_length(self, rng: random.Random) -> int:
        return max(1, round(self.draw(rng)))

    @property
    def mean(self) -> float:
        return self.average

    @property
    def bounds(self) -> tuple[float, float]:
        return 0.0, math.inf


@dataclass(frozen=True)
class LogNormal:
    """The exponential of a normal distribution: most values are small, a few are large.

    Values outside of `low` and `high` become `low` or `high`.

    Attributes:
        median: before clipping.
        sigma: standard deviation of the logarithm.
    """

    median: float
    sigma: float
    low: float = 1.0
    high: float = float(MAX_TOKENS)

    def __post_init__(self) -> None:
        _check_finite(self, self.median, self.sigma, self.low, self.high)
        _check_order(self, self.low, self.high)
        if self.median <= 0:
            raise InvalidParameterError(
                "the median of a log-normal distribution must be above 0", value=self.median
            )

    def __str__(self) -> str:
        return f"lognormal:{self.median:g},{self.sigma:g},{self.low:g}-{self.high:g}"

    @classmethod
    def with_mean(cls, mean: float, sigma: float, low: float, high: float) -> LogNormal:
        """The one whose clipped values have this mean.

        Raises:
            InvalidParameterError: `mean` is not between `low` and `high`.
        """
        if not low < mean < high:
            raise InvalidParameterError(
                "a mean outside of the clips", value=mean, limit=f"between {low} and {high}"
            )
        lowest, highest = 1e-9, 1e12
        for _ in range(200):  # the mean grows with the median
            median = math.sqrt(lowest * highest)
            if cls(median, sigma, low, high).mean < mean:
                lowest = median
            else:
                highest = median
        return cls(math.sqrt(lowest * highest), sigma, low, high)

    def draw(self, rng: random.Random) -> float:
        # One number of the generator each, so that other settings keep the rest of the draws.
        normal = _NORMAL.inv_cdf(rng.random() or 2.0**-53)
        return min(max(self.median * math.exp(self.sigma * normal), self.low), self.high)

    def draw_length(self, rng: random.Random) -> int:
        return max(1, round(self.draw(rng)))

    @cached_property
    def mean(self) -> float:
        if self.sigma == 0:
            return min(max(self.median, self.low), self.high)
        below = self._cdf(self.low, 0.0)
        above = 1 - self._cdf(self.high, 0.0)
        inside = self._cdf(self.high, self.sigma) - self._cdf(self.low, self.sigma)
        unclipped = self.median * math.exp(self.sigma**2 / 2)
        return self.low * below + unclipped * inside + self.high * above

    def _cdf(self, value: float, shift: float) -> float:
        if value <= 0:
            return 0.0
        return _NORMAL.cdf(math.log(value / self.median) / self.sigma - shift)

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low, self.high


def _check_finite(distribution: object, *values: float) -> None:
    for value in values:
        if not math.isfinite(value) or value < 0:
            raise InvalidParameterError(
                f"a {type(distribution).__name__} distribution takes finite numbers from 0", value=value
            )


def _check_order(distribution: object, low: float, high: float) -> None:
    if low > high:
        raise InvalidParameterError(
            f"the bounds of a {type(distribution).__name__} distribution are in the wrong order",
            value=f"{low:g}-{high:g}",
            remedy="the lower one comes first",
        )


FORMS = "200 (fixed), 20-99 (uniform), exponential:MEAN, lognormal:MEDIAN,SIGMA[,LOW-HIGH]"
_NUMBER = r"(\d+\.?\d*(?:e[+-]?\d+)?)"


def parse_distribution(text: Any) -> Distribution:
    """A distribution from what a user wrote: one of `FORMS`, a number, or a distribution.

    Raises:
        InvalidParameterError: it is none of these, or its numbers are out of range.
    """
    if isinstance(text, int | float) and not isinstance(text, bool):
        return Fixed(text)
    if isinstance(text, Fixed | Uniform | Exponential | LogNormal):
        return text
    if isinstance(text, str):
        for pattern, make in _PATTERNS:
            if found := re.fullmatch(pattern, text.strip().lower()):
                return make(*(float(number) for number in found.groups() if number is not None))
    raise InvalidParameterError("not a distribution", value=text, limit=FORMS)


_PATTERNS: list[tuple[str, Callable[..., Distribution]]] = [
    (_NUMBER, Fixed),
    (f"{_NUMBER}-{_NUMBER}", Uniform),
    (f"exponential:{_NUMBER}", Exponential),
    (f"lognormal:{_NUMBER},{_NUMBER}(?:,{_NUMBER}-{_NUMBER})?", LogNormal),
]


# Mean prompt and answer of both datasets as Kwon et al. (SOSP 2023, figure 11) give them: 161.31 and 337.99
# tokens of ShareGPT, 19.31 and 58.45 of Alpaca, which are 8.4 and 5.8 times fewer. The shapes are ours.
SHAREGPT_PROMPT = LogNormal.with_mean(161.31, 1.0, 4, 1024)
SHAREGPT_OUTPUT = LogNormal.with_mean(337.99, 0.8, 4, 1024)
ALPACA_PROMPT = LogNormal.with_mean(19.31, 0.5, 4, 256)
ALPACA_OUTPUT = LogNormal.with_mean(58.45, 0.8, 2, 512)
