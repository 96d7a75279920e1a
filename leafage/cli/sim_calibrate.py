"""`leafage sim calibrate`: a hardware file from what this machine does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from leafage.cli import terminal
from leafage.cli.flags import ENGINE_FLAGS, engine_settings, with_flags
from leafage.cli.sim_show import check_outputs
from leafage.config import DEFAULT_MODEL
from leafage.errors import InvalidParameterError

if TYPE_CHECKING:
    from leafage.sim.calibrate import Error, Fit
    from leafage.sim.hardware import Hardware
    from leafage.sim.trace_fit import TraceFit

FLAGS = tuple(flag for flag in ENGINE_FLAGS if flag != "hardware")


@with_flags(FLAGS)
def calibrate(
    output: Path,
    /,
    *,
    model: Annotated[str, Parameter(name=["--model", "-m"], env_var="LEAFAGE_MODEL")] = DEFAULT_MODEL,
    name: str | None = None,
    trace: Path | None = None,
    hardware: str | None = None,
    tensor_parallel: int = 1,
    **flags: Any,
) -> None:
    """Measure the engine on this machine, or fit a device to a measured trace, and write a hardware file.

    Runs steps of many batch sizes, contexts and chunk sizes (a minute or two on an idle machine), fits what
    they cost, and says how far off the fit is for sizes that it has not seen. With the file, `leafage sim run
    --hardware FILE` simulates this machine, and the engine knows what swapping and computing cost here
    (`--hardware FILE` of other commands).

    With --trace nothing runs here: the efficiencies of a known device are fitted until the simulator does
    with the trace what a server on that device was measured to do; of a file with measured steps, how many
    times as long they took. Give the limits of that server as flags.

    **Examples**

        leafage sim calibrate machine.json
        leafage sim run --hardware machine.json --model smollm2-135m --rate 2
        leafage sim calibrate mine.json --trace vllm.jsonl --hardware rtx4090 --model llama-3.1-8b
            --max-num-seqs 128 --max-num-batched-tokens 2048 --kv-cache-tokens 41408
        leafage sim calibrate today.json --trace requests.jsonl --hardware machine.json --model smollm2-135m

    Parameters
    ----------
    output
        The file to write.
    model
        A known name (`leafage ls`), a path to a .gguf file or Hugging Face folder, or hf:owner/repo[/file].
    name
        What the hardware is called; default: the CPU's name, threads and kernels, or the device's name.
    trace
        Leafage's request log; or JSON lines with arrival_time, queued_ts, first_token_ts, last_token_ts,
        input_toks and output_toks.
    hardware
        With --trace: the device, by name or from a file, whose speed is fitted.
    tensor_parallel
        With --trace: devices that shared the model.
    """
    check_outputs(output, None)
    settings = engine_settings(flags)
    if trace is not None:
        _fit_trace(output, trace, model, name, hardware, tensor_parallel, settings)
        return
    if hardware is not None or tensor_parallel != 1:
        raise InvalidParameterError(
            "--hardware and --tensor-parallel are about a measured trace",
            remedy="add --trace FILE, or leave them out to measure this machine",
        )
    from leafage import bench as measuring
    from leafage.calibration import calibrate as measure_machine

    load = measuring.load_average()
    if load > measuring.BUSY_LOAD:
        terminal.say(f"warning: the machine is busy (load average {load:.1f}): expect low and uneven numbers")
    with terminal.open_llm(model, settings) as llm, terminal.Status() as status:
        machine, fit = measure_machine(llm, name=name, on_progress=status)
    _print(machine, fit)
    machine.save(output)
    terminal.say(f"written: {output}")


def _fit_trace(
    output: Path,
    trace: Path,
    model: str,
    name: str | None,
    hardware: str | None,
    tensor_parallel: int,
    settings: dict[str, Any],
) -> None:
    from leafage.build import build_simulation
    from leafage.config import EngineConfig
    from leafage.sim.hardware import Hardware
    from leafage.sim.llm_spec import LLMSpec
    from leafage.sim.result import SimResult
    from leafage.sim.trace_file import TraceFile
    from leafage.sim.trace_fit import fit_trace, read_measured

    if hardware is None:
        raise InvalidParameterError(
            "a trace is fitted to a device", remedy="name the one it was measured on: --hardware NAME"
        )
    device, spec = Hardware.load(hardware), LLMSpec.load(model)
    config = EngineConfig.from_kwargs(**settings)
    if device.steps is not None and not (device.steps.spec.has_shape_of(spec) and tensor_parallel == 1):
        device = replace(device, steps=None)  # of another model: its roofline counts
    measured, workload = read_measured(trace), TraceFile(trace)

    def simulate(candidate: Hardware) -> SimResult:
        return build_simulation(config, candidate, spec, tensor_parallel=tensor_parallel).run(workload)

    with terminal.Status() as status:
        found = fit_trace(
            device,
            measured,
            simulate,
            on_progress=lambda done, most: status(f"simulating: {done} of at most {most}"),
        )
    fitted = replace(found.hardware, name=name or device.name)
    _print_trace(device, fitted, found)
    fitted.save(output)
    terminal.say(f"written: {output}")


def _print_trace(device: Hardware, fitted: Hardware, found: TraceFit) -> None:
    from rich.table import Table

    from leafage.sim.trace_fit import compare

    console = terminal.print_console()
    if device.steps is not None and fitted.steps is not None:
        factor = fitted.steps.seconds_per_token / device.steps.seconds_per_token
        console.print(f"steps took {factor:.2f} times as long as in the file")
    for title, constants in (("before", device), ("fitted", fitted)) if device.steps is None else ():
        console.print(
            f"{title}: {100 * constants.compute_efficiency:.0f} % of the operations, "
            f"{100 * constants.memory_efficiency:.0f} % of the bandwidth, "
            f"{1e3 * constants.step_seconds:.2f} ms a step"
        )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for column in ("MEASURED", "SIMULATED", "ERROR"):
        table.add_column(column, justify="right")
    for label, measured, simulated in compare(found.measured, found.simulated):
        unit, scale = (" tok/s", 1.0) if label == "throughput" else (" ms", 1e3)
        table.add_row(
            label,
            f"{scale * measured:,.1f}{unit}",
            f"{scale * simulated:,.1f}{unit}",
            f"{100 * (simulated / measured - 1):+.1f} %",
        )
    console.print(table)


def _print(hardware: Hardware, fit: Fit) -> None:
    from rich.table import Table

    from leafage.sim.cost_model import Load, decode_load
    from leafage.sim.step_costs import MeasuredSteps

    costs = fit.costs
    console = terminal.print_console()
    console.print(f"{hardware.name}, {costs.spec.name}")
    seconds_of = MeasuredSteps(costs).seconds_of
    decode = {count: seconds_of(decode_load(count, 256 * count)) for count in (1, 4, 16, 64)}
    prompt = {
        count: seconds_of(Load(tokens=count, rows=1, pairs=count * (count + 1) // 2, items=1))
        for count in (16, 64, 256)
    }
    console.print(
        f"a step of sequences of 256 tokens: {_milliseconds(decode)}; a prompt: {_milliseconds(prompt)}; "
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
    console.print(
        f"left out as disturbed: {100 * fit.disturbed:.1f} % of the fitted steps; "
        f"costs {100 * fit.lost:.1f} % higher for the time that disturbances took",
        style="dim",
    )


def _milliseconds(seconds: dict[int, float]) -> str:
    """'1: 9.1 ms, 4: 9.5 ms'."""
    return ", ".join(f"{count}: {1e3 * each:.1f} ms" for count, each in seconds.items())


def _cells(error: Error | None) -> list[str]:
    if error is None:
        return ["", "", "", ""]
    return [
        f"{error.count}",
        f"{100 * error.bias:+.1f} %",
        f"{100 * error.mean:.1f} %",
        f"{100 * error.worst:.1f} %",
    ]
