"""The plots of docs/performance.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "font.size": 9,
    "svg.hashsalt": "leafage",  # the same figures give the same file
    "legend.frameon": False,
}
COLOURS = ("#1b7837", "#5aae61", "#92c5de", "#4393c3", "#2166ac", "#b2182b", "#67001f")
SLOTS = (
    ("distinct", "stored once", "#1b7837"),
    ("duplicates", "stored again: could be shared", "#a6dba0"),
    ("reservation", "reserved, to be written", "#92c5de"),
    ("internal", "internal fragmentation", "#b2182b"),
    ("external", "external fragmentation", "#f4a582"),
    ("cached", "cached, evictable", "#d9d0e3"),
    ("free", "free", "#f0f0f0"),
)
"""Kinds of slots, their names and colours: those of `leafage.core.usage`, but `stored` is in two parts."""
DARK = ("distinct", "internal")
LEAST_LABEL = 0.045  # of the cache: what is narrower has no figure in it


def memory(fragmentation: dict[str, Any], path: Path) -> None:
    """Where the slots of the KV cache are over time: a panel for each workload, a bar for each system."""
    panels: dict[str, list[dict[str, Any]]] = {}
    for row in fragmentation["over_time"]:
        panels.setdefault(row["workload"], []).append(row)
    pyplot = _pyplot()
    with pyplot.rc_context(STYLE | {"axes.grid": False}):
        figure, found = pyplot.subplots(1, len(panels), figsize=(11, 3.6), sharey=True, squeeze=False)
        for axes, (workload, rows) in zip(found[0], panels.items(), strict=True):
            for y, row in enumerate(rows):
                _slots(axes, y, row["shares"])
                axes.text(1.02, y, f"{row['mean_batch']:.1f}", va="center")
            axes.text(1.02, -0.8, "mean batch", va="center", fontsize=8)
            axes.set_title(workload, loc="left", pad=14)
            axes.set_xlim(0, 1)
            axes.set_ylim(len(rows) - 0.5, -0.5)
            axes.set_yticks(range(len(rows)), [row["system"] for row in rows])
            axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"])
            axes.tick_params(axis="y", length=0)
            axes.spines["left"].set_visible(False)
        handles, labels = found[0][0].get_legend_handles_labels()
        figure.supxlabel("% of the KV cache, mean over time", fontsize=9, y=0.13)
        figure.tight_layout(rect=(0, 0.1, 1, 1), w_pad=3)
        figure.legend(handles, labels, loc="lower center", ncols=len(SLOTS), fontsize=8)
        _write(figure, path)


def _slots(axes: Any, y: int, shares: dict[str, float]) -> None:
    """A stacked bar of a system's kinds of slots, with figures where they fit."""
    shares = shares | {"distinct": shares["stored"] - shares["duplicates"]}
    left = 0.0
    for kind, label, colour in SLOTS:
        share = shares[kind]
        axes.barh(
            y, share, left=left, height=0.72, color=colour, edgecolor="white", linewidth=0.6,
            label=label if y == 0 else None,
        )  # fmt: skip
        if share >= LEAST_LABEL:
            shade = "white" if kind in DARK else "black"
            axes.text(
                left + share / 2, y, f"{100 * share:.0f}", ha="center", va="center", color=shade, fontsize=8
            )
        left += share


def decode(growth: dict[str, Any], path: Path) -> None:
    """Milliseconds of a decode step: against batch, a line per context; against context, a line per batch."""
    cells = {(c["batch"], c["context"]): c["seconds"] for c in growth["decode"]["cells"]}
    batches, contexts = (sorted({key[i] for key in cells}) for i in (0, 1))
    pyplot = _pyplot()
    with pyplot.rc_context(STYLE):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.8), sharey=True)
        for context, colour in zip(contexts, COLOURS, strict=False):
            _line(left, [(b, cells[b, context]) for b in batches], f"{context:,}", colour)
        for batch, colour in zip(batches, COLOURS, strict=False):
            _line(right, [(c, cells[batch, c]) for c in contexts], str(batch), colour)
        _axes(left, "sequences in the step", batches, "context")
        _axes(right, "context, tokens", contexts, "batch")
        left.set_ylabel("decode step, ms")
        _save(figure, path)


def scheduler(growth: dict[str, Any], path: Path) -> None:
    """Milliseconds of `schedule`, `update` and both against the running sequences."""
    cells = growth["scheduler"]["cells"]
    counts = [cell["sequences"] for cell in cells]
    pyplot = _pyplot()
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(figsize=(5.5, 3.6))
        for name, colour in (("schedule", COLOURS[0]), ("update", COLOURS[3])):
            _line(axes, [(cell["sequences"], cell[name]) for cell in cells], name, colour)
        both = [(cell["sequences"], cell["schedule"] + cell["update"]) for cell in cells]
        _line(axes, both, "both", COLOURS[5])
        _axes(axes, "running sequences", counts, None)
        axes.set_ylabel("scheduler, ms a step")
        _save(figure, path)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _line(axes: Any, points: list[tuple[int, float | None]], label: str, colour: str) -> None:
    kept = [(x, 1e3 * seconds) for x, seconds in points if seconds is not None]
    axes.plot(*zip(*kept, strict=True), marker="o", markersize=3, linewidth=1.4, label=label, color=colour)


def _axes(axes: Any, label: str, ticks: list[int], legend: str | None) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(label)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], minor=False)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.legend(title=legend, fontsize=8, ncols=2)


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    _write(figure, path)


def _write(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)
