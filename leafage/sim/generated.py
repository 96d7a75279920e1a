"""What all generated workloads share: arrivals, a seed, and how their settings are declared."""

from __future__ import annotations

import dataclasses
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from leafage.core.sampling_params import MAX_BEAM_WIDTH, MAX_SEQUENCES
from leafage.errors import InvalidParameterError
from leafage.sim.arrivals import check_arrivals, make_arrivals
from leafage.sim.distributions import parse_distribution
from leafage.sim.workload import SimRequest


def setting(default: Any, help: str) -> Any:
    """A field of a workload that a user may set."""
    return dataclasses.field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class Generated(ABC):
    """A workload made by a seeded generator. The same settings give the same requests, to the last bit, as
    often as it is iterated; arrivals, lengths and choices are drawn apart, so that another rate changes none
    but arrivals.

    Raises:
        InvalidParameterError: a setting is out of range, or means nothing beside the others.
    """

    arrivals: str = setting(
        "poisson", "when: poisson, gamma (bursts, with cv), constant, or at-once (all at 0)"
    )
    rate: float | None = setting(None, "arrivals a second; default: 1")
    cv: float | None = setting(None, "of gamma arrivals: standard deviation of the gaps over their mean")
    seed: int = setting(0, "of all that is drawn")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.type == "Distribution":
                object.__setattr__(self, field.name, parse_distribution(getattr(self, field.name)))
        check_arrivals(self.arrivals, self.rate, self.cv)

    @abstractmethod
    def __iter__(self) -> Iterator[SimRequest]: ...

    def finished(self, request: SimRequest, time: float) -> Iterable[SimRequest]:
        """Nothing follows, unless a subclass says otherwise."""
        return ()

    def rng(self, purpose: str) -> random.Random:
        """A generator of its own for each purpose."""
        return random.Random(f"{self.seed}/{purpose}")

    def arrival_times(self) -> Iterator[float]:
        """Endless."""
        return make_arrivals(self.arrivals, self.rate, self.cv, self.rng("arrivals"))


def check_at_least(name: str, value: int, low: int, high: int | None = None) -> None:
    """Raises:
    InvalidParameterError: `value` is not within `low` and `high`.
    """
    if value < low or (high is not None and value > high):
        limit = f"at least {low}" if high is None else f"{low} to {high}"
        raise InvalidParameterError(f"{name} is out of range", value=value, limit=limit)


def check_sequences(n: int, beam_width: int | None) -> None:
    """Raises:
    InvalidParameterError: a request cannot ask for so many answers or beams, or not for both.
    """
    check_at_least("n", n, 1, MAX_SEQUENCES)
    if beam_width is not None:
        check_at_least("beam_width", beam_width, 1, MAX_BEAM_WIDTH)
        check_at_least("n (of beam search)", n, 1, beam_width)
