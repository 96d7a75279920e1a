"""Plots of results, as SVG text for a page."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from leafage.errors import UnsupportedError
from leafage.sim.timeline import HELD

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from leafage.sim.experiments import Point, Run, Spread
    from leafage.sim.goodput import Goodput
    from leafage.sim.result import SLO
    from leafage.sim.summary import Metric

COLORS = ("#1f7a4d", "#d1495b", "#2f6db5", "#e09f1f", "#7b4fa3", "#56666b", "#1b9aaa", "#9a5b2d")
"""Of lines: told apart by people who see no red or no green, and in grey by their lightness."""

KIND_STYLE: dict[Any, Any] = {
    "stored": ("stored", "#1f7a4d"),
    "reservation": ("reserved for later tokens", "#e9b44c"),
    "internal": ("internal fragmentation", "#d1495b"),
    "external": ("external fragmentation", "#7b4fa3"),
    "pinned": ("pinned", "#2f6db5"),
    "cached": ("cached prefixes", "#a9cfe0"),
}
"""Kinds of slots from the bottom of a stack to its top; what is left is free."""

SIZE = (5.0, 2.9)
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "leafage",
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a9499",
    "axes.labelcolor": "#3c474b",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e3e8ea",
    "xtick.color": "#3c474b",
    "ytick.color": "#3c474b",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
}


def check_matplotlib() -> None:
    """Raises:
    UnsupportedError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(
            "plots need matplotlib, which is not installed", remedy="install it with pip install matplotlib"
        ) from error


def draw(paint: Callable[[Axes], None], *, size: tuple[float, float] = SIZE) -> str:
    """A figure of one plot as SVG text, the same bytes for the same data.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    check_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        paint(figure.add_subplot())
        return _svg(figure)


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    svg = text.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)


# -- over time -----------------------------------------------------------------------------------


def memory_over_time(run: Run) -> str:
    """Slots of the KV cache by kind, stacked."""
    timeline = run.timeline
    assert timeline is not None

    def paint(axes: Axes) -> None:
        edges, floor = timeline.edges, np.zeros(len(timeline))
        for kind, (label, color) in KIND_STYLE.items():
            share = 100 * timeline.slots(kind) / run.num_slots
            if kind not in HELD:  # while nobody runs it may be more than what is left
                share = np.minimum(share, 100 - floor)
            if share.max(initial=0.0) < 0.05 and kind != "stored":
                continue
            axes.stairs(
                floor + share, edges, baseline=floor, fill=True, color=color, label=label, linewidth=0
            )
            floor = floor + share
        axes.set(ylim=(0, 100), xlim=(0, edges[-1]), xlabel="seconds", ylabel="% of the KV cache")
        legend(axes, columns=3)

    return draw(paint)


def batch_over_time(runs: Sequence[tuple[str, Run]]) -> str:
    """Running sequences; of a single run the waiting requests as well."""

    def paint(axes: Axes) -> None:
        for (label, run), color in zip(runs, _colors(len(runs)), strict=True):
            timeline = run.timeline
            assert timeline is not None
            name = label if len(runs) > 1 else "running sequences"
            _steps(axes, timeline.batch, timeline.edges, color, name)
            if len(runs) == 1:
                _steps(axes, timeline.waiting, timeline.edges, COLORS[3], "waiting requests")
        axes.set(xlabel="seconds", ylabel="running sequences" if len(runs) > 1 else "count")
        axes.set_xlim(0)
        axes.set_ylim(0)
        legend(axes, columns=3)

    return draw(paint)


def throughput_over_time(run: Run) -> str:
    """Output tokens a second, and what an average over the run is."""
    timeline = run.timeline
    assert timeline is not None

    def paint(axes: Axes) -> None:
        rate = timeline.rate("generated_tokens")
        _steps(axes, rate, timeline.edges, COLORS[0])
        mean = run.metrics["throughput"]
        axes.axhline(mean, color=COLORS[5], linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(
            f"mean {mean:,.0f}",
            (1, mean),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            color=COLORS[5],
            fontsize=8.5,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )
        axes.set(xlabel="seconds", ylabel="output tokens a second", xlim=(0, timeline.edges[-1]))
        axes.set_ylim(0)

    return draw(paint)


def hit_rate_over_time(run: Run) -> str:
    """Share of the prompt tokens found in the cache; windows without prompts are left out."""
    timeline = run.timeline
    assert timeline is not None

    def paint(axes: Axes) -> None:
        middle = (timeline.edges[1:] + timeline.edges[:-1]) / 2
        rate = 100 * timeline.hit_rate
        known = ~np.isnan(rate)
        axes.plot(middle[known], rate[known], color=COLORS[2], linewidth=1.2)
        axes.set(
            xlabel="seconds", ylabel="% of prompt tokens cached", ylim=(0, 100), xlim=(0, timeline.edges[-1])
        )

    return draw(paint)


def latency_quantiles(runs: Sequence[tuple[str, Run]], names: Sequence[str], slo: SLO) -> str:
    """Share of the requests below each latency. Dotted verticals: the service level."""

    def paint(axes: Axes) -> None:
        lines = [(label, name, run.quantiles[name]) for label, run in runs for name in names if run.quantiles]
        highest = max((values[-1] for *_, values in lines), default=0.0)
        lowest = min((values[1] for *_, values in lines), default=0.0)
        scale, unit = (1e3, "milliseconds") if highest < 1 else (1.0, "seconds")
        for (label, name, values), color in zip(lines, _colors(len(lines)), strict=True):
            title = ", ".join(part for part in (label, name.upper() if len(names) > 1 else "") if part)
            axes.plot(scale * np.maximum(values, 1e-4), np.arange(101), color=color, label=title or None)
            most = getattr(slo, name, math.inf)
            if math.isfinite(most) and (len(names) > 1 or label == lines[0][0]):
                line = color if len(names) > 1 else COLORS[5]
                axes.axvline(scale * most, color=line, linewidth=1.2, linestyle=(0, (1, 2)))
                highest = max(highest, most)
        if highest > 20 * lowest > 0:
            _logarithmic(axes.xaxis)
            axes.set_xlim(scale * max(lowest, 1e-4) / 1.3, scale * highest * 1.3)
        else:
            axes.set_xlim(0)
        axes.set(ylim=(0, 101), xlabel=unit, ylabel="% of requests")
        legend(axes, columns=3)

    return draw(paint)


# -- a metric against something ------------------------------------------------------------------


def metric_against_setting(points: Sequence[Point], metric: Metric) -> str:
    """A line over the first setting's values when they are numbers, bars otherwise; one for each value of the
    second. Bands and whiskers are the range over seeds."""
    first, *second = points[0].settings
    lines: dict[Any, list[Point]] = {}
    for point in points:
        if point.error is None:
            lines.setdefault(point.settings[second[0]] if second else None, []).append(point)
    values = list(dict.fromkeys(point.settings[first] for point in points))
    numeric = len(values) > 1 and all(isinstance(value, int | float) for value in values)

    def paint(axes: Axes) -> None:
        highest = max((p.spread(metric.name).high for group in lines.values() for p in group), default=0.0)
        scale, unit = _scale(metric, highest)
        for number, (name, group) in enumerate(lines.items()):
            color = _colors(len(lines))[number]
            spreads = [point.spread(metric.name) for point in group]
            at = [
                point.settings[first] if numeric else values.index(point.settings[first]) for point in group
            ]
            mean = [scale * spread.mean for spread in spreads]
            low, high = ([scale * getattr(s, end) for s in spreads] for end in ("low", "high"))
            label = None if name is None else str(name)
            if numeric:
                axes.plot(at, mean, color=color, marker="o", markersize=4, label=label)
                axes.fill_between(at, low, high, color=color, alpha=0.15, linewidth=0)
            else:
                width = 0.7 / len(lines)
                where = [position + (number - (len(lines) - 1) / 2) * width for position in at]
                errors = [np.subtract(mean, low), np.subtract(high, mean)]
                axes.bar(where, mean, width * 0.92, color=color, label=label, yerr=errors, ecolor="#3c474b")
        axes.set_ylabel(f"{metric.title}{unit}")
        axes.set_xlabel(first.replace("_", " "))
        if numeric:
            _spaced(axes, values)
        else:
            axes.set_xticks(range(len(values)), [str(value) for value in values])
        _grounded(axes, metric)
        if second:
            legend(axes, columns=3, title=second[0].replace("_", " "))

    return draw(paint)


def metric_against_rate(found: Sequence[Goodput], metric: Metric, *, level: float | None = None) -> str:
    """All runs of searches: one line for each variant through the runs of all seeds. `level` is what the
    metric must keep."""

    def paint(axes: Axes) -> None:
        curves = [each.curves(metric.name) for each in found]
        known = [y for group in curves for curve in group for _, y in curve if not math.isnan(y)]
        scale, unit = _scale(metric, max(known, default=0.0))
        shown = [x for group in curves for curve in group for x, _ in curve]
        for each, group, color in zip(found, curves, _colors(len(found)), strict=True):
            for number, curve in enumerate(group):
                rates, values = [x for x, _ in curve], [scale * y for _, y in curve]
                label = each.label if len(found) > 1 and number == 0 else None
                axes.plot(rates, values, color=color, label=label, marker=".", linewidth=1.3, alpha=0.8)
        if level is not None and math.isfinite(level):
            axes.axhline(scale * level, color=COLORS[5], linewidth=1, linestyle=(0, (4, 3)))
        axes.set(xlabel="requests a second", ylabel=f"{metric.title}{unit}")
        _spaced(axes, shown)
        _grounded(axes, metric)
        legend(axes, columns=2)

    return draw(paint)


def bars(
    labels: Sequence[str], spreads: Sequence[Spread], metric: Metric, colors: Sequence[str] | None = None
) -> str:
    """A bar for each variant; whiskers are the range over seeds."""

    def paint(axes: Axes) -> None:
        scale, unit = _scale(metric, max((s.high for s in spreads), default=0.0))
        mean = [scale * spread.mean for spread in spreads]
        errors = [[scale * (s.mean - s.low) for s in spreads], [scale * (s.high - s.mean) for s in spreads]]
        positions = range(len(labels))
        axes.barh(positions, mean, 0.62, color=colors or _colors(len(labels)), xerr=errors, ecolor="#3c474b")
        axes.set_yticks(positions, labels)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
        axes.set_xlabel(f"{metric.title}{unit}")
        for position, value, spread in zip(positions, mean, spreads, strict=True):
            axes.annotate(
                metric.show(spread.mean),
                (max(value, scale * spread.high), position),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                fontsize=8.5,
                color="#3c474b",
            )
        axes.margins(x=0.18)

    return draw(paint, size=(SIZE[0], max(1.5, 0.75 + 0.42 * len(labels))))


def memory_bars(points: Sequence[Point]) -> str:
    """What the KV cache was used for, time-weighted, of each variant."""
    names = {
        "stored": "stored",
        "reservation": "waste_reservation",
        "internal": "waste_internal",
        "external": "waste_external",
        "cached": "cached",
    }

    def paint(axes: Axes) -> None:
        positions, left = range(len(points)), np.zeros(len(points))
        for kind, metric in names.items():
            label, color = KIND_STYLE[kind]
            share = np.array([100 * point.spread(metric).mean for point in points])
            share = np.nan_to_num(share)
            if share.max() < 0.05:
                continue
            axes.barh(positions, share, 0.62, left=left, color=color, label=label)
            left += share
        axes.set_yticks(positions, [point.label for point in points])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
        axes.set(xlim=(0, 100), xlabel="% of the KV cache")
        legend(axes, columns=3)

    return draw(paint, size=(SIZE[0], max(1.9, 1.25 + 0.42 * len(points))))


# -- details -------------------------------------------------------------------------------------


def _steps(axes: Axes, values: Any, edges: Any, color: str, label: str | None = None) -> None:
    axes.stairs(values, edges, baseline=None, color=color, label=label, linewidth=1.3)


def _colors(count: int) -> list[str]:
    return [COLORS[number % len(COLORS)] for number in range(count)]


def _scale(metric: Metric, highest: float) -> tuple[float, str]:
    """What values are multiplied by, and how the axis names their unit."""
    if metric.unit == "share":
        return 100.0, " (%)"
    if metric.unit == "s":
        return (1e3, " (milliseconds)") if highest < 1 else (1.0, " (seconds)")
    return 1.0, "" if metric.unit in ("times", "sequences", "requests") else f" ({metric.unit})"


def _grounded(axes: Axes, metric: Metric) -> None:
    """Latencies that spread over decades on a logarithmic axis, everything else from 0."""
    low, high = axes.dataLim.ymin, axes.dataLim.ymax
    if metric.unit == "s" and low > 0 and high > 20 * low:
        _logarithmic(axes.yaxis)
    elif metric.unit == "share":
        axes.set_ylim(0, 102 if high > 50 else None)
    else:
        axes.set_ylim(0)


def _spaced(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic axis where the values spread over decades."""
    if values and min(values) > 0 and max(values) >= 20 * min(values):
        _logarithmic(axes.xaxis)


def _logarithmic(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = axis.get_data_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 500 * low else (1,), numticks=9))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_locator(NullLocator())


def legend(axes: Axes, *, columns: int, title: str | None = None) -> None:
    """Above the plot, so that it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        return
    longest = max(len(label) for label in labels)
    columns = max(1, min(columns, len(labels), 70 // (longest + 6)))
    axes.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=columns,
        title=title,
        alignment="left",
        borderaxespad=0.3,
        handlelength=1.2,
        columnspacing=1.4,
    )
