"""`leafage sim sweep`: a setting's values against metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from leafage.cli import terminal
from leafage.cli.flags import with_flags
from leafage.cli.sim_question import (
    SIM_FLAGS,
    Question,
    make_scenario,
    parse_seeds,
    parse_slo,
    parse_values,
)
from leafage.cli.sim_show import check_outputs, print_points, say_refusals, write_json, write_report
from leafage.errors import InvalidParameterError

METRICS = "ttft_p90,tpot_p90,slo_attainment,throughput,mean_batch,stored,preemptions"


@with_flags(SIM_FLAGS)
def sweep(
    *settings: str,
    question: Question | None = None,
    metric: Annotated[str, Parameter(name=["--metric", "--metrics"])] = METRICS,
    seeds: int = 1,
    processes: int | None = None,
    json: Path | None = None,
    report: Path | None = None,
    **flags: Any,
) -> None:
    """Vary one setting, or two against each other, and show any metrics.

    **Examples**

        leafage sim sweep rate=1:4:0.5 --report rate.html
        leafage sim sweep block_size=1,16,64,256 --rate 3 --prefix-index none --metric throughput,stored
        leafage sim sweep rate=1,2,3 kv=paged,reserved-oracle --max-model-len 2048 --seeds 3

    Parameters
    ----------
    settings
        NAME=VALUE,VALUE,... or NAME=FIRST:LAST:STEP: a flag's name, a setting of the workload (rate, ...),
        hardware, model, tensor_parallel, replicas, router, hardware.bandwidth, model.num_kv_heads...
    metric
        Columns of the table, separated by commas; docs/simulator.md lists all.
    seeds
        Workloads that are drawn for each value; the table shows mean and half range.
    processes
        Simulations that run side by side; default: the CPUs that this process may use.
    json
        Write every metric of every run to this file; `--json=-` writes to stdout instead of the table.
    report
        Write a page with plots to this file.
    """
    from leafage.resources import available_cpus
    from leafage.sim import experiments
    from leafage.sim.results_json import points_as_dict
    from leafage.sim.summary import find_metric

    if not 1 <= len(settings) <= 2:
        raise InvalidParameterError(
            "a sweep varies one setting or two", value=len(settings), remedy="name it as rate=1,2,3"
        )
    columns = [find_metric(name) for name in metric.split(",")]
    check_outputs(json, report)
    question = question or Question()
    slo = parse_slo(question.slo)
    scenario = make_scenario(question, flags)
    values = dict(parse_values(scenario, text) for text in settings)
    with terminal.CountProgress() as progress:
        points = experiments.sweep(
            scenario,
            values,
            seeds=parse_seeds(seeds),
            slo=slo,
            processes=processes or available_cpus(),
            on_progress=lambda done, total: progress("simulating", done, total),
        )
    if str(json) != "-":
        print_points(points, columns)
    say_refusals(run for point in points for run in point.runs)
    if json is not None:
        write_json(json, points_as_dict(scenario, points, slo))
    if report is not None:
        from leafage.sim.report import sweep_page

        write_report(report, sweep_page(scenario, points, columns, slo))
