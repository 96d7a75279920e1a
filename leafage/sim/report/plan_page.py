"""The page of a plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from leafage.sim.experiments import Spread
from leafage.sim.plan import Gain, Plan, Size
from leafage.sim.plan_words import answer, describe_paging, describe_stress, describe_tuning
from leafage.sim.report import figures
from leafage.sim.report.page import Page
from leafage.sim.summary import METRICS, Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from leafage.sim.experiments import Run

SHOWN = ("slo_attainment", "ttft_p90", "tpot_p90", "throughput", "mean_batch", "stored")


def fill_plan_page(page: Page, plan: Plan) -> str:
    """Put a plan on a page: the answer, devices, settings, paging."""
    page.notes = [answer(plan), *page.notes]
    size = plan.size
    if size is not None and size.run is not None:
        page.tiles = [(str(size.num_devices), f"x {plan.scenario.hardware.name}")]
        page.tiles = [*page.tiles, *((METRICS[n].show(size.run.metrics[n]), METRICS[n].title) for n in SHOWN)]
    attained = _attainment_against_devices(plan)
    note = "dashed: the share that is wanted"
    if any(run.stopped for each in plan.sizes for run in each.tried.values()):
        note += "; triangles: fewer, and stopped once that was certain"
    page.figures("Devices", [("Requests within the level", note, attained)])
    _tried(page, "What was tried", plan.sizes, plan.share)
    if plan.fewer is not None:
        _tried(page, "With the settings chosen below", [plan.fewer], plan.share)
    for size in plan.sizes:
        if size.error:
            page.text(f"Tensor parallel {size.tensor_parallel}: {size.error}")
    if plan.tunings:
        page.figures(
            f"Settings, tried {describe_stress(plan)}",
            [
                (
                    tuning.name.replace("_", " "),
                    describe_tuning(tuning),
                    figures.bars(
                        [str(value) for value in tuning.runs],
                        [Spread((run.metrics["slo_attainment"],)) for run in tuning.runs.values()],
                        METRICS["slo_attainment"],
                        colors=[_color(value == tuning.chosen) for value in tuning.runs],
                    ),
                )
                for tuning in plan.tunings
            ],
        )
    _paging(page, plan)
    return page.html()


def _tried(page: Page, title: str, sizes: Sequence[Size], share: float) -> None:
    """A line for each number of replicas."""

    def shown(run: Run) -> list[str]:
        if run.stopped:  # numbers of its beginning would pass for those of the whole
            return [f"below {100 * share:g} %", *["-"] * (len(SHOWN) - 1)]
        return [METRICS[name].show(run.metrics[name]) for name in SHOWN]

    page.table(
        title,
        ("tensor parallel", "devices", "replicas", *(METRICS[name].title for name in SHOWN)),
        [
            [
                (str(size.tensor_parallel), False),
                (str(size.tensor_parallel * count), False),
                (str(count), False),
            ]
            + [(text, False) for text in shown(run)]
            for size in sizes
            for count, run in sorted(size.tried.items())
        ],
    )


def _paging(page: Page, plan: Plan) -> None:
    known = [gain for gain in plan.gains if not gain.error]
    if not known:
        return
    first = known[0]
    assert first.paged is not None and first.reserved is not None
    title = "Paged memory against memory reserved for each answer's exact length"
    throughput = _gains(known, [gain.throughput for gain in known])
    attainment = _gains(known, [gain.attainment for gain in known])
    page.figures(
        title,
        [
            ("Paged", "what the KV cache holds", figures.memory_over_time(first.paged)),
            ("Reserved", "what the KV cache holds", figures.memory_over_time(first.reserved)),
            ("Throughput", "gain of paging", throughput),
            ("Requests within the level", "gain of paging in points", attainment),
        ],
    )
    for sentence in describe_paging(plan):
        page.text(sentence)


def _gains(gains: Sequence[Gain], values: Sequence[float]) -> str:
    metric = Metric("gain", "gain", "share", "higher", "", lambda run, slo: math.nan)
    labels = [gain.label.replace(" (", "\n(") for gain in gains]
    colors = [_color(index == 0) for index in range(len(gains))]
    return figures.bars(labels, [Spread((value,)) for value in values], metric, colors=colors)


def _color(is_chosen: bool) -> str:
    return figures.COLORS[0] if is_chosen else "#a9b8b2"


def _attainment_against_devices(plan: Plan) -> str:
    def paint(axes: Axes) -> None:
        sizes = [size for size in plan.sizes if size.tried]
        for size, color in zip(sizes, figures.COLORS, strict=False):
            points = sorted((size.tensor_parallel * count, run) for count, run in size.tried.items())
            whole = [(devices, run) for devices, run in points if not run.stopped]
            shares = [100 * run.metrics["slo_attainment"] for _, run in whole]
            label = f"tensor parallel {size.tensor_parallel}"
            axes.plot([devices for devices, _ in whole], shares, color=color, marker="o", label=label)
            stopped = [devices for devices, run in points if run.stopped]
            below = [100 * plan.share - 3] * len(stopped)
            axes.plot(stopped, below, color=color, marker="v", markerfacecolor="none", linestyle="none")
        axes.axhline(100 * plan.share, color=figures.COLORS[5], linewidth=1, linestyle=(0, (4, 3)))
        axes.set(xlabel="devices", ylabel="SLO attainment (%)", ylim=(0, 103))
        axes.set_xlim(0)
        axes.locator_params(axis="x", integer=True)
        figures.legend(axes, columns=2)

    return figures.draw(paint)
