"""Goodput: the largest load under which enough requests meet the service level."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from leafage.errors import InvalidParameterError
from leafage.sim.experiments import Run, Spread, drawn_with, simulate
from leafage.sim.parallel import Progress, in_parallel
from leafage.sim.result import SLO
from leafage.sim.scenario import Scenario
from leafage.sim.summary import DEFAULT_SLO


@dataclass(slots=True)
class Search:
    """The search of one seed.

    Attributes:
        load: the largest that met the level; 0 when none did, infinity when all did.
        runs: by load, in the order they were tried.
    """

    load: float
    runs: dict[float, Run]


@dataclass(slots=True)
class Goodput:
    """The largest load of a scenario under which enough requests meet the service level.

    Attributes:
        load_setting: what was varied: `rate`, or `rate_scale` of a trace.
        searches: one for each seed.
        base_rate: requests a second at load 1.
    """

    settings: dict[str, Any]
    scenario: Scenario
    load_setting: str
    base_rate: float
    searches: list[Search]

    @property
    def rate(self) -> Spread:
        """Requests a second, over the seeds."""
        return Spread(tuple(search.load * self.base_rate for search in self.searches))

    @property
    def label(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.settings.items()) or "as given"

    def curves(self, metric: str) -> list[list[tuple[float, float]]]:
        """For each seed (requests a second, the metric) of its runs, sorted."""
        return [
            sorted((load * self.base_rate, run.metrics[metric]) for load, run in search.runs.items())
            for search in self.searches
        ]


def show_rate(rate: float) -> str:
    """Requests a second, in words where there is no number."""
    return "any" if math.isinf(rate) else f"{rate:.3g}"


def goodput(
    scenario: Scenario,
    variants: Sequence[Mapping[str, Any]] = ({},),
    *,
    slo: SLO = DEFAULT_SLO,
    share: float = 0.9,
    seeds: Iterable[int] = (0, 1, 2),
    tolerance: float = 0.02,
    processes: int = 1,
    on_progress: Progress | None = None,
) -> list[Goodput]:
    """Find the largest load under which `share` of the requests meet the service level, by bisection; for
    each variant and each seed apart, which gives the spread.

    It is a number of a finite run: the longer the workload, the lower it comes out, as queues have more time
    to grow. Compare only what has the same number of requests.

    Args:
        tolerance: of the load, relative: 1e-6 to 1.

    Raises:
        InvalidParameterError: a setting is wrong, or the workload has no rate.
        LeafageError: a variant cannot run.
    """
    if not 0 < share <= 1:
        raise InvalidParameterError("share is out of range", value=share, limit="above 0 to 1")
    if not FINEST <= tolerance <= 1:
        raise InvalidParameterError("tolerance is out of range", value=tolerance, limit=f"{FINEST:g} to 1")
    seeds = tuple(seeds)
    changed = [scenario.with_settings(settings) for settings in variants]
    drawn = [drawn_with(each, seeds) for each in changed]
    tasks = [each for group in drawn for each in group]
    search = partial(_search, slo=slo, share=share, tolerance=tolerance)
    found = iter(in_parallel(search, tasks, processes=processes, on_progress=on_progress))
    return [
        Goodput(
            settings=dict(settings),
            scenario=each,
            load_setting=each.load_setting,
            base_rate=_base_rate(each),
            searches=[next(found) for _ in group],
        )
        for settings, each, group in zip(variants, changed, drawn, strict=True)
    ]


FINEST = 1e-6
"""The smallest tolerance: a search for less would not end."""
LOWEST = 2.0**-12
"""The load below which the search ends."""
AT_ONCE = 0.02
"""Share of a run's time in which all requests arrive, below which a larger load changes nothing."""


def _search(scenario: Scenario, slo: SLO, share: float, tolerance: float) -> Search:
    name = scenario.load_setting
    runs: dict[float, Run] = {}

    def meets(load: float) -> bool:
        runs[load] = simulate(scenario.with_setting(name, load), slo)
        return runs[load].metrics["slo_attainment"] >= share

    def at_once(load: float) -> bool:
        metrics = runs[load].metrics
        return metrics["num_requests"] <= AT_ONCE * metrics["seconds"] * load * base_rate

    def alone(load: float) -> bool:
        metrics = runs[load].metrics
        return metrics["mean_batch"] < 1.01 and metrics["longest_wait"] < 1e-6

    base_rate = _base_rate(scenario)
    load = float(scenario.workload_settings.get(name) or 1.0)
    if meets(load):
        low, high = load, load * 2
        while meets(high):
            if at_once(high):
                return Search(math.inf, runs)
            low, high = high, high * 2
    else:
        low, high = load / 2, load
        while not meets(low):
            if low < LOWEST or alone(low):
                return Search(0.0, runs)
            low, high = low / 2, low
    while high - low > tolerance * low:
        middle = (low + high) / 2
        if meets(middle):
            low = middle
        else:
            high = middle
    return Search(low, runs)


def _base_rate(scenario: Scenario) -> float:
    """Mean requests a second at load 1."""
    if scenario.load_setting == "rate":
        return 1.0
    count, last = 0, 0.0
    for request in scenario.with_setting("rate_scale", 1.0).make_workload():
        count, last = count + 1, request.arrival
    return count / last if last else math.nan
