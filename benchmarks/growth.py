"""How time grows: a decode step with batch and context, a scheduler step with the running sequences.

    python benchmarks/growth.py --json docs/performance/growth.json     # about 80 s on an idle machine

Decode runs the real executor on batches made by hand, over a KV pool full of ordinary numbers: no prompt has
to be computed first. The scheduler is the real one, with an executor that answers at once.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from comparison import machine

from leafage import bench, store
from leafage.build import load_assets, plan_memory
from leafage.config import EngineConfig
from leafage.core.batch import Batch, Item, ItemOutput, Logits, Sample, SampledToken, StepOutput
from leafage.core.kv_manager import KVManager
from leafage.core.request import Request
from leafage.core.sampling_params import SamplingParams
from leafage.core.scheduler import Scheduler
from leafage.kernels import _native
from leafage.resources import available_cpus, available_memory
from leafage.runtime.model_runner import LocalExecutor

BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192)
SEQUENCES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
BLOCK = 16
QUARTER = 0x3E80  # in bf16
POOL_SHARE = 0.7  # of the memory that is available
CELL_SECONDS = 1.0
MIN_STEPS, MAX_STEPS = 3, 50
SCHEDULER_STEPS = 60
SCHEDULER_CONTEXT = 512
GREEDY = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)


def decode(model: str, threads: int, batches: Sequence[int], contexts: Sequence[int]) -> dict[str, Any]:
    """Median seconds of a decode step by batch and context; None where the KV pool would not fit."""
    config = EngineConfig(model=model, threads=threads)
    assets = load_assets(config)
    per_token = assets.model.program.kv.bytes_per_token(config.kv_dtype)
    wanted = max(batches) * max(contexts)
    tokens = min(wanted, int(POOL_SHARE * available_memory()) // per_token) // BLOCK * BLOCK
    plan = plan_memory(
        EngineConfig(model=model, kv_cache_tokens=tokens, block_size=BLOCK),
        weight_bytes=assets.model.num_weight_bytes,
        kv_bytes_per_token=per_token,
        context_length=assets.info.context_length,
    )
    executor = LocalExecutor(
        assets.model,
        num_blocks=plan.num_blocks,
        block_size=BLOCK,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=plan.max_model_len,
        num_threads=threads,
    )
    executor.program.kv.array().view(np.uint16)[:] = QUARTER  # type: ignore[attr-defined]
    cells: list[dict[str, Any]] = []
    decode_step(executor, plan.num_blocks, 1, min(contexts))  # warms up
    for context in contexts:
        for batch in batches:
            fits = batch * context <= tokens and context <= plan.max_model_len
            seconds = decode_step(executor, plan.num_blocks, batch, context) if fits else None
            cells.append({"batch": batch, "context": context, "seconds": seconds})
            shown = "-" if seconds is None else f"{1e3 * seconds:.2f} ms"
            say(f"decode, batch {batch}, context {context}: {shown}")
    return {"cells": cells, "kv_bytes_per_token": per_token, "pool_tokens": tokens}


def decode_step(executor: LocalExecutor, num_blocks: int, batch: int, context: int) -> float:
    """Median seconds of steps that compute the last of `context` tokens of `batch` sequences."""
    rng = np.random.default_rng(0)
    tables = rng.permutation(num_blocks)[: batch * (context // BLOCK)].reshape(batch, -1).tolist()
    items = [
        Item(
            seq_id=i,
            request_id=str(i),
            block_table=table,
            start=context - 1,
            token_ids=[1000 + i],
            write_from=context - 1,
            logits=Logits.LAST,
            samples=[Sample(0, context, 0)],
            top_k_logprobs=0,
            params=GREEDY,
            history=[1000 + i] * context,
            num_prompt_tokens=context,
        )
        for i, table in enumerate(tables)
    ]
    executor.execute(Batch(items))
    seconds: list[float] = []
    while len(seconds) < MIN_STEPS or (len(seconds) < MAX_STEPS and sum(seconds) < CELL_SECONDS):
        began = time.perf_counter()
        output = executor.execute(Batch(items))
        seconds.append(time.perf_counter() - began)
        errors = [item.row_error for item in output.items if item.row_error is not None]
        if errors:
            raise SystemExit(f"a step of batch {batch} at context {context} failed: {errors[0]}")
    return statistics.median(seconds)


class InstantExecutor:
    """Answers each sample with the same token."""

    def execute(self, batch: Batch) -> StepOutput:
        return StepOutput([ItemOutput([SampledToken(7, 0.0) for _ in item.samples]) for item in batch.items])


def scheduler_step(num_sequences: int) -> dict[str, float]:
    """Median seconds of `schedule` and `update` in steps in which so many sequences decode."""
    output_tokens = 2 * SCHEDULER_STEPS
    kv = KVManager(num_sequences * -(-(SCHEDULER_CONTEXT + output_tokens) // BLOCK), BLOCK, "radix")
    scheduler = Scheduler(
        kv,
        max_num_seqs=num_sequences,
        max_num_batched_tokens=num_sequences * SCHEDULER_CONTEXT,  # all prompts in a few steps
        max_model_len=SCHEDULER_CONTEXT + output_tokens,
    )
    executor = InstantExecutor()
    rng = np.random.default_rng(0)
    for i in range(num_sequences):
        prompt = rng.integers(100, 40_000, SCHEDULER_CONTEXT).tolist()
        params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True, seed=i)
        scheduler.add(Request(request_id=str(i), prompt_token_ids=prompt, params=params))
    schedule: list[float] = []
    update: list[float] = []
    while len(schedule) < SCHEDULER_STEPS:
        began = time.perf_counter()
        batch = scheduler.schedule()
        scheduled = time.perf_counter()
        output = executor.execute(batch)
        executed = time.perf_counter()
        scheduler.update(batch, output)
        updated = time.perf_counter()
        if len(batch.items) == batch.num_tokens == num_sequences:
            schedule.append(scheduled - began)
            update.append(updated - executed)
        elif schedule:
            raise SystemExit(f"only {len(schedule)} steps of {num_sequences} sequences decoded")
    return {
        "sequences": num_sequences,
        "schedule": statistics.median(schedule),
        "update": statistics.median(update),
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int, default=available_cpus())
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES, metavar="N")
    parser.add_argument("--contexts", nargs="+", type=int, default=CONTEXTS, metavar="N")
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    load = bench.load_average()
    floors = [bench.measure_floors(args.threads)]
    sequences = []
    for count in SEQUENCES:
        cell = scheduler_step(count)
        sequences.append(cell)
        say(f"scheduler, {count} sequences: {1e3 * (cell['schedule'] + cell['update']):.3f} ms")
    found = decode(str(store.resolve(args.model)), args.threads, args.batches, args.contexts)
    floors.append(bench.measure_floors(args.threads))
    report = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": {"cpu": machine.cpu_name(), "threads": args.threads, "kernels": _native.variant()},
        "load": {"before": load, "after": bench.load_average()},
        "floors": [{"bandwidth": f.bandwidth, "int8_peak": f.int8_peak} for f in floors],
        "decode": found,
        "scheduler": {"context": SCHEDULER_CONTEXT, "cells": sequences},
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(report, indent=1) + "\n")
    say(f"written: {args.json}")


if __name__ == "__main__":
    main()
