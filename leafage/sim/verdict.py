"""Whether a run can still be what is wanted of it."""

from __future__ import annotations

from dataclasses import dataclass

from leafage.sim.result import SLO


@dataclass(slots=True)
class Verdict:
    """Counts the requests of a run that missed a service level, over all of its engines, so that it can be
    stopped once too many have: what is still to come cannot mend that.

    Attributes:
        share: of the requests that must meet the level.
        num_requests: of the whole run.
        num_missed: requests that ended too late, failed, or were refused.
    """

    slo: SLO
    share: float
    num_requests: int
    num_missed: int = 0

    @property
    def is_missed(self) -> bool:
        """Even if all others meet the level, they are too few. Never true of a run that would end well."""
        return (self.num_requests - self.num_missed) / self.num_requests < self.share
