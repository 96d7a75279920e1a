"""`leafage sim compare`: configurations side by side."""

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
    parse_variant,
)
from leafage.cli.sim_show import check_outputs, print_points, say_refusals, write_json, write_report
from leafage.errors import InvalidParameterError

METRICS = (
    "ttft_mean,ttft_p90,tpot_mean,tpot_p90,e2e_mean,normalized_latency,slo_attainment,throughput,mean_batch,"
    "occupancy,stored,waste_reservation,waste_internal,waste_external,hit_rate,preemptions,recomputed_tokens,"
    "swapped_tokens,longest_wait,most_passed"
)


@with_flags(SIM_FLAGS)
def compare(
    *variants: str,
    question: Question | None = None,
    metric: Annotated[str, Parameter(name=["--metric", "--metrics"])] = METRICS,
    seeds: int = 3,
    processes: int | None = None,
    json: Path | None = None,
    report: Path | None = None,
    **flags: Any,
) -> None:
    """Run configurations side by side with the same requests.

    **Examples**

        leafage sim compare kv=paged kv=reserved-oracle kv=reserved-max --rate 3 --max-model-len 2048
        leafage sim compare policy=fcfs policy=longest_prefix -w few-shot --report policies.html
        leafage sim compare kv=paged kv=paged,block_size=256 kv=paged,watermark=0.1 --rate 3

    Parameters
    ----------
    variants
        Each is NAME=VALUE, or several of these joined by commas. All other settings are those of the flags.
    metric
        Lines of the table, separated by commas; docs/simulator.md lists all.
    seeds
        Workloads that are drawn, the same for each variant; the table shows mean and half range.
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

    if len(variants) < 2:
        raise InvalidParameterError(
            "a comparison needs two variants", value=len(variants), remedy="as in kv=paged kv=reserved-max"
        )
    lines = [find_metric(name) for name in metric.split(",")]
    check_outputs(json, report)
    question = question or Question()
    slo = parse_slo(question.slo)
    scenario = make_scenario(question, flags)
    settings = [parse_variant(scenario, text) for text in variants]
    with terminal.CountProgress() as progress:
        points = experiments.compare(
            scenario,
            settings,
            seeds=parse_seeds(seeds),
            slo=slo,
            processes=processes or available_cpus(),
            on_progress=lambda done, total: progress("simulating", done, total),
        )
    if str(json) != "-":
        print_points(points, lines, transposed=True)
    say_refusals(run for point in points for run in point.runs)
    if json is not None:
        write_json(json, points_as_dict(scenario, points, slo))
    if report is not None:
        from leafage.sim.report import compare_page

        write_report(report, compare_page(scenario, points, slo))
