"""What bounds a run: the KV cache's memory, computing, the memory's bandwidth, or nothing but its load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from leafage.core.usage import KINDS
from leafage.sim.cost_model import CostModel, Load
from leafage.sim.result import SimResult

FULL = 0.85
"""Share of the KV cache from which on a waiting request is taken to wait for memory."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Where the time of a run went, as shares of it.

    Attributes:
        kind: what bounds it.
        full: requests waited while the KV cache was full.
        busy: the engine had something to do.
        compute, weights, context, overhead: estimates of what steps would take if they did nothing but
            compute, read weights, read K and V, or start and move blocks (`CostModel.parts_of`). By a
            roofline a step takes the larger of the first and of the next two together, and the last, so that
            together they may be more than `busy`; measured steps are their sum.
        tokens_per_request: mean tokens of a request, prompt and answer.
        capacity: requests of that length that the KV cache holds at once, each with all its tokens.
        mean_batch: sequences that ran, on average while any did.
    """

    kind: Literal["memory", "compute", "bandwidth", "load"]
    full: float
    busy: float
    compute: float
    weights: float
    context: float
    overhead: float
    tokens_per_request: float
    capacity: float
    mean_batch: float


def bound_of(result: SimResult, cost: CostModel, *, replicas: int = 1) -> Bound:
    """What bounded a run on this device and model; of several replicas, one of them on average."""
    records, counters = result.records, result.counters
    seconds = max(result.seconds * replicas, 1e-12)
    prompts = np.array(records.prompt_tokens, dtype=np.float64)
    stored = result.usage.slot_seconds[KINDS.index("stored")] / max(result.usage.seconds, 1e-12)
    context = counters.steps * stored
    load = Load(
        tokens=counters.prompt_tokens + counters.generated_tokens,
        rows=counters.generated_tokens,
        pairs=int(context + np.sum(prompts * (prompts + 1) / 2)),
        context=int(context),
        moved_blocks=result.swap_counters.blocks_out + result.swap_counters.blocks_in,
    )
    parts = cost.parts_of(load, counters.steps, result.usage.seconds)
    tokens = (sum(records.prompt_tokens) + sum(records.output_tokens)) / max(1, records.num_requests)
    full, busy = _full(result), result.usage.seconds / seconds
    if full > 0.2:
        kind = "memory"
    elif busy < 0.7:
        kind = "load"
    else:
        kind = "compute" if parts.compute > parts.weights + parts.context else "bandwidth"
    return Bound(
        kind=kind,  # type: ignore[arg-type]
        full=full,
        busy=busy,
        compute=parts.compute / seconds,
        weights=parts.weights / seconds,
        context=parts.context / seconds,
        overhead=parts.overhead / seconds,
        tokens_per_request=tokens,
        capacity=result.num_slots / max(tokens, 1.0),
        mean_batch=result.mean_batch,
    )


def _full(result: SimResult) -> float:
    """Share of the time in which requests waited and the KV cache was full, of the first replica."""
    timeline = result.timeline
    held = sum(timeline.slots(kind) for kind in ("stored", "reservation", "internal", "external"))
    spans = np.diff(timeline.edges)
    waited = (timeline.waiting > 0) & (held > FULL * result.num_slots)
    return float(np.sum(spans[waited]) / max(np.sum(spans), 1e-12))
