"""Results as plain values, for JSON. NaN and infinity, which JSON lacks, become null and "inf"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from leafage.core.usage import KINDS
from leafage.sim.experiments import Point, Run
from leafage.sim.goodput import Goodput
from leafage.sim.plan import Plan, Size
from leafage.sim.plan_words import answer, describe_paging
from leafage.sim.result import SLO, Floats
from leafage.sim.scenario import Scenario
from leafage.sim.timeline import Timeline

FORMAT = 1
"""Of these files; raised when a name changes its meaning."""


def run_as_dict(scenario: Scenario, run: Run, slo: SLO) -> dict[str, Any]:
    """One run, with its timeline."""
    assert run.timeline is not None
    return {
        "format": FORMAT,
        "scenario": scenario.as_dict(),
        "slo": asdict(slo),
        **_run(run),
        "timeline": _timeline(run.timeline),
    }


def points_as_dict(scenario: Scenario, points: Sequence[Point], slo: SLO) -> dict[str, Any]:
    """A sweep or a comparison: all metrics of all seeds."""
    return {
        "format": FORMAT,
        "scenario": scenario.as_dict(),
        "slo": asdict(slo),
        "points": [
            {"settings": point.settings, "runs": [_run(run) for run in point.runs]} for point in points
        ],
    }


def goodput_as_dict(scenario: Scenario, found: Sequence[Goodput], slo: SLO, share: float) -> dict[str, Any]:
    """A search, with all runs that it made."""
    return {
        "format": FORMAT,
        "scenario": scenario.as_dict(),
        "slo": asdict(slo),
        "share": share,
        "variants": [
            {
                "settings": each.settings,
                "load_setting": each.load_setting,
                "base_rate": _plain(each.base_rate),
                "goodput": [_plain(rate) for rate in each.rate.values],
                "searches": [
                    {
                        "load": _plain(search.load),
                        "runs": [{"load": load, **_run(run)} for load, run in search.runs.items()],
                    }
                    for search in each.searches
                ],
            }
            for each in found
        ],
    }


def _size(size: Size) -> dict[str, Any]:
    return {
        "tensor_parallel": size.tensor_parallel,
        "replicas": size.replicas,
        "meets": size.meets,
        "error": size.error,
        "bound": asdict(size.bound) if size.bound else None,
        "tried": [{"replicas": count, **_run(run)} for count, run in sorted(size.tried.items())],
    }


def plan_as_dict(plan: Plan) -> dict[str, Any]:
    """A plan, with all that was tried for it."""
    return {
        "format": FORMAT,
        "answer": answer(plan),
        "scenario": plan.scenario.as_dict(),
        "slo": asdict(plan.slo),
        "share": plan.share,
        "devices": plan.size.num_devices if plan.size else None,
        "sizes": [_size(size) for size in plan.sizes],
        "fewer": _size(plan.fewer) if plan.fewer else None,
        "stress": plan.stress.as_dict() if plan.stress else None,
        "settings": [
            {
                "name": each.name,
                "default": each.default,
                "chosen": each.chosen,
                "runs": [{"value": value, **_run(run)} for value, run in each.runs.items()],
            }
            for each in plan.tunings
        ],
        "together": _run(plan.together) if plan.together else None,
        "paging": [
            {
                "label": each.label,
                "error": each.error,
                "paged": _run(each.paged) if each.paged else None,
                "reserved": _run(each.reserved) if each.reserved else None,
            }
            for each in plan.gains
        ],
        "bound": asdict(plan.bound) if plan.bound else None,
        "reasons": describe_paging(plan),
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        "metrics": {name: _plain(value) for name, value in run.metrics.items()},
        "refusals": [
            {"reason": reason, "count": refusals.count, "first": refusals.first}
            for reason, refusals in run.refusals.items()
        ],
        "kv_slots": run.num_slots,
        "stopped": run.stopped,
        "error": run.error,
    }


def _timeline(timeline: Timeline) -> dict[str, Any]:
    return {
        "edges": _rounded(timeline.edges),
        "batch": _rounded(timeline.batch),
        "waiting": _rounded(timeline.waiting),
        "generated_tokens_per_second": _rounded(timeline.rate("generated_tokens")),
        "slots": {kind: _rounded(timeline.slots(kind)) for kind in KINDS},
    }


def _rounded(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else float(f"{value:.6g}") for value in values]


def _plain(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else "inf"
