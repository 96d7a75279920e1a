"""Exercise 6 and section 7.7: the hash chain and the radix tree, measured on the real indexes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from leafage.core.hash_chain import HashChain
from leafage.core.prefix_index import Key, Node, NodeIndex
from leafage.core.radix_tree import RadixTree
from leafage.sim.distributions import Fixed
from leafage.sim.hardware import Hardware
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.reproduce.demo import Cell, Check, Column, Demo, Outcome, Results, Source, Table, Tools
from leafage.sim.sessions import MultiTurn
from leafage.sim.shared_prompts import FewShot
from leafage.sim.workload import Workload

INDEXES = {"hash_chain": "hash chain", "radix": "radix tree"}
BLOCK_SIZES = (1, 16, 64, 256)
PROMPT = 2000
WORKLOADS: dict[str, Workload] = {
    "few-shot": FewShot(num_requests=100, output_tokens=Fixed(2)),
    "conversations": MultiTurn(num_sessions=20, turns=Fixed(5), arrivals="at-once"),
}


@dataclass(frozen=True, slots=True)
class Hits:
    """A part: hits of a workload, one request at a time, in a cache that holds everything."""

    workload: str
    index: str
    block_size: int

    def __call__(self, tools: Tools) -> float:
        """Share of the prompt tokens."""
        settings = {
            "prefix_index": self.index,
            "block_size": self.block_size,
            "kv_cache_tokens": 1 << 16,
            "max_model_len": 4096,
            "max_num_seqs": 1,
            "max_num_batched_tokens": 1 << 20,
        }
        simulation = tools.simulation(settings, Hardware.load("h100"), LLMSpec.load("llama-3-8b"))
        records = simulation.run(WORKLOADS[self.workload]).records
        return sum(records.cached_tokens) / sum(records.prompt_tokens)


HITS = {
    (workload, index, size): Hits(workload, index, size)
    for workload in WORKLOADS
    for index in INDEXES
    for size in BLOCK_SIZES[1:]
}


def fill(index: NodeIndex, tokens: list[int]) -> list[Node]:
    """Insert the whole blocks of a prompt, as computed and no longer in use."""
    size = index.block_size
    node, path = index.root(""), []
    for end in range(size, len(tokens) + 1, size):
        key = tuple(tokens[end - size : end])
        node = index.child(node, key) or index.insert(node, key, block=0)
        path.append(node)
    for node in path:
        if node.stamp is None:
            index.set_idle(node, 0)
    return path


def lookups(index: NodeIndex) -> int:
    """Look-ups of a block that matching a cached prompt takes."""
    prompt, count, child = list(range(PROMPT)), 0, index.child
    fill(index, prompt)

    def counted(node: Node, key: Key) -> Node | None:
        nonlocal count
        count += 1
        return child(node, key)

    index.child = counted  # type: ignore[method-assign]
    index.match("", prompt, PROMPT)
    return count


def evicted_at_once(index: NodeIndex) -> int:
    """Blocks that leave when room for one is needed: a prefix of 2 blocks, then 8 and 6 blocks behind it."""
    size = index.block_size
    shared = list(range(2 * size))
    fill(index, shared + list(range(1000, 1000 + 8 * size)))
    fill(index, shared + list(range(2000, 2000 + 6 * size)))
    return len(index.evict())


def finds_after_another_head(make: Callable[[int], NodeIndex]) -> int:
    """Blocks found of a prompt whose second block is cached, behind another first block."""
    index = make(16)
    fill(index, [*range(16), *range(100, 116)])
    return len(index.match("", [*range(50, 66), *range(100, 116)], 32))


def combine(results: Results) -> Outcome:
    """Granularity, cost of a match and eviction."""
    found = {key: 100 * results[part] for key, part in HITS.items()}
    granularity: list[list[Cell]] = [
        [workload, size, *(found[workload, index, size] for index in INDEXES)]
        for workload in WORKLOADS
        for size in BLOCK_SIZES[1:]
    ]
    costs: list[list[Cell]] = [
        [size, lookups(HashChain(size)), lookups(RadixTree(size))] for size in BLOCK_SIZES
    ]
    evictions: list[list[Cell]] = [
        ["hash chain", "the last block of the chain used least recently", evicted_at_once(HashChain(16))],
        [
            "radix tree, unit block",
            "the last block of the path used least recently",
            evicted_at_once(RadixTree(16)),
        ],
        [
            "radix tree, unit node",
            "the leaf used least recently, up to where the tree branches",
            evicted_at_once(RadixTree(16, eviction_unit="node")),
        ],
    ]
    never_less = all(
        found[w, "radix", s] >= found[w, "hash_chain", s] for w in WORKLOADS for s in BLOCK_SIZES[1:]
    )
    wide = [found["conversations", index, 256] for index in INDEXES]
    steady = [found["conversations", "radix", size] for size in BLOCK_SIZES[1:]]
    checks = [
        Check.exact(
            "(a) the same block behind another head: found by the hash chain",
            finds_after_another_head(HashChain),
            0,
        ),
        Check.exact("(a) and by the radix tree", finds_after_another_head(RadixTree), 0),
        Check.exact("(b) the radix tree hits at least as much everywhere", never_less, True),
        Check.exact(
            "(b) few-shot, blocks of 256: the hash chain finds 512 of the 600 tokens that are shared",
            round(found["few-shot", "hash_chain", 256] / found["few-shot", "radix", 256], 3),
            round(_few_shot_share(), 3),
        ),
        Check.shape(
            "(b) the larger the block, the more the hash chain leaves",
            f"{wide[0]:.1f}% and {wide[1]:.1f}% of conversations at 256",
            "over 10 points",
            wide[1] - wide[0] > 10,
        ),
        Check.shape(
            "(b) the radix tree's hits do not depend on the block",
            ", ".join(f"{hits:.1f}%" for hits in steady),
            "within a point",
            max(steady) - min(steady) < 1,
        ),
        Check.exact("(b) match: look-ups of both at blocks of 16", [costs[1][1], costs[1][2]], [125, 125]),
        Check.exact("(b) match: look-ups at blocks of 1", [costs[0][1], costs[0][2]], [2000, 2000]),
        Check.exact("(b) eviction: blocks that leave at a time", [row[2] for row in evictions], [1, 1, 8]),
    ]
    return Outcome(
        [
            Table(
                "Granularity: hits in a cache that holds everything, %",
                [
                    Column("workload"),
                    Column("block"),
                    *(Column(name, Source.OURS, "{:.1f}") for name in INDEXES.values()),
                ],
                granularity,
            ),
            Table(
                f"Match: look-ups for a cached prompt of {PROMPT:,} tokens",
                [Column("block"), *(Column(name, Source.OURS) for name in INDEXES.values())],
                costs,
            ),
            Table(
                "Eviction: what makes room for one block",
                [Column("index"), Column("what leaves"), Column("blocks", Source.OURS)],
                evictions,
            ),
        ],
        checks,
        [
            "(a) K/V depends on the whole prefix, so a block's hash includes that of the block before it.",
            "(b) Both compare tokens on a hit, both look up once a block, both evict ends of paths first. "
            "The tree shares the head of a block that differs later by copying it, so large blocks cost no "
            "hits. `benchmarks/prefix_index.py` has the microseconds.",
        ],
    )


def _few_shot_share() -> float:
    """Of what the tree hits with tokens, what whole blocks of 256 keep: the first prompt of each task finds
    the common 100 tokens or nothing, all others 600 or 512."""
    requests = list(WORKLOADS["few-shot"])
    tasks = {request.prompt[100] for request in requests}
    later = len(requests) - len(tasks)
    return 512 * later / (600 * later + 100 * (len(tasks) - 1))


DEMOS = (
    Demo(
        "exercise-6",
        ("E6", "R7-17"),
        "Exercise 6: hash chain and radix tree",
        parts=tuple(HITS.values()),
        combine=combine,
        seconds=0.5,
    ),
)
