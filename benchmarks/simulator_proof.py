"""The calibrated simulator beside the engine that it simulates: the same requests at the same times.

    leafage sim calibrate machine.json
    python benchmarks/simulator_proof.py machine.json [--loads 0.3 0.6 0.85] [--seconds 96] [--slices 16]

Poisson arrivals and log-normal lengths. A load is a share of the requests a second at which the simulator,
given all requests at once, gets through them. Every latency counts from the moment a request was due.

A load is replayed in slices, each until its last answer, and before, between and after them the engine goes
through parts of the calibration's grid: so both see the same machine, whatever its speed does meanwhile. Each
slice is then simulated with the costs fitted to that grid. Wanted: means and throughput within 10 %, P99
within 20 %. The exit code is 1 when a number misses.

Two more simulations tell why: one with the file's costs, measured earlier, shows how much the machine has
changed since; one with costs fitted to the very steps of the replay, how far off the simulator itself is.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from leafage import LLM
from leafage.build import Build, build_simulation
from leafage.calibration import real_engine
from leafage.sim.calibrate import PARTS, Scenarios, errors, fit, measure
from leafage.sim.hardware import Hardware
from leafage.sim.replay import RealEngine, Step, replay
from leafage.sim.simulation import Simulation
from leafage.sim.step_costs import StepCosts
from leafage.sim.trace_fit import Latencies, latencies_of
from leafage.sim.workload import SimRequest, Trace

MEDIAN_PROMPT, MEDIAN_OUTPUT = 100, 50
SIGMA = 0.8
LONGEST = 600
MEAN_WITHIN, P99_WITHIN = 0.1, 0.2
COLUMNS = ("load", "requests/s", "", "real", "simulated", "error", "wanted", "verdict", "file", "own costs")


def requests_at(rate: float, seconds: float, *, vocab_size: int, seed: int) -> list[SimRequest]:
    """Requests of about so many seconds."""
    rng = np.random.default_rng(seed)
    count = max(20, round(rate * seconds))
    arrivals = np.cumsum(rng.exponential(1 / rate, count))
    prompts = np.clip(rng.lognormal(np.log(MEDIAN_PROMPT), SIGMA, count), 4, LONGEST).astype(int)
    outputs = np.clip(rng.lognormal(np.log(MEDIAN_OUTPUT), SIGMA, count), 4, LONGEST // 3).astype(int)
    return [
        SimRequest(
            f"{seed}-{number}",
            float(arrivals[number]),
            rng.integers(0, vocab_size, prompts[number]).tolist(),
            range(number << 20, (number << 20) + int(outputs[number])),
        )
        for number in range(count)
    ]


def sliced(requests: Sequence[SimRequest], count: int) -> list[list[SimRequest]]:
    """The requests in so many slices of the same time; each begins at 0."""
    span = requests[-1].arrival / count
    slices: list[list[SimRequest]] = [[] for _ in range(count)]
    for request in requests:
        number = min(count - 1, int(request.arrival / span))
        slices[number].append(replace(request, arrival=request.arrival - number * span))
    return [each for each in slices if each]


def joined(runs: Sequence[Latencies], tokens: Sequence[int]) -> Latencies:
    """Slices as one run; throughput over the time of all."""
    seconds = sum(count / run.throughput for run, count in zip(runs, tokens, strict=True))
    return Latencies(
        ttft=np.concatenate([run.ttft for run in runs]),
        tpot=np.concatenate([run.tpot for run in runs]),
        throughput=sum(tokens) / seconds,
    )


def numbers(run: Latencies) -> Iterator[tuple[str, float, float]]:
    """What is compared: (name, milliseconds or tokens a second, how close it should be)."""
    for name in ("ttft", "tpot"):
        yield f"mean {name.upper()}", 1e3 * float(getattr(run, name).mean()), MEAN_WITHIN
        yield f"P99 {name.upper()}", 1e3 * run.percentile(name, 99), P99_WITHIN
    yield "tok/s", run.throughput, MEAN_WITHIN


@dataclass(slots=True)
class Measured:
    """A load that the engine has served.

    Attributes:
        slices: its requests.
        real: their latencies, of each slice.
        steps: the replay's.
        fitted, held_out: the grid's.
        others: share of the CPUs that other processes, and other guests of the host, took meanwhile.
    """

    slices: list[list[SimRequest]]
    real: list[Latencies] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    fitted: list[Step] = field(default_factory=list)
    held_out: list[Step] = field(default_factory=list)
    others: float = 0.0


def serve(real: RealEngine, grid: Scenarios, slices: list[list[SimRequest]]) -> Measured:
    """Replay the slices, and go through the grid between them."""
    done = Measured(slices)
    before = _cpu_seconds()
    for number in range(len(slices) + 1):
        fitted, held_out = measure(real, grid.part(number % PARTS, PARTS))
        done.fitted += fitted
        done.held_out += held_out
        if number < len(slices):
            replayed = replay(real, slices[number])
            done.real.append(latencies_of(replayed.records))
            done.steps += replayed.steps
    everyone, own, passed = (now - then for now, then in zip(_cpu_seconds(), before, strict=True))
    done.others = max(0.0, everyone - own) / passed if passed else 0.0
    return done


def _cpu_seconds() -> tuple[float, float, float]:
    """CPU time so far: that which was taken, what this process took of it, and all that there was."""
    try:
        words = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
    except OSError:
        return 0.0, 0.0, 0.0
    user, nice, system, idle, waiting, irq, soft_irq, stolen = (
        int(word) / os.sysconf("SC_CLK_TCK") for word in words
    )
    taken = user + nice + system + irq + soft_irq + stolen
    return taken, sum(os.times()[:2]), taken + idle + waiting


def simulated(
    build: Build, hardware: Hardware, costs: StepCosts, slices: list[list[SimRequest]]
) -> Latencies:
    """The slices in the simulator, each from an idle engine."""
    machine = replace(hardware, steps=costs)
    runs = [simulation(build, machine, costs).run(Trace(each)).records for each in slices]
    return joined([latencies_of(run) for run in runs], [sum(run.output_tokens) for run in runs])


def simulation(build: Build, hardware: Hardware, costs: StepCosts) -> Simulation:
    """The engine of `build`, simulated: the same settings and the same pool."""
    config = replace(build.config, kv_cache_tokens=build.plan.kv_tokens, kv_cache_bytes=None)
    return build_simulation(config, hardware, costs.spec)


def compare(load: float, rate: float, real: Latencies, others: Sequence[Latencies]) -> int:
    """Print a line for each number; how many miss. `others`: with pooled costs, the file's, the run's own."""
    pooled, file, own = ({name: value for name, value, _ in numbers(run)} for run in others)
    missed = 0
    for name, measured, within in numbers(real):
        error, of_file, of_own = (run[name] / measured - 1 for run in (pooled, file, own))
        missed += abs(error) > within
        cells = (
            f"{load:.2f}",
            f"{rate:.2f}",
            name,
            f"{measured:.1f}",
            f"{pooled[name]:.1f}",
            f"{100 * error:+.1f} %",
            f"{100 * within:.0f} %",
            "MISSED" if abs(error) > within else "ok",
            f"{100 * of_file:+.1f} %",
            f"{100 * of_own:+.1f} %",
        )
        print(f"| {' | '.join(cells)} |", flush=True)
    return missed


def biases(costs: StepCosts, steps: Sequence[Step]) -> str:
    """How far the sum of the predicted times is off, by kind of step."""
    found = errors(costs, steps).items()
    return ", ".join(f"{kind} {100 * error.bias:+.1f} % ({error.count})" for kind, error in found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("hardware", help="a file that `leafage sim calibrate` wrote")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.3, 0.6, 0.85])
    parser.add_argument("--seconds", type=float, default=96.0, help="of arrivals at each load")
    parser.add_argument("--slices", type=int, default=16, help="in which a load is replayed")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    hardware = Hardware.load(arguments.hardware)
    if hardware.steps is None:
        parser.error(f"{arguments.hardware} holds no measured steps")
    with LLM(arguments.model) as llm:
        missed = prove(llm.build, hardware, arguments)
    print(f"{missed} of {5 * len(arguments.loads)} numbers miss")
    sys.exit(1 if missed else 0)


def prove(build: Build, hardware: Hardware, arguments: argparse.Namespace) -> int:
    """All loads; how many numbers miss."""
    assert hardware.steps is not None
    real, vocab_size = real_engine(build), build.model.vocab_size
    spec, block_size = hardware.steps.spec, build.plan.block_size
    flood = requests_at(1e6, 300 / 1e6, vocab_size=vocab_size, seed=arguments.seed)
    capacity = len(flood) / simulation(build, hardware, hardware.steps).run(Trace(flood)).seconds
    print(f"{hardware.name}; {capacity:.2f} requests a second at most")
    print(f"| {' | '.join(COLUMNS)} |\n{'| --- ' * len(COLUMNS)}|", flush=True)
    grid, missed, notes = Scenarios(real), 0, []
    for load in arguments.loads:
        rate = load * capacity
        requests = requests_at(rate, arguments.seconds, vocab_size=vocab_size, seed=arguments.seed)
        done = serve(real, grid, sliced(requests, arguments.slices))
        pooled = fit(spec, block_size, done.fitted, done.held_out).costs
        own = fit(spec, block_size, done.steps, []).costs
        tokens = [sum(len(request.output) for request in each) for each in done.slices]
        missed += compare(
            load,
            rate,
            joined(done.real, tokens),
            [simulated(build, hardware, costs, done.slices) for costs in (pooled, hardware.steps, own)],
        )
        notes.append(
            f"load {load:.2f}: predicted against measured time: {biases(pooled, done.steps)}; of "
            f"the grid: {biases(pooled, [*done.fitted, *done.held_out])}; others took "
            f"{100 * done.others:.0f} % of the CPUs"
        )
    print("\n" + "\n".join(notes))
    return missed


if __name__ == "__main__":
    main()
