"""`leafage sim reproduce`: every table and demo of the lecture, computed again, with a verdict for each."""

from __future__ import annotations

import json as json_format
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from leafage.cli import EXIT_ERROR, terminal
from leafage.errors import InvalidParameterError

if TYPE_CHECKING:
    from leafage.build import Build
    from leafage.sim.hardware import Hardware
    from leafage.sim.llm_spec import LLMSpec
    from leafage.sim.reproduce.demo import Demo, RealEngine, Tools
    from leafage.sim.reproduce.runner import Report
    from leafage.sim.scenario import Scenario
    from leafage.sim.simulation import Simulation


def reproduce(
    *,
    only: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    list_demos: Annotated[bool, Parameter(name="--list", negative="")] = False,
    processes: int | None = None,
    json: Path | None = None,
    markdown: Path | None = None,
    html: Path | None = None,
) -> int:
    """Compute every table and demo of the lecture again and compare.

    Prints a line for each demo, and its tables when `--only` names some. Exit code 1 when a verdict fails.

    Parameters
    ----------
    only
        Demos by id, or by the requirement that they cover, such as code02-1 or R3-7.
    list_demos
        List the demos and run none.
    processes
        That run demos side by side; default: the CPUs that this process may use.
    json
        Write every number to this file; `--json=-` writes to stdout instead of the lines.
    markdown
        Write the page to this file; docs/reproduction.md is made so.
    html
        Write the page as one self-contained HTML file.
    """
    from leafage.resources import available_cpus
    from leafage.sim.reproduce import page, runner
    from leafage.sim.reproduce.registry import DEMOS

    if processes is not None and processes < 1:
        raise InvalidParameterError("processes is out of range", value=processes, limit="at least 1")
    demos = runner.select(DEMOS, only or [])
    if list_demos:
        for demo in demos:
            state = "" if demo.pending is None else "  (pending)"
            print(f"{demo.id:14} {', '.join(demo.covers):24} {demo.title}{state}")
        return 0
    _pull(demos)
    to_stdout = json is not None and str(json) == "-"
    with terminal.Status() as status:
        show = _progress(len(demos), status, quiet=to_stdout)
        reports = runner.run_demos(
            demos, make_tools(), processes=processes or available_cpus(), on_report=show
        )
    if to_stdout:
        print(json_format.dumps(page.as_dict(reports), indent=1))
    else:
        for report in reports:
            if only or report.is_bad:
                _print(report)
        print(page.summary(reports))
        if json is not None:
            _write(json, json_format.dumps(page.as_dict(reports), indent=1) + "\n")
    if markdown is not None:
        _write(markdown, page.markdown(reports))
    if html is not None:
        _write(html, page.html(reports))
    return EXIT_ERROR if any(report.is_bad for report in reports) else 0


def make_tools() -> Tools:
    """The makers of engines and simulations that demos are handed."""
    from leafage.sim.reproduce.demo import Tools

    return Tools(
        simulation=make_simulation,
        engine=make_engine,
        scenario=make_scenario,
        block_efficiency=measure_block_efficiency,
    )


def make_simulation(settings: Mapping[str, Any], hardware: Hardware, spec: LLMSpec) -> Simulation:
    """`build_simulation` with settings by name."""
    from leafage.build import build_simulation
    from leafage.config import EngineConfig

    return build_simulation(EngineConfig.from_kwargs(**settings), hardware, spec)


def make_scenario(
    settings: Mapping[str, Any],
    hardware: Hardware,
    spec: LLMSpec,
    workload: str,
    workload_settings: Mapping[str, Any],
) -> Scenario:
    """A scenario over `build_simulation`."""
    from leafage.build import build_simulation
    from leafage.config import EngineConfig
    from leafage.sim.scenario import Scenario

    return Scenario(
        build=build_simulation,
        config=EngineConfig.from_kwargs(**settings),
        hardware=hardware,
        spec=spec,
        workload=workload,
        workload_settings=workload_settings,
    )


def measure_block_efficiency() -> Sequence[tuple[int, float, float]]:
    """What blocks of each size cost this machine's attention, with the shape of SmolLM2 and one thread."""
    from leafage.calibration import block_efficiency
    from leafage.sim.llm_spec import LLMSpec

    return block_efficiency(LLMSpec.load("smollm2-135m"), "bfloat16", 1)


def make_engine(model: str, settings: Mapping[str, Any]) -> RealEngine:
    """`build_engine` with settings by name; `tiny` is a model of random weights, made here."""
    import tempfile

    from leafage.build import build_engine
    from leafage.config import EngineConfig
    from leafage.tiny_model import write_tiny_model

    with tempfile.TemporaryDirectory() as folder:
        name = str(write_tiny_model(Path(folder))) if model == "tiny" else model
        build: Build = build_engine(EngineConfig.from_kwargs(model=name, **settings))
    return build


def _pull(demos: list[Demo]) -> None:
    """Get the models that are not here yet, before processes want them at the same time."""
    for model in sorted({demo.model for demo in demos if demo.model is not None}):
        terminal.find_model(model)


def _progress(total: int, status: Callable[[str], None], *, quiet: bool) -> Callable[[Report], None]:
    ended = 0

    def show(report: Report) -> None:
        nonlocal ended
        ended += 1
        status(f"{ended} of {total} demos")
        if not quiet:
            print(_line(report), flush=True)

    return show


def _line(report: Report) -> str:
    line = f"{report.verdict:8} {report.demo.id:14} {report.demo.title}"
    if report.outcome is not None and report.outcome.checks:
        checks = report.outcome.checks
        line += f": {sum(c.passed for c in checks)} of {len(checks)} checks, {report.seconds:.1f} s"
    return line


def _print(report: Report) -> None:
    """Tables, checks and notes of one demo."""
    from rich.table import Table

    from leafage.sim.reproduce.page import heading

    console = terminal.print_console()
    console.print(f"\n{report.demo.title}", style="bold")
    if report.error is not None:
        console.print(report.error, markup=False, highlight=False)
    if report.demo.pending is not None:
        console.print(f"pending: {report.demo.pending}")
    if report.outcome is None:
        return
    for table in report.outcome.tables:
        shown = Table(title=table.title, title_justify="left", box=None, pad_edge=False, header_style="bold")
        for number, column in enumerate(table.columns):
            shown.add_column(heading(column), justify="left" if table.is_text(number) else "right")
        for row in table.rows:
            shown.add_row(*(c.show(cell) for c, cell in zip(table.columns, row, strict=True)))
        console.print(shown)
    for check in report.outcome.checks:
        mark = "passed" if check.passed else "FAILED"
        console.print(
            f"{mark} {check.kind.value:5} {check.text}: {check.value} (wanted {check.wanted})",
            markup=False,
            highlight=False,
        )
    for note in report.outcome.notes:
        console.print(note, style="dim", markup=False, highlight=False)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    terminal.say(f"written: {path}")
