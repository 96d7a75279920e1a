"""The calibrated simulator beside the engine that it simulates: the same requests at the same times.

    leafage sim calibrate machine.json
    python benchmarks/simulator_proof.py machine.json [--loads 0.3 0.6 0.85] [--seconds 20]

Poisson arrivals and log-normal lengths. A load is a share of the requests a second at which the simulator,
given all requests at once, gets through them. Every latency counts from the moment a request was due.

Each load is simulated twice: with the file's costs, and with costs fitted to the very steps that the engine
made then. The second tells the simulator's own error from a machine that has changed its speed since.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from leafage import LLM
from leafage.build import Build, build_simulation
from leafage.calibration import real_engine
from leafage.sim.calibrate import fit
from leafage.sim.hardware import Hardware
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.replay import replay
from leafage.sim.result import Records
from leafage.sim.simulation import Simulation
from leafage.sim.trace_fit import Latencies, latencies_of
from leafage.sim.workload import SimRequest, Trace

MEDIAN_PROMPT, MEDIAN_OUTPUT = 100, 50
SIGMA = 0.8
LONGEST = 600


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


def simulation(build: Build, hardware: Hardware, spec: LLMSpec) -> Simulation:
    """The engine of `build`, simulated: the same settings and the same pool."""
    config = replace(build.config, kv_cache_tokens=build.plan.kv_tokens, kv_cache_bytes=None)
    return build_simulation(config, hardware, spec)


def numbers(run: Latencies) -> Iterator[tuple[str, float]]:
    """What is compared: milliseconds, and tokens a second."""
    for name in ("ttft", "tpot"):
        yield f"mean {name.upper()}", 1e3 * float(getattr(run, name).mean())
        yield f"P99 {name.upper()}", 1e3 * run.percentile(name, 99)
    yield "tok/s", run.throughput


def compare(load: float, rate: float, real: Records, simulated: list[Records]) -> None:
    """Print a line for each number, with each simulation's and its error."""
    runs = [dict(numbers(latencies_of(run))) for run in simulated]
    for name, measured in numbers(latencies_of(real)):
        cells = (f"{run[name]:.1f} | {100 * (run[name] / measured - 1):+.1f} %" for run in runs)
        print(f"| {load:.2f} | {rate:.2f} | {name} | {measured:.1f} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hardware", help="a file that `leafage sim calibrate` wrote")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.3, 0.6, 0.85])
    parser.add_argument("--seconds", type=float, default=20.0, help="of arrivals at each load")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    hardware = Hardware.load(arguments.hardware)
    if hardware.steps is None:
        parser.error(f"{arguments.hardware} holds no measured steps")
    spec = hardware.steps.spec
    with LLM(arguments.model) as llm:
        build = llm.build
        real, vocab_size = real_engine(build), build.model.vocab_size
        flood = requests_at(1e6, 300 / 1e6, vocab_size=vocab_size, seed=arguments.seed)
        capacity = len(flood) / simulation(build, hardware, spec).run(Trace(flood)).seconds
        busy = os.getloadavg()[0]
        print(f"{hardware.name}; load average {busy:.2f}; {capacity:.2f} requests a second at most")
        print("| load | requests/s | | real | simulated | error | costs of that run | error |")
        print("| --- " * 8 + "|")
        replay(real, requests_at(10, 0.5, vocab_size=vocab_size, seed=0))
        for load in arguments.loads:
            rate = load * capacity
            requests = requests_at(rate, arguments.seconds, vocab_size=vocab_size, seed=arguments.seed)
            llm.reset_prefix_cache()
            measured = replay(real, requests)
            own = replace(hardware, steps=fit(spec, build.plan.block_size, measured.steps, []).costs)
            simulated = [
                simulation(build, machine, spec).run(Trace(requests)).records for machine in (hardware, own)
            ]
            compare(load, rate, measured.records, simulated)


if __name__ == "__main__":
    main()
