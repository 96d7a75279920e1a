"""Reports: what a command found, as a page with plots."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from leafage.sim.goodput import show_rate
from leafage.sim.report import figures
from leafage.sim.report.page import Page
from leafage.sim.summary import METRICS, Metric, show_seconds

if TYPE_CHECKING:
    from leafage.sim.experiments import Point, Run
    from leafage.sim.goodput import Goodput
    from leafage.sim.plan import Plan
    from leafage.sim.result import SLO
    from leafage.sim.scenario import Scenario

COMPARED = (
    "slo_attainment",
    "throughput",
    "ttft_p90",
    "tpot_p90",
    "e2e_mean",
    "normalized_latency",
    "mean_batch",
    "occupancy",
    "stored",
    "hit_rate",
    "preemptions",
    "longest_wait",
)
"""Metrics of the tables on pages."""


def run_page(scenario: Scenario, run: Run, slo: SLO) -> str:
    """One run: latencies, memory over time, batch over time, throughput over time.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    page = _page(scenario, slo, [run])
    metrics = run.metrics
    page.tiles = [
        (METRICS[name].show(metrics[name]), METRICS[name].title)
        for name in ("slo_attainment", "throughput", "ttft_p90", "tpot_p90", "mean_batch", "stored")
    ]
    page.table(
        "Latencies",
        ("", "mean", "P50", "P90", "P99"),
        [
            [(name.upper(), False)]
            + [(_shown(metrics, f"{name}_{of}"), False) for of in ("mean", "p50", "p90", "p99")]
            for name in ("ttft", "tpot", "e2e")
        ],
    )
    plots = [
        ("Memory", "what the KV cache holds", figures.memory_over_time(run)),
        ("Batch", "running sequences, and requests that wait", figures.batch_over_time([("", run)])),
        (
            "Latency",
            "share of the requests below; dotted: the service level",
            figures.latency_quantiles([("", run)], ("ttft", "tpot", "e2e"), slo),
        ),
        ("Throughput", "output tokens of each second", figures.throughput_over_time(run)),
    ]
    if metrics["hit_rate"] > 0:
        plots.append(("Prefix hits", "prompt tokens that were cached", figures.hit_rate_over_time(run)))
    page.figures("The run", plots)
    page.table(
        "All metrics",
        ("", "value", "what it is"),
        [
            [(metric.title, False), (metric.show(metrics[name]), False), (metric.help, False)]
            for name, metric in METRICS.items()
            if name.split("_")[0] not in ("ttft", "tpot", "e2e")
        ],
    )
    return page.html()


def sweep_page(scenario: Scenario, points: Sequence[Point], metrics: Sequence[Metric], slo: SLO) -> str:
    """A sweep: each metric against the setting, and all numbers."""
    page = _page(scenario, slo, [run for point in points for run in point.runs], _errors(points))
    names = list(points[0].settings)
    against = " and ".join(name.replace("_", " ") for name in names)
    page.figures(
        f"Against {against}",
        [
            (_capital(metric.title), metric.help, figures.metric_against_setting(points, metric))
            for metric in metrics
        ],
    )
    best = {metric.name: _best(metric, points) for metric in metrics}
    page.table(
        "Numbers",
        [*names, *(metric.title for metric in metrics)],
        [
            [(_value(value), False) for value in point.settings.values()]
            + [_cell(metric, point, best[metric.name]) for metric in metrics]
            for point in points
        ],
    )
    return page.html()


def compare_page(scenario: Scenario, points: Sequence[Point], slo: SLO) -> str:
    """Variants side by side: bars, what the memory was used for, batch over time, and all numbers."""
    page = _page(scenario, slo, [run for point in points for run in point.runs], _errors(points))
    ran = [point for point in points if point.error is None]
    labels = [point.label for point in ran]
    if ran:
        names = ["throughput", "slo_attainment", "ttft_p90", "tpot_p90"]
        if any(point.spread("hit_rate").mean for point in ran):
            names.append("hit_rate")
        page.figures(
            "Side by side",
            [
                (
                    _capital(METRICS[name].title),
                    METRICS[name].help,
                    figures.bars(labels, [point.spread(name) for point in ran], METRICS[name]),
                )
                for name in names
            ]
            + [("Memory", "what the KV cache was used for, time-weighted", figures.memory_bars(ran))],
        )
        first = [(point.label, point.runs[0]) for point in ran]
        page.figures(
            "Latency",
            [
                (
                    name.upper(),
                    "share of the requests below, first seed; dotted: the service level",
                    figures.latency_quantiles(first, (name,), slo),
                )
                for name in ("ttft", "tpot")
            ],
        )
        batch = figures.batch_over_time(first)
        plots = [("Batch", "running sequences, first seed", batch)]
        plots += [
            (f"Memory: {point.label}", "first seed", figures.memory_over_time(point.runs[0]))
            for point in ran[:6]
        ]
        page.figures("Over time", plots)
    shown = [METRICS[name] for name in COMPARED]
    best = {metric.name: _best(metric, points) for metric in shown}
    page.table(
        "Numbers",
        ["", *(point.label for point in points)],
        [
            [(metric.title, False), *(_cell(metric, point, best[metric.name]) for point in points)]
            for metric in shown
        ],
    )
    return page.html()


def goodput_page(scenario: Scenario, found: Sequence[Goodput], slo: SLO, share: float) -> str:
    """Goodput of variants, and latency against rate from the runs of the search."""
    runs = [run for each in found for search in each.searches for run in search.runs.values()]
    page = _page(scenario, slo, runs)
    metric = Metric("goodput", "requests a second", "req/s", "higher", "", lambda run, slo: math.nan)
    page.tiles = [(f"{show_rate(each.rate.median)} req/s", f"goodput: {each.label}") for each in found[:8]]
    plots = []
    if all(math.isfinite(each.rate.high) for each in found) and len(found) > 1:
        drawn = figures.bars([each.label for each in found], [each.rate for each in found], metric)
        plots.append(("Goodput", "the largest rate; whiskers: range over seeds", drawn))
    levels = {"slo_attainment": share, "ttft_p90": slo.ttft, "tpot_p90": slo.tpot}
    for name in ("slo_attainment", "ttft_p90", "tpot_p90", "normalized_latency", "throughput"):
        drawn = figures.metric_against_rate(found, METRICS[name], level=levels.get(name))
        dashed = "; dashed: the service level" if math.isfinite(levels.get(name, math.inf)) else ""
        plots.append((_capital(METRICS[name].title), METRICS[name].help + dashed, drawn))
    page.figures("Against the rate", plots)
    page.table(
        "Goodput",
        ("", "median", "lowest", "highest", "seeds"),
        [
            [(each.label, False)]
            + [(show_rate(rate), False) for rate in (each.rate.median, each.rate.low, each.rate.high)]
            + [(str(len(each.searches)), False)]
            for each in found
        ],
    )
    return page.html()


def plan_page(plan: Plan) -> str:
    """A plan: the answer, how many devices, which settings, what paging buys."""
    from leafage.sim.report.plan_page import fill_plan_page

    runs = [plan.size.run] if plan.size is not None and plan.size.run is not None else []
    return fill_plan_page(_page(plan.scenario, plan.slo, runs), plan)


def describe(scenario: Scenario) -> str:
    """A scenario in a line: 'opt-13b on 2 x a100-40gb, sharegpt (rate=3)'."""
    devices = f"{scenario.num_devices} x " if scenario.num_devices > 1 else ""
    settings = ", ".join(f"{name}={_value(value)}" for name, value in scenario.workload_settings.items())
    name = scenario.workload.replace("\\", "/").rsplit("/", 1)[-1]
    return f"{scenario.spec.name} on {devices}{scenario.hardware.name}, {name}" + (
        f" ({settings})" if settings else ""
    )


def _page(scenario: Scenario, slo: SLO, runs: Iterable[Run], notes: Sequence[str] = ()) -> Page:
    return Page(
        title=f"{scenario.spec.name} on {scenario.hardware.name}",
        subtitle=f"{describe(scenario)}. Service level: TTFT {show_seconds(slo.ttft)}, "
        f"TPOT {show_seconds(slo.tpot)}.",
        notes=[*notes, *_refused(runs)],
        settings=json.dumps(scenario.as_dict(), indent=1, default=str),
    )


def _errors(points: Sequence[Point]) -> list[str]:
    return [f"{point.label}: {point.error}" for point in points if point.error]


def _refused(runs: Iterable[Run]) -> list[str]:
    counts: dict[str, int] = {}
    for run in runs:
        for refusals in run.refusals.values():
            counts[refusals.first] = counts.get(refusals.first, 0) + refusals.count
    return [f"{count:,} requests were refused. The first: {first}" for first, count in counts.items()]


def _best(metric: Metric, points: Sequence[Point]) -> float | None:
    means = {point.spread(metric.name).mean for point in points}
    means = {mean for mean in means if not math.isnan(mean)}
    if metric.better is None or len(means) < 2:
        return None
    return max(means) if metric.better == "higher" else min(means)


def _cell(metric: Metric, point: Point, best: float | None) -> tuple[str, bool]:
    mean = point.spread(metric.name).mean
    return metric.show(mean), mean == best


def _shown(metrics: dict[str, float], name: str) -> str:
    return METRICS[name].show(metrics[name])


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
