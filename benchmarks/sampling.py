"""Time of the native sampler: one row on one thread, in CPU microseconds, for what requests ask for.

    python benchmarks/sampling.py [--variant avx512] [--repetitions 200]

Peaked rows look like a language model's; flat ones are the worst case: every token has a weight.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from leafage.kernels import _native
from leafage.kernels.native_sampling import NativeSampler, SamplingPlan, SamplingState

VOCABULARIES = {"SmolLM2": 49_152, "Gemma 3": 262_144}
CASES = {
    "greedy": {},
    "greedy, logprobs 5": {"num_top": 5},
    "temperature": {"temperature": 0.7},
    "top_k 50": {"temperature": 0.7, "top_k": 50},
    "top_p 0.9": {"temperature": 0.7, "top_p": 0.9},
    "min_p 0.05": {"temperature": 0.7, "min_p": 0.05},
    "top_k 50, top_p 0.9, logprobs 5": {"temperature": 0.7, "top_k": 50, "top_p": 0.9, "num_top": 5},
    "top_k 5,000": {"temperature": 0.7, "top_k": 5_000},
    "top_p 0.999": {"temperature": 0.7, "top_p": 0.999},
    "min_p 1e-9, top_p 0.999": {"temperature": 0.7, "min_p": 1e-9, "top_p": 0.999},
}


def peaked(rng: np.random.Generator, vocab: int) -> np.ndarray:
    """Normal with deviation 3, and one token in 2,000 up to 10 higher."""
    logits = rng.normal(0, 3, vocab)
    logits[rng.integers(0, vocab, vocab // 2_000)] += rng.uniform(4, 10, vocab // 2_000)
    return logits.astype(np.float32)


def flat(rng: np.random.Generator, vocab: int) -> np.ndarray:
    return rng.uniform(-0.1, 0.1, vocab).astype(np.float32)


def measure(
    make: Callable[[np.random.Generator, int], np.ndarray], vocab: int, case: dict, repetitions: int
) -> float:
    """Median CPU seconds of a row."""
    rng = np.random.default_rng(0)
    logits = np.stack([make(rng, vocab) for _ in range(8)])
    sampler = NativeSampler(vocab)
    states = [SamplingState(vocab, **case)] * 8
    seconds = []
    for i in range(repetitions):
        plan = SamplingPlan(vocab, states, [1] * 8, [i] * 8, [1] * 8, [-1] * 8, [])
        began = time.process_time()
        sampler.run(plan, logits)
        seconds.append((time.process_time() - began) / 8)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", choices=_native.variants(), default=_native.variant())
    parser.add_argument("--repetitions", type=int, default=20)
    args = parser.parse_args()
    _native.set_variant(args.variant)
    print(f"{args.variant}, one thread, CPU microseconds a row")
    columns = [(name, make) for name in VOCABULARIES for make in (peaked, flat)]
    print(" " * 34 + "".join(f"{name + ' ' + make.__name__:>18}" for name, make in columns))
    for title, case in CASES.items():
        times = [measure(make, VOCABULARIES[name], case, args.repetitions) for name, make in columns]
        print(f"{title:34}" + "".join(f"{seconds * 1e6:18.1f}" for seconds in times))


if __name__ == "__main__":
    main()
