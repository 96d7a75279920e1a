"""`leafage sim goodput`: the largest rate under which enough requests meet the service level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leafage.cli import terminal
from leafage.cli.flags import with_flags
from leafage.cli.sim_question import (
    SIM_FLAGS,
    Question,
    make_scenario,
    parse_seeds,
    parse_slo,
    parse_variant,
)
from leafage.cli.sim_show import check_outputs, say_refusals, show_slo, table, write_json, write_report

if TYPE_CHECKING:
    from leafage.sim.goodput import Goodput
    from leafage.sim.result import SLO


@with_flags(SIM_FLAGS)
def goodput(
    *variants: str,
    question: Question | None = None,
    share: float = 0.9,
    seeds: int = 3,
    tolerance: float = 0.02,
    processes: int | None = None,
    json: Path | None = None,
    report: Path | None = None,
    **flags: Any,
) -> None:
    """Find the largest rate under which enough requests meet the service level.

    It is searched by bisection, for each seed apart. The longer the workload, the lower it comes out, for
    queues have more time to grow: compare only what has the same number of requests.

    **Examples**

        leafage sim goodput --slo ttft=2,tpot=100ms
        leafage sim goodput kv=paged kv=reserved-oracle kv=reserved-max --max-model-len 2048 --requests 600
        leafage sim goodput hardware=l4 hardware=a100-80gb -m llama-3.1-8b --report devices.html

    Parameters
    ----------
    variants
        Configurations to compare: each is NAME=VALUE, or several of these joined by commas.
    share
        Of the requests that must meet the level.
    seeds
        Workloads that are drawn; the table shows the median and the range.
    tolerance
        Of the rate, relative, at which the search ends.
    processes
        Searches that run side by side; default: the CPUs that this process may use.
    json
        Write every metric of every run to this file; `--json=-` writes to stdout instead of the table.
    report
        Write a page with plots to this file.
    """
    from leafage.resources import available_cpus
    from leafage.sim import goodput as searching
    from leafage.sim.results_json import goodput_as_dict

    check_outputs(json, report)
    question = question or Question()
    slo = parse_slo(question.slo)
    scenario = make_scenario(question, flags)
    settings = [parse_variant(scenario, text) for text in variants] or [{}]
    with terminal.CountProgress() as progress:
        found = searching.goodput(
            scenario,
            settings,
            slo=slo,
            share=share,
            seeds=parse_seeds(seeds),
            tolerance=tolerance,
            processes=processes or available_cpus(),
            on_progress=lambda done, total: progress("searching", done, total),
        )
    if str(json) != "-":
        _print(found, slo, share)
    say_refusals(run for each in found for search in each.searches for run in search.runs.values())
    if json is not None:
        write_json(json, goodput_as_dict(scenario, found, slo, share))
    if report is not None:
        from leafage.sim.report import goodput_page

        write_report(report, goodput_page(scenario, found, slo, share))


def _print(found: Sequence[Goodput], slo: SLO, share: float) -> None:
    from leafage.sim.goodput import show_rate

    console = terminal.print_console()
    console.print(
        f"largest rate at which {100 * share:g} % of the requests meet {show_slo(slo)}", style="bold"
    )
    first = found[0].rate.median
    shown = table("", "REQ/S", "RANGE", "" if len(found) == 1 else "AGAINST THE FIRST")
    for each in found:
        rate = each.rate
        ratio = f"{rate.median / first:.2f}x" if len(found) > 1 and math.isfinite(first) and first else ""
        span = f"{show_rate(rate.low)} to {show_rate(rate.high)}" if len(rate.values) > 1 else ""
        shown.add_row(each.label, show_rate(rate.median), span, ratio)
    console.print(shown)
    for each in found:
        if each.load_setting == "rate_scale" and math.isfinite(each.rate.median):
            scale = each.rate.median / each.base_rate
            terminal.say(
                f"{each.label}: {scale:.2f} times the recorded {each.base_rate:.2f} requests a second"
            )
        if math.isinf(each.rate.high):
            terminal.say(f"{each.label}: every rate meets the level; a longer workload may tell more")
        if each.rate.low == 0:
            terminal.say(f"{each.label}: no rate meets the level")
