"""`leafage bench`: how fast the model runs here, beside what the machine could do."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from leafage.cli import terminal
from leafage.cli.flags import ENGINE_FLAGS, engine_settings, with_flags
from leafage.config import DEFAULT_MODEL
from leafage.errors import InvalidParameterError

if TYPE_CHECKING:
    from leafage.bench import Report, Result
    from leafage.overhead import Overhead


@with_flags(ENGINE_FLAGS)
def bench(
    *workloads: str,
    model: Annotated[str, Parameter(name=["--model", "-m"], env_var="LEAFAGE_MODEL")] = DEFAULT_MODEL,
    repetitions: Annotated[int, Parameter(name=["--repetitions", "-r"])] = 3,
    json: Path | None = None,
    **flags: Any,
) -> None:
    """Measure decode (W1), prefill (W2), batch (W3) and few-shot (W4) on this machine.

    Prints medians and ranges, the share of the machine's memory bandwidth and int8 peak that was reached, and
    the time spent outside the native call: of the workloads, and of decode steps of 1, 64 and 256 sequences,
    part by part. Run it on an idle machine.

    **Examples**

        leafage bench
        leafage bench W1 W2 --repetitions 5
        leafage bench --model gemma3-270m --json result.json

    Parameters
    ----------
    workloads
        W1, W2, W3, W4, overhead; all without any.
    model
        A known name (`leafage ls`), a path to a .gguf file or Hugging Face folder, or hf:owner/repo[/file].
    repetitions
        Runs of each workload.
    json
        Write every number to this file; `--json=-` writes to stdout instead of the table.
    """
    if repetitions < 1:
        raise InvalidParameterError("repetitions is out of range", value=repetitions, limit="at least 1")
    from leafage import bench as measuring

    chosen, overhead = measuring.choose(workloads)
    load = measuring.load_average()
    if load > measuring.BUSY_LOAD:
        terminal.say(f"warning: the machine is busy (load average {load:.1f}): expect low and uneven numbers")
    with terminal.open_llm(model, engine_settings(flags)) as llm, terminal.Status() as status:
        report = measuring.measure(
            llm, chosen, repetitions=repetitions, overhead=overhead, on_progress=status
        )
    if json is not None and str(json) == "-":
        print(json_format.dumps(report.as_dict(), indent=2))
        return
    _print(report)
    if json is not None:
        json.write_text(json_format.dumps(report.as_dict(), indent=2) + "\n")
        terminal.say(f"written: {json}")


def _print(report: Report) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("MEDIAN", justify="right", no_wrap=True)
    table.add_column("RANGE", justify="right", no_wrap=True)
    table.add_column("")
    for result in report.results:
        span = f"{_number(min(result.values))} to {_number(max(result.values))}"
        table.add_row(
            result.name, result.title, f"{_number(result.median)} {result.unit}", span, _note(result)
        )
    floors = report.floors
    assert floors is not None
    outside = ", ".join(
        f"{result.name} {100 * result.outside_native:.1f} % ({1e6 * result.outside_per_step:.0f} us a step)"
        for result in report.results
    )
    console = terminal.print_console()
    console.print(table)
    if outside:
        console.print(f"outside the native call: {outside}", style="dim")
    for result in report.results:
        if result.runs[-1].mean_batch > 1:
            console.print(_memory(result), style="dim")
    for overhead in report.overheads:
        console.print(_overhead(overhead), style="dim")
    console.print(
        f"machine: reads {floors.bandwidth / 1e9:.1f} GB/s, int8 {floors.int8_peak / 1e9:.0f} GOP/s "
        f"({floors.instruction}), {floors.threads} threads; kernels: {report.kernels}",
        style="dim",
    )


def _memory(result: Result) -> str:
    share = {kind: f"{100 * value:.1f} %" for kind, value in result.kv_shares.items()}
    return (
        f"KV memory of {result.name}, of what {result.runs[-1].mean_batch:.0f} sequences held on average: "
        f"{share['stored']} stored, {share['reservation']} to be written, {share['internal']} internal "
        f"fragmentation; {share['duplicates']} duplicates"
    )


def _overhead(overhead: Overhead) -> str:
    parts = ", ".join(f"{part} {1e6 * seconds:.0f}" for part, seconds in overhead.outside.items())
    native = ", ".join(f"{part} {1e3 * seconds:.2f} ms" for part, seconds in overhead.native.items())
    low, high = min(overhead.totals), max(overhead.totals)
    return (
        f"a step of {overhead.batch_size}: {1e6 * overhead.total:.0f} us outside the native call "
        f"({1e6 * low:.0f} to {1e6 * high:.0f}): {parts}; inside: {native}"
    )


def _note(result: Result) -> str:
    if result.share is not None:
        return f"{100 * result.share:.0f} % of the {result.floor}"
    seconds = result.median
    return (
        f"{result.num_output_tokens / seconds:.0f} output tok/s, "
        f"{100 * result.runs[-1].cached_tokens / result.num_prompt_tokens:.0f} % of the prompts shared"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
