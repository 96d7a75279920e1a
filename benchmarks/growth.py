"""How time grows: a decode step with batch, context and the share of it that sequences have in common, a
scheduler step with the running sequences.

    python benchmarks/growth.py --json docs/performance/growth.json     # about 110 s on an idle machine
    python benchmarks/growth.py --parts sharing --json FILE     # one part again; the file keeps the others

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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from comparison import machine

from leafage import bench, store
from leafage.build import load_assets
from leafage.config import EngineConfig
from leafage.core.batch import Batch, Item, ItemOutput, Logits, Sample, SampledToken, StepOutput
from leafage.core.kv_manager import KVManager
from leafage.core.request import Request
from leafage.core.sampling_params import SamplingParams
from leafage.core.scheduler import Scheduler
from leafage.kernels import _native
from leafage.memory import MemoryPlan, plan_memory
from leafage.resources import available_cpus, available_memory
from leafage.runtime.model_runner import LocalExecutor

BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192)
SEQUENCES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
BLOCK = 16
QUARTER = 0x3E80  # in bf16
POOL_SHARE = 0.7  # of the memory that is available
CELL_SECONDS = 1.0
MIN_STEPS, MAX_STEPS = 3, 50
SHARING_ROUNDS = 3
PARTS = ("decode", "sharing", "scheduler")
SCHEDULER_STEPS = 60
SCHEDULER_CONTEXT = 512
GREEDY = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Shape:
    """A batch whose sequences have a part of their context in common, in groups of `group`."""

    name: str
    batch: int
    group: int
    context: int


SHAPES = (
    Shape("W4: 8 tasks x 8 questions", 64, 8, 656),
    Shape("W4 with one task for all", 64, 64, 656),
    Shape("W7: 8 requests x n = 4", 32, 4, 576),
    Shape("one request, 4 beams", 4, 4, 192),
)


def executor_for(model: str, threads: int, wanted: int) -> tuple[LocalExecutor, MemoryPlan]:
    """The real one, with a KV pool of `wanted` tokens, or as many as the memory allows, full of numbers."""
    config = EngineConfig(model=model, threads=threads)
    assets = load_assets(config)
    per_token = assets.model.program.kv.bytes_per_token(config.kv_dtype)
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
    return executor, plan


def decode(model: str, threads: int, batches: Sequence[int], contexts: Sequence[int]) -> dict[str, Any]:
    """Median seconds of a decode step by batch and context; None where the KV pool would not fit."""
    executor, plan = executor_for(model, threads, max(batches) * max(contexts))
    tokens = plan.kv_tokens
    cells: list[dict[str, Any]] = []
    decode_step(executor, plan.num_blocks, 1, min(contexts))  # warms up
    for context in contexts:
        for batch in batches:
            fits = batch * context <= tokens and context <= plan.max_model_len
            seconds = decode_step(executor, plan.num_blocks, batch, context) if fits else None
            cells.append({"batch": batch, "context": context, "seconds": seconds})
            shown = "-" if seconds is None else f"{1e3 * seconds:.2f} ms"
            say(f"decode, batch {batch}, context {context}: {shown}")
    return {"cells": cells, "kv_bytes_per_token": plan.kv_bytes // tokens, "pool_tokens": tokens}


def sharing(model: str, threads: int, shapes: Sequence[Shape]) -> dict[str, Any]:
    """Median seconds of a decode step by the share of the context that is common to the sequences of a group.

    A share is of the whole blocks before the last token's, which each sequence has for itself. The common
    blocks hold what the sequences' own would, so that the tokens must be the same at every share. The shares
    are measured in turns, so that a disturbance of the machine falls on all of them.
    """
    executor, plan = executor_for(model, threads, max(shape.batch * shape.context for shape in shapes))
    cells: list[dict[str, Any]] = []
    for shape in shapes:
        executor.program.kv.array().view(np.uint16)[:] = QUARTER  # type: ignore[attr-defined]
        blocks = shape.context // BLOCK - 1
        seconds: dict[float, list[float]] = {share: [] for share in SHARES}
        drawn = None
        for _ in range(SHARING_ROUNDS):
            for share, found in seconds.items():
                common = round(share * blocks)
                tables = block_tables(plan.num_blocks, shape.batch, shape.context)
                for i, table in enumerate(tables):
                    table[:common] = tables[i - i % shape.group][:common]
                took, tokens = decode_steps(executor, tables, shape.context, CELL_SECONDS / SHARING_ROUNDS)
                if drawn is not None and tokens != drawn:
                    raise SystemExit(
                        f"{shape.name}: other tokens when {common} of {blocks} blocks are common"
                    )
                drawn = tokens
                found.append(took)
        for share, found in seconds.items():
            common, median = round(share * blocks) * BLOCK, statistics.median(found)
            cells.append(asdict(shape) | {"share": share, "common": common, "seconds": median})
            say(f"{shape.name}: {common} of {shape.context} tokens common: {1e3 * median:.2f} ms")
    return {"cells": cells}


def block_tables(num_blocks: int, batch: int, context: int) -> list[list[int]]:
    """Blocks of `batch` sequences, scattered over the pool; none is in two tables."""
    order = np.random.default_rng(0).permutation(num_blocks)
    tables: list[list[int]] = order[: batch * (context // BLOCK)].reshape(batch, -1).tolist()
    return tables


def decode_step(executor: LocalExecutor, num_blocks: int, batch: int, context: int) -> float:
    """Median seconds of steps that compute the last of `context` tokens of `batch` sequences."""
    return decode_steps(executor, block_tables(num_blocks, batch, context), context, CELL_SECONDS)[0]


def decode_steps(
    executor: LocalExecutor, tables: list[list[int]], context: int, cell_seconds: float
) -> tuple[float, list[tuple[int, float]]]:
    """The same of sequences with these blocks, and what the last step drew: (token, logprob) of each."""
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
    while len(seconds) < MIN_STEPS or (len(seconds) < MAX_STEPS and sum(seconds) < cell_seconds):
        began = time.perf_counter()
        output = executor.execute(Batch(items))
        seconds.append(time.perf_counter() - began)
        errors = [item.row_error for item in output.items if item.row_error is not None]
        if errors:
            raise SystemExit(f"a step of batch {len(tables)} at context {context} failed: {errors[0]}")
    drawn = [(item.sampled[0].token_id, item.sampled[0].logprob) for item in output.items]
    return statistics.median(seconds), drawn


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


def scheduler() -> dict[str, Any]:
    """`scheduler_step` by running sequences."""
    cells = []
    for count in SEQUENCES:
        cells.append(cell := scheduler_step(count))
        say(f"scheduler, {count} sequences: {1e3 * (cell['schedule'] + cell['update']):.3f} ms")
    return {"context": SCHEDULER_CONTEXT, "cells": cells}


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
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="(default: all)")
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    whole = set(args.parts) == set(PARTS) or not args.json.exists()
    kept: dict[str, Any] = {} if whole else json.loads(args.json.read_text())
    load = bench.load_average()
    floors = [bench.measure_floors(args.threads)]
    model = str(store.resolve(args.model))
    found: dict[str, Any] = {}
    if "scheduler" in args.parts:
        found["scheduler"] = scheduler()
    if "decode" in args.parts:
        found["decode"] = decode(model, args.threads, args.batches, args.contexts)
    if "sharing" in args.parts:
        found["sharing"] = sharing(model, args.threads, SHAPES)
    floors.append(bench.measure_floors(args.threads))
    measured = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": {"cpu": machine.cpu_name(), "threads": args.threads, "kernels": _native.variant()},
        "load": {"before": load, "after": bench.load_average()},
        "floors": [{"bandwidth": f.bandwidth, "int8_peak": f.int8_peak} for f in floors],
    }
    for part in found.values():
        part["measured"] = measured
    report = kept | found
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(report, indent=1) + "\n")
    say(f"written: {args.json}")


if __name__ == "__main__":
    main()
