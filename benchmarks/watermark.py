"""How many blocks to keep free at admission: preemptions, throughput and SLO against the watermark.

    python benchmarks/watermark.py

The scheduler and the KV manager are the engine's; the model is a cost: OPT-13B on one A100-40GB with 748
blocks of 16 tokens (the setting of Kwon et al., SOSP 2023, section 6.2), where a step takes max(arithmetic,
memory) + 0.5 ms. Requests arrive at 3 a second with log-normal lengths; they share nothing.
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np

from leafage.core.batch import Batch, ItemOutput, SampledToken, StepOutput
from leafage.core.kv_manager import KVManager
from leafage.core.request import Request
from leafage.core.sampling_params import SamplingParams
from leafage.core.scheduler import Scheduler

NUM_BLOCKS, BLOCK_SIZE = 748, 16
LAYERS, WIDTH, MLP_WIDTH, VOCABULARY = 40, 5120, 13653, 50272
BODY = LAYERS * (4 * WIDTH * WIDTH + 3 * WIDTH * MLP_WIDTH)
HEAD = VOCABULARY * WIDTH
FLOPS, BANDWIDTH = 0.7 * 312e12, 0.8 * 1.555e12
KV_BYTES = 2 * 2 * LAYERS * WIDTH  # of a token
TTFT_SLO, TPOT_SLO = 2.0, 0.1
WATERMARKS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)


def seconds(batch: Batch) -> float:
    """What a step of the batch takes."""
    flops = read = 0.0
    for item in batch.items:
        count, end = len(item.token_ids), item.start + len(item.token_ids)
        flops += 2 * BODY * count + 2 * HEAD * len(item.samples)
        flops += 4 * LAYERS * WIDTH * count * (item.start + (count + 1) / 2)
        read += KV_BYTES * end
    return max(flops / FLOPS, (2 * (BODY + HEAD) + read) / BANDWIDTH) + 0.5e-3


def run(watermark: float, *, seed: int, num_requests: int, rate: float) -> dict[str, float]:
    """One simulated run; counts, tokens a second and the share of requests that met the SLO."""
    rng = np.random.default_rng(seed)
    prompts = np.clip(rng.lognormal(np.log(150), 1.0, num_requests), 1, 2040).astype(int)
    outputs = np.clip(rng.lognormal(np.log(220), 0.8, num_requests), 1, 2040).astype(int)
    outputs = np.minimum(outputs, 2048 - prompts)
    arrivals = np.cumsum(rng.exponential(1 / rate, num_requests))
    kv = KVManager(NUM_BLOCKS, BLOCK_SIZE, "none")
    scheduler = Scheduler(
        kv,
        max_num_seqs=256,
        max_num_batched_tokens=4096,
        max_model_len=2048,
        watermark=int(watermark * NUM_BLOCKS),
        preemption="recompute",
    )
    first, last = np.zeros(num_requests), np.zeros(num_requests)
    now, added = 0.0, 0
    while added < num_requests or scheduler.has_unfinished:
        if not scheduler.has_unfinished:
            now = max(now, arrivals[added])
        while added < num_requests and arrivals[added] <= now:
            prompt = [added * 4096 + i for i in range(prompts[added])]  # all different
            params = SamplingParams(max_tokens=int(outputs[added]), temperature=0.0, ignore_eos=True)
            scheduler.add(Request(str(added), prompt, params))
            added += 1
        batch = scheduler.schedule()
        now += seconds(batch)
        results = [ItemOutput([SampledToken(0, 0.0) for _ in item.samples]) for item in batch.items]
        for delta in scheduler.update(batch, StepOutput(results)):
            number = int(delta.request_id)
            first[number] = first[number] or now
            last[number] = now
    ttft = first - arrivals
    tpot = (last - first) / np.maximum(outputs - 1, 1)
    return {
        "preemptions": scheduler.counters.preemptions,
        "recomputed": scheduler.counters.recomputed_tokens,
        "tok/s": float(outputs.sum() / now),
        "SLO": 100 * float(np.mean((ttft <= TTFT_SLO) & (tpot <= TPOT_SLO))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--rate", type=float, default=3.0, help="requests a second")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    print("watermark  preemptions  recomputed tokens  tok/s   SLO attained     (medians of the seeds)")
    for watermark in WATERMARKS:
        runs = [
            run(watermark, seed=seed, num_requests=arguments.requests, rate=arguments.rate)
            for seed in range(arguments.seeds)
        ]
        m = {name: statistics.median(r[name] for r in runs) for name in runs[0]}
        counts = f"{m['preemptions']:12.0f} {m['recomputed']:18,.0f}"
        print(f"{watermark:8.0%} {counts} {m['tok/s']:7.0f} {m['SLO']:12.0f} %")


if __name__ == "__main__":
    main()
