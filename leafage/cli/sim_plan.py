"""`leafage sim plan`: how many devices, and which settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leafage.cli import terminal
from leafage.cli.flags import with_flags
from leafage.cli.sim_question import SIM_FLAGS, Question, make_scenario, parse_slo
from leafage.cli.sim_show import check_outputs, say_refusals, show_slo, table, write_json, write_report

if TYPE_CHECKING:
    from leafage.sim.plan import Plan, Size


@with_flags(SIM_FLAGS)
def plan(
    question: Question | None = None,
    *,
    share: float = 0.9,
    max_devices: int = 64,
    processes: int | None = None,
    json: Path | None = None,
    report: Path | None = None,
    **flags: Any,
) -> int:
    """Find how many devices a workload needs, and how to set them up.

    Counts the fewest devices under which enough requests meet the service level: replicas of one engine, to
    which requests go in turn (or to the least loaded: --set router=least_loaded), for each tensor parallel
    degree that fits. Then tries token budgets, block sizes, watermarks, policies and routers where they
    matter, and says what paging buys over reserved memory and what bounds the run.
    Exit code 1 when nothing meets the level.

    **Examples**

        leafage sim plan -m llama-3.1-8b --hardware l4 --trace trace.csv --slo ttft=2,tpot=100ms
        leafage sim plan -m llama-3-70b --hardware h100 -w sharegpt --rate 20 --report plan.html

    Parameters
    ----------
    share
        Of the requests that must meet the level.
    max_devices
        Most devices that are tried.
    processes
        Simulations that run side by side; default: the CPUs that this process may use.
    json
        Write every number to this file; `--json=-` writes to stdout instead of the answer.
    report
        Write a page with plots to this file.
    """
    from leafage.resources import available_cpus
    from leafage.sim import plan as planning
    from leafage.sim.results_json import plan_as_dict

    check_outputs(json, report)
    question = question or Question()
    slo = parse_slo(question.slo)
    scenario = make_scenario(question, flags)
    with terminal.Status() as status:
        found = planning.plan(
            scenario,
            slo=slo,
            share=share,
            max_devices=max_devices,
            processes=processes or available_cpus(),
            on_progress=status,
        )
    if str(json) != "-":
        _print(found)
    if found.size is not None and found.size.run is not None:
        say_refusals([found.size.run])
    if json is not None:
        write_json(json, plan_as_dict(found))
    if report is not None:
        from leafage.sim.report import plan_page

        write_report(report, plan_page(found))
    return 0 if found.best is not None else 1


def _print(found: Plan) -> None:
    from leafage.sim import plan_words as words
    from leafage.sim.report import describe

    console = terminal.print_console()
    console.print(
        f"{describe(found.scenario)}: {100 * found.share:g} % of the requests within {show_slo(found.slo)}",
        style="dim",
        soft_wrap=True,
    )
    console.print(words.answer(found), style="bold", soft_wrap=True)
    columns = ("DEVICES", "REPLICAS", "WITHIN SLO", "TTFT P90", "TPOT P90", "BATCH", "STORED")
    grid = table("TENSOR PARALLEL", *columns)
    for size in found.sizes:
        grid.add_row(str(size.tensor_parallel), *_cells(size, found.share, len(columns)))
    if found.fewer is not None:
        grid.add_row(
            f"{found.fewer.tensor_parallel}, set as below", *_cells(found.fewer, found.share, len(columns))
        )
    console.print(grid)
    for size in found.sizes:
        if size.error:
            terminal.say(f"tensor parallel {size.tensor_parallel}: {size.error}")
    _list(console, f"Settings, tried {words.describe_stress(found)}", words.describe_settings(found))
    _list(console, "Paging", words.describe_paging(found))


def _cells(size: Size, share: float, count: int) -> list[str]:
    from leafage.sim.summary import METRICS

    if size.run is None:
        return ["-"] * count
    names = ("slo_attainment", "ttft_p90", "tpot_p90", "mean_batch", "stored")
    devices = str(size.num_devices) if size.meets else f"> {size.num_devices}"
    if size.run.stopped:  # numbers of its beginning would pass for those of the whole
        return [devices, str(size.replicas), f"below {100 * share:g} %", *["-"] * (len(names) - 1)]
    shown = [METRICS[name].show(size.run.metrics[name]) for name in names]
    return [devices, str(size.replicas), *shown]


def _list(console: Any, title: str, lines: Sequence[str]) -> None:
    if lines:
        console.print(f"\n{title}", style="bold", soft_wrap=True)
        for line in lines:
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
