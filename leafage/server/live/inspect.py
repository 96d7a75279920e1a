"""One thing of the core looked at closely: an edge of the prefix index, a block, or a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from leafage.core.prefix_index import Node
from leafage.core.request import Request
from leafage.engine.engine import Engine
from leafage.server.live.snapshot import STATES

HEAD_TOKENS = 96
TAIL_TOKENS = 64
"""Of a text, where it is longer than both together."""
MAX_BLOCKS = 4096
"""Listed of one thing."""

Look = Callable[[Engine], "dict[str, Any] | None"]
"""Asked on the engine's thread, between two steps. None: there is no such thing (any more)."""

# `tokens` are [head, tail] token ids; the route makes a text of them, or drops them.


def edge(block: int, number: int, num_tokens: int) -> Look:
    """An edge as `snapshot` gave it: its end's block and node number, and its tokens."""

    def look(engine: Engine) -> dict[str, Any] | None:
        kv = engine.scheduler.kv
        end = kv.node_at(block) if 0 <= block < kv.num_blocks else None
        if end is None or end.number != number:
            return None
        nodes: list[Node] = []
        left = num_tokens
        for node in reversed(end.path()):
            if left <= 0:
                break
            nodes.append(node)
            left -= len(node.key)
        nodes.reverse()
        tokens = [token for node in nodes for token in node.key]
        start = (nodes[0].depth - 1) * kv.block_size
        return {
            "start": start,
            "end": start + len(tokens),
            "blocks": _in_runs(node.block for node in nodes),
            "holders": _holders(engine, block),
            "pins": sum(end in pin.nodes for pin in kv.pins),
            "tokens": _ends(tokens),
        }

    return look


def block(number: int) -> Look:
    """A block of the pool."""

    def look(engine: Engine) -> dict[str, Any] | None:
        kv = engine.scheduler.kv
        if not 0 <= number < kv.num_blocks:
            return None
        letter = kv.block_map()[number]
        node = kv.node_at(number)
        holders = _holders(engine, number)
        facts: dict[str, Any] = {
            "state": next(name for name, known in STATES.items() if known == letter),
            "blocks": [[number, 1]],
            "holders": holders,
            "indexed": node is not None,
        }
        if node is not None:
            start = (node.depth - 1) * kv.block_size
            return {**facts, "start": start, "end": start + len(node.key), "tokens": _ends(node.key)}
        for seq in kv.attached():
            if number in seq.block_table:
                start = seq.block_table.index(number) * kv.block_size
                tokens = seq.tokens[start : min(start + kv.block_size, seq.num_computed)]
                return {**facts, "start": start, "end": start + len(tokens), "tokens": _ends(tokens)}
        return facts

    return look


def request(number: int) -> Look:
    """An unfinished request, by its arrival number."""

    def look(engine: Engine) -> dict[str, Any] | None:
        for one in engine.scheduler.roster.requests():
            if one.arrival == number:
                return _request(one)
        return None

    return look


def _request(one: Request) -> dict[str, Any]:
    blocks: dict[int, None] = {}
    for seq in one.live:
        blocks.update(dict.fromkeys(seq.block_table))
    miss = one.prefix_miss
    return {
        "id": one.request_id[:64],
        "blocks": _in_runs(blocks),
        "miss": None if miss is None else {"reason": miss.reason, "position": miss.position},
        "seed": one.seed,
        "temperature": one.params.temperature,
        "passed": one.passed,
        "tokens": _ends(one.prompt_token_ids),
        "output": _ends(one.live[0].tokens[len(one.prompt_token_ids) :]),
    }


def _holders(engine: Engine, block: int) -> list[int]:
    """Arrival numbers of the requests whose sequences have the block in their tables."""
    return [
        one.arrival
        for one in engine.scheduler.roster.running
        if any(block in seq.block_table for seq in one.live)
    ]


def _ends(tokens: Iterable[int]) -> list[list[int]]:
    """All tokens as the head, or a head and a tail."""
    known = list(tokens)
    if len(known) <= HEAD_TOKENS + TAIL_TOKENS:
        return [known]
    return [known[:HEAD_TOKENS], known[-TAIL_TOKENS:]]


def _in_runs(blocks: Iterable[int]) -> list[list[int]]:
    """[first, count] of the runs of consecutive blocks, in the order of the tokens."""
    runs: list[list[int]] = []
    for number, one in enumerate(blocks):
        if number == MAX_BLOCKS:
            break
        if runs and runs[-1][0] + runs[-1][1] == one:
            runs[-1][1] += 1
        else:
            runs.append([one, 1])
    return runs
