"""What the core looks like between two steps, as plain data of bounded size, for the live page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from leafage.core import block_map
from leafage.core.counters import SchedulerCounters
from leafage.core.prefix_index import Node
from leafage.core.protocols import KV
from leafage.core.request import FinishKind, Request, RequestStatus
from leafage.engine.engine import Engine
from leafage.engine.metrics import EngineMetrics, RequestMetrics
from leafage.server.live.tree import TreeSummary, summarize

MAX_EDGES = 160
"""Of the prefix index, drawn up as a tree; the rest is counted."""
MAX_REQUESTS = 64
"""Running ones listed, and as many waiting ones; the rest is counted."""

STATES: Mapping[str, int] = {
    "free": block_map.FREE,
    "cached": block_map.CACHED,
    "private": block_map.PRIVATE,
    "shared": block_map.SHARED,
    "pinned": block_map.PINNED,
    "reserved": block_map.RESERVED,
}
"""Names of what a block is for, and its letter in the map (`core.block_map`)."""

_RUN = re.compile(r"(.)\1{3,}")


def snapshot(engine: Engine, metrics: EngineMetrics) -> dict[str, Any]:
    """All that the page draws, ready for JSON. On the engine's thread, between two steps; changes nothing.

    About 0.15 us a block and 0.6 us an edge of the index; see `feed` for how often.

    Returns:
        `time`: seconds of the engine's clock. `step`: number of the last one.
        `blocks`: `total`, and how many are `free`, `cached` and `active` (they add up to it); `states`, how
        many of each kind in `STATES` (so do they); `map`, a letter for each block, in runs: `c12` is twelve
        cached blocks.
        `swap`: `free` slots.
        `running`, `waiting`: at most MAX_REQUESTS of each, in the order of service, see `_request`; and
        `num_running`, `num_waiting`, all of them.
        `tree`: see `_tree`.
        `counters`: see `counters_of`.
    """
    scheduler = engine.scheduler
    kv, roster = scheduler.kv, scheduler.roster
    now = metrics.clock.now()
    letters = kv.block_map()
    standing = {
        seq.seq_id: seq.index_node
        for seq in kv.attached()
        if seq.index_node is not None and not seq.index_node.detached and seq.index_node.parent is not None
    }
    ends_of_pins = [pin.nodes[-1] for pin in kv.pins if pin.held]
    tree = summarize(kv.index, list(standing.values()), ends_of_pins, MAX_EDGES)
    return {
        "time": round(now, 3),
        "step": scheduler.step,
        "blocks": {
            "total": kv.num_blocks,
            "size": kv.block_size,
            "free": kv.num_free,
            "cached": kv.num_cached,
            "active": kv.num_active,
            "states": {name: letters.count(letter) for name, letter in STATES.items()},
            "map": in_runs(letters),
        },
        "swap": {"free": kv.swap.space.num_free},
        "running": [
            _request(request, metrics, kv, now, tree, standing) for request in roster.running[:MAX_REQUESTS]
        ],
        "waiting": [
            _request(request, metrics, kv, now, tree, standing) for request in roster.waiting[:MAX_REQUESTS]
        ],
        "num_running": len(roster.running),
        "num_waiting": len(roster.waiting),
        "tree": _tree(tree, kv, ends_of_pins),
        "counters": counters_of(scheduler.counters, kv),
    }


def counters_of(counters: SchedulerCounters, kv: KV) -> dict[str, int]:
    """Totals since the start. Only plain numbers are read, so any thread may ask."""
    return {
        "generated": counters.generated_tokens,
        "prompt": counters.prompt_tokens,
        "queries": counters.prefix_queries,
        "hits": counters.prefix_hits,
        "finished": sum(counters.finished.values()),
        "preemptions": counters.preemptions,
        "swapped": counters.swap_outs,
        "evicted": kv.counters.evicted_blocks,
        "copied": kv.counters.copied_blocks,
        "merged": kv.counters.merged_blocks,
    }


def in_runs(letters: bytes) -> str:
    """Letters with their runs counted: `....cc` becomes `.4cc`. A letter alone counts once."""
    return _RUN.sub(lambda run: f"{run[1]}{len(run[0])}", letters.decode("ascii"))


def _request(
    request: Request,
    metrics: EngineMetrics,
    kv: KV,
    now: float,
    tree: TreeSummary,
    standing: Mapping[int, Node],
) -> dict[str, Any]:
    """One row of the table.

    `number` orders requests by arrival; `state`: prefill, decode, waiting, preempted or swapped. `prompt`
    tokens, `cached` of them, and `computed`; `output` tokens of the longest sequence, `max_tokens`.
    `sequences` that live, or will; `blocks` held, or needed to get in. `age`, and the times to the first and
    from the first to the last token, in seconds (null: not yet). `edges`: where its sequences stand in the
    tree.
    """
    live = request.live
    times = metrics.of(request.request_id)
    num_prompt = len(request.prompt_token_ids)
    running = request.status is RequestStatus.RUNNING
    if running:
        blocks = len({block for seq in live for block in seq.block_table})
        edges = {tree.place.get(standing[seq.seq_id].number, -1) for seq in live if seq.seq_id in standing}
    else:
        blocks, edges = kv.blocks_for(max(len(seq.tokens) for seq in live)), set()
    return {
        "id": request.request_id[:64],
        "number": request.arrival,
        "state": _state(request, running),
        "prompt": num_prompt,
        "cached": request.num_cached or 0,
        "computed": min(max(seq.num_computed for seq in live), num_prompt),
        "output": max(seq.num_output_tokens for seq in live),
        "max_tokens": request.max_tokens,
        "sequences": len(live) if running else request.params.num_sequences,
        **_common(request, times),
        "blocks": blocks,
        "age": _rounded(now - times.arrival_time),
        "edges": sorted(edges - {-1}),
    }


def ended(request: Request, times: RequestMetrics) -> dict[str, Any]:
    """The row of a request that ended, as `_request` makes those of others. On the engine's thread.

    `state` is its finish reason; `age`, how long it took.
    """
    sequences = request.sequences
    finish = sequences[0].finish
    return {
        "id": request.request_id[:64],
        "number": request.arrival,
        "state": FinishKind.ABORT.value if finish is None else finish.kind.value,
        "prompt": len(request.prompt_token_ids),
        "cached": request.num_cached or 0,
        "computed": 0 if times.first_token_time is None else len(request.prompt_token_ids),
        "output": max(seq.num_output_tokens for seq in sequences),
        "max_tokens": request.max_tokens,
        "sequences": len(sequences),
        **_common(request, times),
        "age": _rounded(times.e2e_latency),
    }


def _common(request: Request, times: RequestMetrics) -> dict[str, Any]:
    """What all rows have."""
    decode = None
    if times.first_token_time is not None and times.last_token_time is not None:
        decode = times.last_token_time - times.first_token_time
    return {
        "generated": times.num_generation_tokens,
        "kind": "pin" if request.pin else "beam" if request.beams else "sample",
        "priority": request.priority,
        "ttft": _rounded(times.time_to_first_token),
        "decode": _rounded(decode),
        "preemptions": request.num_preemptions,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)


def _state(request: Request, running: bool) -> str:
    if running:
        return "prefill" if request.prefilling else "decode"
    if request.status is RequestStatus.PREEMPTED:
        return "swapped" if request.swapped else "preempted"
    return "waiting"


def _tree(tree: TreeSummary, kv: KV, ends_of_pins: Iterable[Node]) -> dict[str, Any]:
    """The prefix index as a tree.

    `edges`: at most MAX_EDGES rows [block, node, parent, tokens, state, hidden edges, hidden tokens]: `block`
    and `node` name the run's last block, for `inspect`; `parent` is the place of an earlier row, -1 at the
    root of requests without a cache_salt, -2 at another's; `state`: 0 cached, 1 held by sequences, 2 by pins.
    `nodes`, `num_edges`, `tokens`: of the whole index. `hidden`: edges and tokens at the roots left out.
    """
    unsalted = kv.index.hash_of("")
    pinned = {node.number for end in ends_of_pins for node in end.path()}
    rows = []
    for edge in tree.edges:
        end, parent = edge.end, edge.parent
        if parent < 0:
            top = end.path()[0].parent
            parent = -1 if top is not None and top.hash == unsalted else -2
        state = 0 if end.stamp is not None else 2 if end.number in pinned else 1
        rows.append(
            [end.block, end.number, parent, edge.num_tokens, state, edge.num_hidden, edge.num_hidden_tokens]
        )
    return {
        "edges": rows,
        "nodes": tree.num_nodes,
        "num_edges": tree.num_edges,
        "tokens": tree.num_tokens,
        "hidden": [tree.num_hidden, tree.num_hidden_tokens],
    }
