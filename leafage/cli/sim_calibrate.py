"""`leafage sim calibrate`: a hardware file from what this machine does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from leafage.cli import terminal
from leafage.cli.flags import ENGINE_FLAGS, engine_settings, with_flags
from leafage.config import DEFAULT_MODEL

if TYPE_CHECKING:
    from leafage.sim.calibrate import Error, Fit
    from leafage.sim.hardware import Hardware

FLAGS = tuple(flag for flag in ENGINE_FLAGS if flag != "hardware")


@with_flags(FLAGS)
def calibrate(
    output: Path,
    /,
    *,
    model: Annotated[str, Parameter(name=["--model", "-m"], env_var="LEAFAGE_MODEL")] = DEFAULT_MODEL,
    name: str | None = None,
    **flags: Any,
) -> None:
    """Measure the engine on this machine and write a hardware file.

    Runs steps of many batch sizes, contexts and chunk sizes (a minute or two on an idle machine), fits what
    they cost, and says how far off the fit is for sizes that it has not seen. With the file, `leafage sim run
    --hardware FILE` simulates this machine, and the engine knows what swapping and computing cost here
    (`--hardware FILE` of other commands).

    **Examples**

        leafage sim calibrate machine.json
        leafage sim run --hardware machine.json --model smollm2-135m --rate 2

    Parameters
    ----------
    output
        The file to write.
    model
        A known name (`leafage ls`), a path to a .gguf file or Hugging Face folder, or hf:owner/repo[/file].
    name
        What the hardware is called; default: the CPU's name, threads and kernels.
    """
    from leafage import bench as measuring
    from leafage.calibration import calibrate as measure_machine

    load = measuring.load_average()
    if load > measuring.BUSY_LOAD:
        terminal.say(f"warning: the machine is busy (load average {load:.1f}): expect low and uneven numbers")
    with terminal.open_llm(model, engine_settings(flags)) as llm, terminal.Status() as status:
        hardware, fit = measure_machine(llm, name=name, on_progress=status)
    _print(hardware, fit)
    hardware.save(output)
    terminal.say(f"written: {output}")


def _print(hardware: Hardware, fit: Fit) -> None:
    from rich.table import Table

    costs = fit.costs
    console = terminal.print_console()
    console.print(f"{hardware.name}, {costs.spec.name}")
    points = [count for count, _ in costs.tokens if count in (1, 8, 16, 64, 256, costs.tokens[-1][0])]
    at = dict(costs.tokens)
    console.print(
        "a step's tokens in the layers: "
        + ", ".join(f"{count}: {1e3 * at[count]:.2f} ms" for count in points)
        + f"; each sequence {1e6 * costs.per_item:.0f} us; "
        f"attention to 1,000 tokens {1e6 * 1000 * costs.per_context:.0f} us in decode rows, "
        f"{1e6 * 1000 * costs.per_pair:.0f} us a prompt token",
        style="dim",
    )
    console.print(
        f"swap space {hardware.host_bandwidth / 1e9:.1f} GB/s in memory, "
        f"{hardware.file_bandwidth / 1e9:.1f} GB/s in a file; "
        f"matrix products {hardware.product_flops / 1e9:.0f} GOP/s of {hardware.flops / 1e9:.0f}, "
        f"memory reads {hardware.bandwidth / 1e9:.1f} GB/s",
        style="dim",
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("STEPS")
    for title in ("FITTED", "SUM", "MEAN ERROR", "90 % BELOW", "HELD OUT", "SUM", "MEAN ERROR", "90 % BELOW"):
        table.add_column(title, justify="right")
    for kind, error in fit.fitted.items():
        table.add_row(kind, *_cells(error), *_cells(fit.held_out.get(kind)))
    console.print(table)
    console.print(f"left out as disturbed: {100 * fit.disturbed:.1f} % of the fitted steps", style="dim")


def _cells(error: Error | None) -> list[str]:
    if error is None:
        return ["", "", "", ""]
    return [
        f"{error.count}",
        f"{100 * error.bias:+.1f} %",
        f"{100 * error.mean:.1f} %",
        f"{100 * error.worst:.1f} %",
    ]
