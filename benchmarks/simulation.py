"""How fast the simulator is: requests a minute, with and without its fast-forward; memory; where time goes.

    python benchmarks/simulation.py

OPT-13B on one A100-40GB, one core: 748 blocks of 16 tokens, no prefix cache, no chunks of prompts, 1 % kept
free; log-normal lengths (prompts around 150 tokens, answers around 220, together at most 2,048), Poisson
arrivals. A sequence-step is one token of one sequence. Both ways give the same numbers to the last bit, which
is asserted here and proven by tests/sim/test_fast_forward.py.
"""

from __future__ import annotations

import argparse
import cProfile
import multiprocessing
import pstats
import resource
import time
from collections import Counter
from pathlib import Path

import leafage
from leafage.build import build_simulation
from leafage.config import EngineConfig
from leafage.core.fast_forward import FastForward
from leafage.sim.distributions import LogNormal
from leafage.sim.hardware import Hardware
from leafage.sim.independent import Independent
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.result import SimResult
from leafage.sim.simulation import Simulation

CONFIG = EngineConfig(
    prefix_index="none",
    preemption="recompute",
    watermark=0.01,
    max_model_len=2048,
    max_num_seqs=1024,
    max_num_batched_tokens=1 << 20,
)
OVERLOADED, SUSTAINED = 3.0, 2.0  # requests a second; the queue of the first grows with the trace


def simulation(fast_forward: bool) -> Simulation:
    return build_simulation(
        CONFIG, Hardware.load("a100-40gb"), LLMSpec.load("opt-13b"), fast_forward=fast_forward
    )


def workload(num_requests: int, rate: float) -> Independent:
    return Independent(
        num_requests=num_requests,
        rate=rate,
        seed=1,
        prompt_tokens=LogNormal(150, 1.0, 1, 2040),
        output_tokens=LogNormal(220, 0.8, 1, 2040),
        max_total_tokens=2048,
    )


def run(num_requests: int, rate: float, fast_forward: bool) -> tuple[SimResult, float, float]:
    """The result, seconds of one core that it took, and the peak of the process's memory in MB."""
    simulated = simulation(fast_forward)
    began = time.process_time()
    result = simulated.run(workload(num_requests, rate))
    seconds = time.process_time() - began
    return result, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def apart(num_requests: int, rate: float, fast_forward: bool) -> tuple[int, int, float, float, float]:
    """The same in a fresh process. Requests ended, tokens, simulated seconds, seconds, MB."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_numbers, (num_requests, rate, fast_forward))


def _numbers(num_requests: int, rate: float, fast_forward: bool) -> tuple[int, int, float, float, float]:
    result, seconds, memory = run(num_requests, rate, fast_forward)
    tokens = result.counters.generated_tokens
    return result.records.num_requests, tokens, result.seconds, seconds, memory


def speed(num_requests: int, repetitions: int) -> None:
    """Both ways in turn, the best of each: what else runs on the machine only makes them slower."""
    best: dict[bool, float] = {}
    results: dict[bool, SimResult] = {}
    for _ in range(repetitions):
        for fast_forward in (False, True):
            result, seconds, _ = run(num_requests, OVERLOADED, fast_forward)
            best[fast_forward] = min(best.get(fast_forward, seconds), seconds)
            results[fast_forward] = result
    first, second = results[False], results[True]
    assert first.seconds == second.seconds and first.usage.slot_seconds == second.usage.slot_seconds
    assert first.records.last_token == second.records.last_token and first.counters == second.counters
    counters = second.counters
    print(
        f"{num_requests} requests at {OVERLOADED:g} a second: {counters.steps:,} steps, "
        f"{counters.generated_tokens:,} sequence-steps, {counters.preemptions} preemptions, "
        f"best of {repetitions}\n"
    )
    print("| | requests a minute | us a sequence-step | us a step |\n| --- | --- | --- | --- |")
    for fast_forward, name in ((False, "step by step"), (True, "fast-forward")):
        seconds = best[fast_forward]
        each, step = 1e6 * seconds / counters.generated_tokens, 1e6 * seconds / counters.steps
        print(f"| {name} | {60 * num_requests / seconds:,.0f} | {each:.2f} | {step:.0f} |")


def growth(lengths: list[int], longest_without: int) -> None:
    """Time and memory against the length of the trace."""
    print(f"\nTraces of growing length, {SUSTAINED:g} requests a second, each in a process of its own\n")
    print("| requests | | seconds | requests a minute | us a sequence-step | peak memory, MB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for length in lengths:
        for fast_forward in (False, True) if length <= longest_without else (True,):
            ended, tokens, _, seconds, memory = apart(length, SUSTAINED, fast_forward)
            assert ended == length
            name = "fast-forward" if fast_forward else "step by step"
            rate, each = 60 * length / seconds, 1e6 * seconds / tokens
            print(
                f"| {length:,} | {name} | {seconds:.1f} | {rate:,.0f} | {each:.2f} | {memory:.0f} |",
                flush=True,
            )


def parts(num_requests: int) -> None:
    """Own time by module, as a profiler sees it; it makes calls look dearer than they are."""
    root = Path(leafage.__file__).parent
    shares: dict[bool, Counter[str]] = {}
    for fast_forward in (False, True):
        profile = cProfile.Profile()
        simulated = simulation(fast_forward)
        profile.enable()
        simulated.run(workload(num_requests, OVERLOADED))
        profile.disable()
        own: Counter[str] = Counter()
        for (file, _, _), (_, _, seconds, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
            path = Path(file)
            own[str(path.relative_to(root)) if root in path.parents else "built-in functions"] += seconds
        total = sum(own.values())
        shares[fast_forward] = Counter({name: seconds / total for name, seconds in own.items()})
    print("\nOwn time by module\n\n| | step by step | fast-forward |\n| --- | --- | --- |")
    for name, _ in (shares[False] | shares[True]).most_common(16):
        print(f"| {name} | {shares[False][name]:.1%} | {shares[True][name]:.1%} |")


def quiet_share(num_requests: int) -> None:
    """How many of the steps are taken together."""
    taken = Counter[str]()
    end = FastForward.end

    def counted(self: FastForward) -> object:
        taken["runs"] += self.num_steps > 0
        taken["steps"] += self.num_steps
        return end(self)

    FastForward.end = counted  # type: ignore[method-assign, assignment]
    try:
        result, _, _ = run(num_requests, OVERLOADED, True)
    finally:
        FastForward.end = end  # type: ignore[method-assign]
    share, each = taken["steps"] / result.counters.steps, taken["steps"] / taken["runs"]
    print(f"\n{share:.0%} of the steps are quiet, in runs of {each:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--lengths", type=int, nargs="*", default=[1000, 10_000, 100_000])
    parser.add_argument("--longest-without", type=int, default=10_000, help="longest trace step by step")
    arguments = parser.parse_args()
    speed(arguments.requests, arguments.repetitions)
    quiet_share(arguments.requests)
    parts(arguments.requests)
    if arguments.lengths:
        growth(arguments.lengths, arguments.longest_without)


if __name__ == "__main__":
    main()
