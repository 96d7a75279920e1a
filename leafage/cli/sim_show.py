"""How results of `leafage sim` are shown: tables on stdout, JSON, pages."""

from __future__ import annotations

import json as json_format
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leafage.cli import terminal
from leafage.errors import InvalidParameterError

if TYPE_CHECKING:
    from leafage.sim.experiments import Point, Run, Spread
    from leafage.sim.result import SLO
    from leafage.sim.scenario import Scenario
    from leafage.sim.summary import Metric

LATENCIES = ("ttft", "tpot", "e2e")
QUIET_WHEN_ZERO = ("preemptions", "recomputed_tokens", "swap_outs", "swapped_tokens", "evicted_blocks")
"""Metrics that a table leaves out when nothing of the kind happened..."""
ELSEWHERE = ("num_refused", "num_failed", "num_requests", "seconds", "steps")
"""...or that it says in another line."""


def print_run(scenario: Scenario, run: Run, slo: SLO) -> None:
    """All metrics of one run."""
    from leafage.sim.summary import METRICS

    console = terminal.print_console()
    metrics = run.metrics
    console.print(headline(scenario, run), style="bold", soft_wrap=True)
    console.print(
        f"{metrics['num_requests']:,.0f} requests in {metrics['seconds']:,.1f} simulated seconds, "
        f"{metrics['steps']:,.0f} steps",
        style="dim",
    )
    latencies = table("", "MEAN", "P50", "P90", "P99")
    for name in LATENCIES:
        shown = [
            METRICS[f"{name}_{of}"].show(metrics[f"{name}_{of}"]) for of in ("mean", "p50", "p90", "p99")
        ]
        latencies.add_row(name.upper(), *shown)
    console.print(latencies)
    rows = [
        (metric, metrics[name])
        for name, metric in METRICS.items()
        if name.split("_")[0] not in LATENCIES
        and name not in ELSEWHERE
        and not (name in QUIET_WHEN_ZERO and metrics[name] == 0)
    ]
    half = -(-len(rows) // 2)
    grid = table("", "", "", "")
    for index in range(half):
        cells = [cell for metric, value in rows[index::half] for cell in _cells(metric, value, slo)]
        grid.add_row(*cells)
    console.print(grid)


def headline(scenario: Scenario, run: Run) -> str:
    """'opt-13b on a100-40gb, KV cache of 11,968 tokens; sharegpt at 3 requests a second'."""
    from leafage.sim.report import describe

    return f"{describe(scenario)}; KV cache of {run.num_slots:,} tokens"


def _cells(metric: Metric, value: float, slo: SLO) -> tuple[str, str]:
    title = metric.title
    if metric.name == "slo_attainment":
        title += f" ({show_slo(slo)})"
    return title, metric.show(value)


def show_slo(slo: SLO) -> str:
    """'TTFT 2 s, TPOT 100 ms'."""
    from leafage.sim.summary import show_seconds

    parts = (("TTFT", slo.ttft), ("TPOT", slo.tpot))
    return ", ".join(f"{name} {show_seconds(most)}" for name, most in parts if math.isfinite(most))


def print_points(points: Sequence[Point], metrics: Sequence[Metric], *, transposed: bool = False) -> None:
    """A line for each point and a column for each metric, or the other way round; the best is bold."""
    columns = [[point.spread(metric.name) for point in points] for metric in metrics]
    cells = [
        [_bold(show_spread(metric, spread), spread.mean == best) for spread in column]
        for metric, column in zip(metrics, columns, strict=True)
        for best in [_best(metric, column)]
    ]
    titles = [metric.title for metric in metrics]
    console = terminal.print_console()
    if transposed:
        grid = table("", *(point.label for point in points))
        for title, row in zip(titles, cells, strict=True):
            grid.add_row(title, *row)
    else:
        names = list(points[0].settings)
        grid = table(*names, *titles, left=len(names))
        for index, point in enumerate(points):
            values = [_short(value) for value in point.settings.values()]
            grid.add_row(*values, *(column[index] for column in cells))
    console.print(grid)
    for point in points:
        if point.error:
            terminal.say(f"{point.label}: {point.error}")


def show_spread(metric: Metric, spread: Spread) -> str:
    """The mean, and half of the range over the seeds where there are several."""
    shown = metric.show(spread.mean)
    known = [value for value in spread.values if not math.isnan(value)]
    half = (max(known) - min(known)) / 2 if known else 0.0
    if not half:
        return shown
    if metric.unit == "share":
        return f"{shown} ± {100 * half:.1f}"
    return f"{shown} ± {100 * half / spread.mean:.0f} %"


def _bold(text: str, is_best: bool) -> str:
    return f"[bold]{text}[/bold]" if is_best else text


def _best(metric: Metric, spreads: Sequence[Spread]) -> float | None:
    """The best mean, unless all are alike."""
    means = {spread.mean for spread in spreads if not math.isnan(spread.mean)}
    if metric.better is None or len(means) < 2:
        return None
    return max(means) if metric.better == "higher" else min(means)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def table(*headers: str, left: int = 1) -> Any:
    """A grid without lines; the first columns to the left, numbers to the right."""
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    grid.show_header = any(headers)
    for number, header in enumerate(headers):
        is_left = number < left or (not any(headers) and number % 2 == 0)
        grid.add_column(header, justify="left" if is_left else "right", no_wrap=not is_left)
    return grid


def say_refusals(runs: Iterable[Run]) -> None:
    """How many requests could not be answered, and why."""
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    answered = failed = 0
    for run in runs:
        answered += int(run.metrics.get("num_requests", 0))
        failed += int(run.metrics.get("num_failed", 0))
        for reason, refusals in run.refusals.items():
            counts[reason] += refusals.count
            first.setdefault(reason, refusals.first)
    total = answered + failed + counts.total()
    for reason, count in counts.most_common():
        terminal.say(f"{count:,} of {total:,} requests were refused. The first: {first[reason]}")
    if failed:
        terminal.say(f"{failed:,} of {total:,} requests ended with an error")


def check_outputs(json: Path | None, report: Path | None) -> None:
    """Refuse what could not be written, before anything is simulated.

    Raises:
        InvalidParameterError: there is no such folder.
        UnsupportedError: plots cannot be drawn.
    """
    for path in (json, report):
        if path is not None and not path.expanduser().parent.is_dir():
            raise InvalidParameterError(
                "there is no such folder to write to", value=str(path.parent), remedy="make it first"
            )
    if report is not None:
        from leafage.sim.report.figures import check_matplotlib

        check_matplotlib()


def write_json(path: Path, content: dict[str, Any]) -> None:
    """To a file, or to stdout for `-`."""
    text = json_format.dumps(content, indent=1, allow_nan=False, default=str)
    if str(path) == "-":
        print(text)
        return
    path.write_text(text + "\n", encoding="utf-8")
    terminal.say(f"written: {path}")


def write_report(path: Path, page: str) -> None:
    path.write_text(page, encoding="utf-8")
    terminal.say(f"written: {path}")
