"""The radix tree and the hash chain compared: hits, time, memory. No model, under a minute.

    python benchmarks/prefix_index.py [--json FILE]

Two workloads through the real scheduler and KVManager, each at three block sizes and three pools: few-shot
(see ageing.py) and chat, 20 sessions of 5 turns over one system prompt of 100 tokens, in random order. Then
what the indexes themselves cost: microseconds to match a cached prompt of 2,000 tokens, and to insert and to
evict a block, and bytes per block.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ageing import prompts_of
from core_loop import CoreLoop

from leafage.core.hash_chain import HashChain
from leafage.core.prefix_index import NodeIndex
from leafage.core.radix_tree import RadixTree

INDEXES = {"radix": RadixTree, "hash_chain": HashChain}
BLOCK_SIZES = (16, 64, 256)
POOLS = (2048, 8192, 32_768)
NUM_SESSIONS, NUM_TURNS = 20, 5
PROMPT_TOKENS = 2000
NUM_PROMPTS = 160
REPETITIONS = 7


def run_few_shot(loop: CoreLoop) -> None:
    for prompt in prompts_of(0):
        loop.add(prompt, max_tokens=2)
        while loop.scheduler.has_unfinished:
            loop.step()


def run_chat(loop: CoreLoop) -> None:
    """A turn is the session so far, with the answers, and a question of 20 to 99 tokens."""
    rng = random.Random(0)
    system = list(range(100))
    sessions = [list(system) for _ in range(NUM_SESSIONS)]
    turns = [session for session in range(NUM_SESSIONS) for _ in range(NUM_TURNS)]
    rng.shuffle(turns)
    for session in turns:
        sessions[session] += [rng.randint(1000, 50_000) for _ in range(rng.randint(20, 99))]
        request = loop.add(list(sessions[session]), max_tokens=rng.randint(40, 119))
        while loop.scheduler.has_unfinished:
            loop.step()
        sessions[session] = list(request.sequences[0].tokens)


WORKLOADS: dict[str, Callable[[CoreLoop], None]] = {"few-shot": run_few_shot, "chat": run_chat}


def hit_rates() -> list[dict[str, Any]]:
    """A row for each workload, block size and pool."""
    rows = []
    for workload, run in WORKLOADS.items():
        for block_size in BLOCK_SIZES:
            for pool in POOLS:
                row: dict[str, Any] = {"workload": workload, "block_size": block_size, "pool": pool}
                for index in INDEXES:
                    loop = CoreLoop(pool // block_size, block_size, prefix_index=index)
                    run(loop)
                    row[index] = loop.hit_rate
                rows.append(row)
    return rows


def costs(make: type[NodeIndex], block_size: int) -> dict[str, float]:
    """Microseconds to match a prompt, and per block to insert and to evict; bytes per block."""
    rng = random.Random(1)
    prompts = [[rng.randint(0, 50_000) for _ in range(PROMPT_TOKENS)] for _ in range(NUM_PROMPTS)]
    results: dict[str, list[float]] = {"match": [], "insert": [], "evict": []}
    num_blocks = NUM_PROMPTS * (PROMPT_TOKENS // block_size)
    for _ in range(REPETITIONS):
        index = make(block_size)
        results["insert"].append(_seconds(lambda index=index: _fill(index, prompts)) / num_blocks)
        match = _seconds(lambda index=index: [index.match("", p, PROMPT_TOKENS) for p in prompts])
        results["match"].append(match / NUM_PROMPTS)
        for node in index.nodes():
            index.set_idle(node, node.number)
        evict = _seconds(lambda index=index: [index.evict() for _ in range(num_blocks)])
        results["evict"].append(evict / num_blocks)
    gc.collect()
    tracemalloc.start()
    index = make(block_size)
    _fill(index, prompts)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return {
        **{name: 1e6 * statistics.median(values) for name, values in results.items()},
        "bytes": used / num_blocks,
    }


def _fill(index: NodeIndex, prompts: list[list[int]]) -> None:
    size = index.block_size
    for prompt in prompts:
        node = index.root("")
        for end in range(size, len(prompt) + 1, size):
            key = tuple(prompt[end - size : end])
            node = index.child(node, key) or index.insert(node, key, 0)


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the results there")
    arguments = parser.parse_args()
    rows = hit_rates()
    print("hit rate, % of prompt tokens")
    print(f"{'workload':10}{'block':>6}{'pool tokens':>13}{'radix':>8}{'hash chain':>12}")
    for row in rows:
        print(
            f"{row['workload']:10}{row['block_size']:6}{row['pool']:13,}"
            f"{100 * row['radix']:8.1f}{100 * row['hash_chain']:12.1f}"
        )
    print(f"\n{'index':12}{'block':>6}{'match 2,000, us':>17}{'insert, us':>12}{'evict, us':>11}{'bytes':>8}")
    table = []
    for block_size in BLOCK_SIZES:
        for name, make in INDEXES.items():
            cost = costs(make, block_size)
            table.append({"index": name, "block_size": block_size, **cost})
            print(
                f"{name:12}{block_size:6}{cost['match']:17.1f}{cost['insert']:12.2f}{cost['evict']:11.2f}"
                f"{cost['bytes']:8.0f}"
            )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"hit_rates": rows, "costs": table}, indent=1))


if __name__ == "__main__":
    main()
