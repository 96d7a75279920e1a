"""Many scenarios: in parallel processes, with several seeds, varied by their settings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from leafage.errors import LeafageError
from leafage.sim.parallel import Progress, in_parallel
from leafage.sim.result import SLO, Floats, Refusals, SimResult
from leafage.sim.scenario import Scenario
from leafage.sim.summary import DEFAULT_SLO, summarize
from leafage.sim.timeline import Timeline


@dataclass(slots=True)
class Run:
    """What one simulation gave, small enough to be kept in thousands.

    Attributes:
        metrics: by name, as `summarize` gives them; empty when it could not run.
        refusals: requests that were refused, by reason.
        timeline: the run over time.
        quantiles: TTFT, TPOT and E2E that 0, 1, ..., 100 % of the requests stay below, by name.
        num_slots: of the KV cache.
        stopped: it ended once its service level was certain to be missed (`Verdict`); the rest is about the
            requests that had ended.
        error: why it could not run, such as a model that does not fit.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    refusals: dict[str, Refusals] = field(default_factory=dict)
    timeline: Timeline | None = None
    quantiles: dict[str, Floats] = field(default_factory=dict)
    num_slots: int = 0
    stopped: bool = False
    error: str | None = None


def simulate(scenario: Scenario, slo: SLO = DEFAULT_SLO) -> Run:
    """Run a scenario.

    Raises:
        LeafageError: it cannot run.
    """
    return run_of(scenario.run(), slo)


def run_of(result: SimResult, slo: SLO = DEFAULT_SLO) -> Run:
    """What is kept of a result."""
    latencies = {"ttft": result.ttft, "tpot": result.tpot, "e2e": result.e2e}
    return Run(
        metrics=summarize(result, slo),
        refusals=result.records.refusals,
        timeline=result.timeline,
        quantiles={
            name: np.percentile(values, np.arange(101)) for name, values in latencies.items() if len(values)
        },
        num_slots=result.num_slots,
    )


def run_all(
    scenarios: Sequence[Scenario],
    *,
    slo: SLO = DEFAULT_SLO,
    processes: int = 1,
    on_progress: Progress | None = None,
) -> list[Run]:
    """Run scenarios, in their order. One that cannot run says why in its `error`; the others go on.

    Args:
        processes: that compute at once. A script that asks for several needs the usual
            `if __name__ == "__main__"` around what it does.
    """
    return in_parallel(partial(_try, slo=slo), scenarios, processes=processes, on_progress=on_progress)


def _try(scenario: Scenario, slo: SLO) -> Run:
    try:
        return simulate(scenario, slo)
    except LeafageError as error:
        return Run(error=str(error))


# -- spread over seeds ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spread:
    """A number over several seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        known = [value for value in self.values if not math.isnan(value)]
        return statistics.fmean(known) if known else math.nan

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)


@dataclass(slots=True)
class Point:
    """A scenario that was run with several seeds.

    Attributes:
        settings: what sets it apart from the others.
        runs: one for each seed.
    """

    settings: dict[str, Any]
    scenario: Scenario
    runs: list[Run]

    @property
    def label(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.settings.items()) or "as given"

    @property
    def error(self) -> str | None:
        return next((run.error for run in self.runs if run.error), None)

    def spread(self, metric: str) -> Spread:
        """A metric over its seeds."""
        return Spread(tuple(run.metrics.get(metric, math.nan) for run in self.runs))


def sweep(
    scenario: Scenario,
    values: Mapping[str, Sequence[Any]],
    *,
    seeds: Iterable[int] = (0,),
    slo: SLO = DEFAULT_SLO,
    processes: int = 1,
    on_progress: Progress | None = None,
) -> list[Point]:
    """Run a scenario with every combination of these values of its settings; the first name varies slowest.

    Raises:
        InvalidParameterError: there is no such setting, or a value is wrong.
    """
    names = [scenario.find_setting(name) for name in values]
    changes = [dict(zip(names, chosen, strict=True)) for chosen in product(*values.values())]
    return compare(scenario, changes, seeds=seeds, slo=slo, processes=processes, on_progress=on_progress)


def compare(
    scenario: Scenario,
    variants: Sequence[Mapping[str, Any]],
    *,
    seeds: Iterable[int] = (0,),
    slo: SLO = DEFAULT_SLO,
    processes: int = 1,
    on_progress: Progress | None = None,
) -> list[Point]:
    """Run variants of a scenario, each with the same seeds and so with the same requests.

    Args:
        variants: the settings of each that differ.

    Raises:
        InvalidParameterError: there is no such setting, or a value is wrong.
    """
    changed = [scenario.with_settings(settings) for settings in variants]
    seeds = tuple(seeds)
    drawn = [drawn_with(each, seeds) for each in changed]
    runs = iter(
        run_all(
            [each for group in drawn for each in group],
            slo=slo,
            processes=processes,
            on_progress=on_progress,
        )
    )
    return [
        Point(dict(settings), each, [next(runs) for _ in group])
        for settings, each, group in zip(variants, changed, drawn, strict=True)
    ]


def drawn_with(scenario: Scenario, seeds: Sequence[int]) -> list[Scenario]:
    """The scenario with each seed; once when it draws nothing."""
    return [scenario.with_seed(seed) for seed in seeds] if scenario.has_seed else [scenario]
