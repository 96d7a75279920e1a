"""Preemption under load: against the watermark (blocks kept free at admission), and swap against recompute.

    python benchmarks/watermark.py

The engine is simulated: OPT-13B on one A100-40GB with 748 blocks of 16 tokens (the setting of Kwon et al.,
SOSP 2023, section 6.2). Requests arrive at 3 a second with log-normal lengths; they share nothing. Swap and
recompute are compared at 3 and 4 a second.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import numpy as np

from leafage.build import build_simulation
from leafage.config import EngineConfig
from leafage.sim.hardware import Hardware
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.result import SLO
from leafage.sim.workload import SimRequest, Trace

NUM_BLOCKS, BLOCK_SIZE = 748, 16
LEVEL = SLO(ttft=2.0, tpot=0.1)
WATERMARKS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
PREEMPTION_RATES = (3.0, 4.0)
PREEMPTION_WATERMARK = 0.01


def run(
    watermark: float, *, seed: int, num_requests: int, rate: float, preemption: str = "recompute"
) -> dict[str, float]:
    """One simulated run; counts, tokens a second and the share of requests that met the SLO, in per cent.

    To swap, there is as much space as the KV cache has, so that it never has to recompute.
    """
    rng = np.random.default_rng(seed)
    prompts = np.clip(rng.lognormal(np.log(150), 1.0, num_requests), 1, 2040).astype(int)
    outputs = np.clip(rng.lognormal(np.log(220), 0.8, num_requests), 1, 2040).astype(int)
    outputs = np.minimum(outputs, 2048 - prompts)
    arrivals = np.cumsum(rng.exponential(1 / rate, num_requests))
    hardware, spec = Hardware.load("a100-40gb"), LLMSpec.load("opt-13b")
    pool = NUM_BLOCKS * BLOCK_SIZE * int(spec.kv_bytes_per_token)
    config = EngineConfig(
        kv_cache_tokens=NUM_BLOCKS * BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        prefix_index="none",
        max_num_seqs=256,
        max_num_batched_tokens=4096,
        max_model_len=2048,
        watermark=watermark,
        preemption=preemption,
        swap_bytes=pool if preemption == "swap" else 0,
    )
    simulation = build_simulation(config, hardware, spec)
    result = simulation.run(
        Trace(
            SimRequest(str(i), float(arrivals[i]), range(prompts[i]), range(outputs[i]))
            for i in range(num_requests)
        )
    )
    return {
        "preemptions": result.counters.preemptions,
        "recomputed": result.counters.recomputed_tokens,
        "swapped": result.swap_counters.blocks_out,
        "tok/s": result.throughput,
        "SLO": 100 * result.attainment(LEVEL),
    }


def medians(watermark: float, num_seeds: int, **settings: Any) -> dict[str, float]:
    """Of the seeds' runs."""
    runs = [run(watermark, seed=seed, **settings) for seed in range(num_seeds)]
    return {name: statistics.median(r[name] for r in runs) for name in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--rate", type=float, default=3.0, help="requests a second, of the first table")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    print("watermark  preemptions  recomputed tokens  tok/s   SLO attained     (medians of the seeds)")
    for watermark in WATERMARKS:
        m = medians(watermark, args.seeds, num_requests=args.requests, rate=args.rate)
        counts = f"{m['preemptions']:12.0f} {m['recomputed']:18,.0f}"
        print(f"{watermark:8.0%} {counts} {m['tok/s']:7.0f} {m['SLO']:12.0f} %", flush=True)
    print(f"\nwith a watermark of {PREEMPTION_WATERMARK:.0%}:")
    print("rate  preemption  preemptions  recomputed tokens  swapped blocks  tok/s   SLO attained")
    for rate in PREEMPTION_RATES:
        for preemption in ("recompute", "swap"):
            settings = {"num_requests": args.requests, "rate": rate, "preemption": preemption}
            m = medians(PREEMPTION_WATERMARK, args.seeds, **settings)
            counts = f"{m['preemptions']:12.0f} {m['recomputed']:18,.0f} {m['swapped']:15,.0f}"
            print(f"{rate:4.0f}  {preemption:10} {counts} {m['tok/s']:6.0f} {m['SLO']:12.0f} %", flush=True)


if __name__ == "__main__":
    main()
