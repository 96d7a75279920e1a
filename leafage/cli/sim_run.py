"""`leafage sim run`: one configuration, one workload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leafage.cli import terminal
from leafage.cli.flags import with_flags
from leafage.cli.sim_question import SIM_FLAGS, Question, make_scenario, parse_slo
from leafage.cli.sim_show import check_outputs, print_run, say_refusals, write_json, write_report


@with_flags(SIM_FLAGS)
def run(
    question: Question | None = None,
    *,
    seed: int = 0,
    json: Path | None = None,
    report: Path | None = None,
    **flags: Any,
) -> None:
    """Simulate one configuration with one workload.

    **Examples**

        leafage sim run --rate 3
        leafage sim run -w trace.csv -m llama-3.1-8b --hardware h100 --report run.html
        leafage sim run --rate 3 --kv reserved-max --max-model-len 2048 --json=-

    Parameters
    ----------
    seed
        Of the workload's arrivals and lengths.
    json
        Write all of it to this file; `--json=-` writes to stdout instead of the table.
    report
        Write a page with plots to this file.
    """
    from leafage.sim.experiments import run_of
    from leafage.sim.results_json import run_as_dict

    check_outputs(json, report)
    question = question or Question()
    slo = parse_slo(question.slo)
    scenario = make_scenario(question, flags, seed=seed)
    total = scenario.num_requests
    with terminal.CountProgress() as progress:
        result = scenario.run(lambda ended, seconds: progress("simulating", ended, total))
    outcome = run_of(result, slo)
    if str(json) != "-":
        print_run(scenario, outcome, slo)
    say_refusals([outcome])
    if json is not None:
        write_json(json, run_as_dict(scenario, outcome, slo))
    if report is not None:
        from leafage.sim.report import run_page

        write_report(report, run_page(scenario, outcome, slo))
