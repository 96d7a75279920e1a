"""When requests arrive: endless, sorted streams of times."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator

from leafage.errors import InvalidParameterError


def poisson(rate: float, rng: random.Random) -> Iterator[float]:
    """Requests that do not know of each other: exponential gaps, `rate` a second on average."""
    return itertools.accumulate(-math.log(1 - rng.random()) / rate for _ in itertools.count())


def gamma(rate: float, cv: float, rng: random.Random) -> Iterator[float]:
    """Gaps from a gamma distribution.

    Args:
        rate: requests a second on average.
        cv: coefficient of variation of the gaps, their standard deviation over their mean: 1 is `poisson`,
            more comes in bursts, less is more regular. The distribution's shape is 1 / cv^2.
    """
    shape = 1 / cv**2
    return itertools.accumulate(rng.gammavariate(shape, 1.0) / (shape * rate) for _ in itertools.count())


def constant(rate: float) -> Iterator[float]:
    """One every 1 / `rate` seconds, the first at 0."""
    return (number / rate for number in itertools.count())


def at_once() -> Iterator[float]:
    """All at 0: the offline case."""
    return itertools.repeat(0.0)


_KINDS: dict[str, Callable[[float, float, random.Random], Iterator[float]]] = {
    "poisson": lambda rate, cv, rng: poisson(rate, rng),
    "gamma": gamma,
    "constant": lambda rate, cv, rng: constant(rate),
    "at-once": lambda rate, cv, rng: at_once(),
}
KINDS = ", ".join(_KINDS)
DEFAULT_RATE = 1.0


def check_arrivals(kind: str, rate: float | None, cv: float | None) -> None:
    """Raises:
    InvalidParameterError: there is no such kind, a number is out of range, or the kind has no use for it.
    """
    if kind not in _KINDS:
        raise InvalidParameterError("unknown arrivals", value=kind, limit=KINDS)
    for name, value in (("rate", rate), ("cv", cv)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InvalidParameterError(f"{name} must be above 0", value=value)
    if rate is not None and kind == "at-once":
        raise InvalidParameterError(
            "requests that arrive at once have no rate",
            value=rate,
            remedy="leave rate out, or choose other arrivals",
        )
    if cv is not None and kind != "gamma":
        raise InvalidParameterError(
            "cv is for gamma arrivals", value=f"cv = {cv}, arrivals = {kind}", remedy="set arrivals to gamma"
        )
    if cv is None and kind == "gamma":
        raise InvalidParameterError(
            "gamma arrivals need cv", remedy="1 is Poisson, more comes in bursts, less is more regular"
        )


def make_arrivals(kind: str, rate: float | None, cv: float | None, rng: random.Random) -> Iterator[float]:
    """Endless arrivals of a kind: poisson, gamma, constant or at-once. With the same `rng` another rate gives
    the same times, stretched.

    Raises:
        InvalidParameterError: as `check_arrivals`.
    """
    check_arrivals(kind, rate, cv)
    return _KINDS[kind](rate or DEFAULT_RATE, cv or 1.0, rng)
