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
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)
