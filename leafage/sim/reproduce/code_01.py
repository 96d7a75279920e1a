"""Code 01: block tables, the same tokens from scattered blocks, and what contiguous memory wastes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from leafage.core.block_pool import BlockPool
from leafage.core.kv_manager import KVManager
from leafage.core.sampling_params import SamplingParams
from leafage.sim.fragmentation import MEMORIES, Failures, end_of_request, fragmentation
from leafage.sim.reproduce.demo import Cell, Check, Column, Demo, Outcome, RealEngine, Source, Table, Tools
from leafage.sim.reproduce.scenarios import SCENARIO_A
from leafage.sim.reproduce.stepping import engine_over
from leafage.sim.workload import SimRequest

# -- demo 1 ----------------------------------------------------------------------------------------

BLOCK_SIZE, NUM_BLOCKS = 8, 12
PROMPTS = {"A": 20, "B": 24}
LECTURE_STEPS = {
    0: ("20 tok [8, 11, 4] 4/8", "24 tok [7, 5, 0] 8/8", 6),
    1: ("21 tok [8, 11, 4] 5/8", "25 tok [7, 5, 0, 1] 1/8", 5),
    5: ("25 tok [8, 11, 4, 9] 1/8", "29 tok [7, 5, 0, 1] 5/8", 4),
    12: ("32 tok [8, 11, 4, 9] 8/8", "36 tok [7, 5, 0, 1, 2] 4/8", 3),
}
"""By decode steps done: tokens, table and fill of the last block of A and of B, and free blocks."""


def block_tables(tools: Tools) -> Outcome:
    """Two requests grow through a shuffled pool."""
    order = np.random.default_rng(1).permutation(NUM_BLOCKS).tolist()
    kv = KVManager(NUM_BLOCKS, BLOCK_SIZE, "none", block_order=order)
    # One token more than the steps shown, so that nobody ends before the last of them.
    requests = [SimRequest(name, 0.0, range(count), range(14)) for name, count in PROMPTS.items()]
    engine = engine_over(kv, requests, max_model_len=NUM_BLOCKS * BLOCK_SIZE)
    found: dict[int, tuple[str, str, int]] = {}
    for step in range(max(LECTURE_STEPS) + 1):
        engine.step()
        if step in LECTURE_STEPS:
            a, b = (_shown(request.sequences[0]) for request in engine.scheduler.roster.running)
            found[step] = (a, b, kv.num_free)
    columns = [Column("step")]
    for name in ("A", "B", "free"):
        columns += [Column(name, Source.OURS), Column(name, Source.LECTURE)]
    rows: list[list[Cell]] = []
    checks = []
    for step, lecture in LECTURE_STEPS.items():
        label = f"decode {step}" if step else "prefill"
        (a, b, free), (a_said, b_said, free_said) = found[step], lecture
        rows.append([label, a, a_said, b, b_said, free, free_said])
        said, ours = (f"{a}; {b}; {free} free" for a, b, free in (lecture, found[step]))
        checks.append(Check.exact(f"{label}: both tables and the free blocks", ours, said))
    return Outcome(
        [Table(f"Block tables, {NUM_BLOCKS} blocks of {BLOCK_SIZE} tokens", columns, rows)],
        checks,
        ["The pool hands its blocks out in the order of NumPy's `default_rng(1).permutation(12)`."],
    )


def _shown(seq: Any) -> str:
    count = seq.num_computed
    return f"{count} tok {seq.block_table} {(count - 1) % BLOCK_SIZE + 1}/{BLOCK_SIZE}"


# -- demo 2 ----------------------------------------------------------------------------------------

BLOCK_SIZES = (1, 4, 16)
ARRIVALS = (0, 0, 3, 4, 9, 15)
"""Steps at which the six requests arrive."""
TEXTS = (
    "The cat sat on the mat, and then",
    "Once upon a time there was a small village by the sea where",
    "Paging is",
    "In the beginning the memory was reserved for the longest answer, so that most of it stayed empty. Later",
    "12 + 30 =",
    "A block table maps logical blocks to",
)
MAX_TOKENS = 20


def same_tokens(tools: Tools, *, model: str) -> Outcome:
    """Six requests that arrive at different steps, paged in six ways, against each alone."""
    alone = _answers(tools, model, 16, shuffled=False, together=False)
    rows = []
    checks = []
    for block_size in BLOCK_SIZES:
        for shuffled in (False, True):
            answers = _answers(tools, model, block_size, shuffled=shuffled, together=True)
            same = sum(a == b for a, b in zip(answers, alone, strict=True))
            order = "shuffled" if shuffled else "in order"
            rows.append((f"block size {block_size}, {order}", f"{same} of {len(TEXTS)}", "identical", None))
            checks.append(Check.exact(f"block size {block_size}, {order}: same tokens", same, len(TEXTS)))
    count = sum(map(len, alone))
    return Outcome(
        [Table.compared(f"Answers equal to those generated one by one ({count} tokens)", rows)],
        checks,
        [
            f"The real engine and its kernels over `{model}`; requests are drawn at temperature 1 with seeds "
            f"and arrive at the steps {', '.join(map(str, ARRIVALS))}."
        ],
    )


def _answers(tools: Tools, model: str, block_size: int, *, shuffled: bool, together: bool) -> list[list[int]]:
    num_tokens = 1024
    settings = {"block_size": block_size, "kv_cache_tokens": num_tokens, "threads": 1, "seed": 0}
    built = tools.engine(model, {**settings, "prefix_index": "none"})
    kv = built.engine.scheduler.kv
    assert isinstance(kv, KVManager) and kv.num_free == kv.num_blocks
    if shuffled:  # the pool is untouched: hand its blocks out in another order
        kv.store.pool = BlockPool(kv.num_blocks, np.random.default_rng(2).permutation(kv.num_blocks).tolist())
    prompts = {str(i): built.tokenizer.encode(text) for i, text in enumerate(TEXTS)}
    if not together:
        return [_run(built, {0: [name]}, prompts)[name] for name in prompts]
    arrivals: dict[int, list[str]] = {}
    for name, step in zip(prompts, ARRIVALS, strict=True):
        arrivals.setdefault(step, []).append(name)
    answers = _run(built, arrivals, prompts)
    return [answers[name] for name in prompts]


def _run(
    built: RealEngine, arrivals: Mapping[int, Sequence[str]], prompts: Mapping[str, Sequence[int]]
) -> dict[str, list[int]]:
    """The answers of requests that arrive at these steps."""
    engine = built.engine
    answers: dict[str, list[int]] = {}
    step = 0
    while engine.has_unfinished or step <= max(arrivals):
        for name in arrivals.get(step, ()):
            params = SamplingParams(temperature=1.0, seed=int(name), max_tokens=MAX_TOKENS, ignore_eos=True)
            engine.add_request(name, prompts[name], params)
            answers[name] = []
        for delta in engine.step():
            answers[delta.request_id] += [token.token_id for token in delta.tokens]
        step += 1
    return answers


# -- demo 3 ----------------------------------------------------------------------------------------

PAGED_BLOCKS = (16, 256)
WRITTEN_SHARES = {  # of what is held at the end; the lecture's table is lost, these are a reconstruction
    "reserved-max": 26.4,
    "reserved-pow2": 81.5,
    "reserved-oracle": 100.0,
    "paged, block 16": 98.7,
    "paged, block 256": 81.4,
}


def wastes(tools: Tools) -> Outcome:
    """Slots that are never written, at the end of requests."""
    lengths = [(len(request.prompt), len(request.output)) for request in SCENARIO_A.trace(1.0)]
    rows = end_of_request(lengths, max_model_len=SCENARIO_A.max_model_len, block_sizes=PAGED_BLOCKS)
    columns = [
        Column("memory"),
        Column("held slots", Source.OURS, "{:,.1f}"),
        Column("written slots", Source.OURS, "{:,.1f}"),
        Column("wasted slots", Source.OURS, "{:,.1f}"),
        Column("utilisation %", Source.OURS, "{:.1f}"),
    ]
    table: list[list[Cell]] = [
        [row.system, row.held, row.written, row.held - row.written, 100 * row.utilisation] for row in rows
    ]
    checks = [
        Check.band(
            f"{row.system}: utilisation %", 100 * row.utilisation, wanted - 2, wanted + 2, format="{:.1f}"
        )
        for row, wanted in zip(rows, WRITTEN_SHARES.values(), strict=True)
    ]
    return Outcome(
        [Table("Means at the end of a request: internal fragmentation only", columns, table)],
        checks,
        [
            f"The {len(lengths)} lengths of scenario A. The lecture's own table is lost: the bands are those "
            "of an independent reconstruction. While a request runs, its reservation is wasted besides."
        ],
    )


# -- demo 4 ----------------------------------------------------------------------------------------

ARENA_TOKENS, NUM_EVENTS, SIGMA = 32_768, 20_000, 0.95
SEEDS = (0, 1, 2)
LECTURE_FAILURES = {512: (97, 99), 2048: (783, 77), 4096: (1377, 55)}
"""By mean size: failures of first-fit, and the share of them (%) with enough free memory in all."""
FAILURE_BANDS = {512: (90, 300), 2048: (530, 800), 4096: (1100, 1420)}


def external_fragmentation(tools: Tools) -> Outcome:
    """Contiguous allocation fails although enough is free; paged allocation never does."""
    columns = [
        Column("mean size"),
        Column("memory"),
        Column("failures", Source.OURS),
        Column("failures", Source.LECTURE),
        Column("with enough free, %", Source.OURS, "{:.0f}"),
        Column("with enough free, %", Source.LECTURE),
        Column("memory in use, %", Source.OURS, "{:.0f}"),
    ]
    rows: list[list[str | int | float | None]] = []
    checks = []
    for mean, (failures, percent) in LECTURE_FAILURES.items():
        runs = {name: [_events(name, mean, seed) for seed in SEEDS] for name in MEMORIES}
        for name, found in runs.items():
            said = (failures, percent) if name == "first-fit" else (None, None)
            count = int(statistics.median(run.failures for run in found))
            share = statistics.median(100 * run.enough_free / max(1, run.failures) for run in found)
            used = statistics.median(100 * run.used for run in found)
            rows.append([mean, name, count, said[0], share, said[1], used])
            if name == "first-fit":
                low, high = FAILURE_BANDS[mean]
                checks.append(Check.band(f"mean {mean}: failures of first-fit", count, low, high))
                text = f"mean {mean}: % of them with enough free"
                checks.append(Check.band(text, share, percent - 8, percent + 8, format="{:.0f}"))
        lost = sum(run.enough_free for run in runs["paged"])
        checks.append(Check.exact(f"mean {mean}: paged failures with enough free", lost, 0))
    return Outcome(
        [Table(f"{NUM_EVENTS:,} allocations and frees in {ARENA_TOKENS:,} tokens", columns, rows)],
        checks,
        [
            f"Medians of {len(SEEDS)} seeds. Sizes are log-normal (sigma {SIGMA}); a fair coin says allocate "
            "or free. All see the same stream. The number of failures at mean 512 is that of a random walk: "
            "it differs threefold between seeds, so its band is wide."
        ],
    )


def _events(memory: str, mean: int, seed: int) -> Failures:
    return fragmentation(
        MEMORIES[memory], num_tokens=ARENA_TOKENS, num_events=NUM_EVENTS, mean=mean, sigma=SIGMA, seed=seed
    )


DEMOS = (
    Demo("code01-1", ("R3-1", "R3-2"), "Code 01 demo 1: two block tables grow", block_tables),
    Demo(
        "code01-2",
        ("R3-3", "R3-4", "R3-5"),
        "Code 01 demo 2: the same tokens with any blocks, a tiny random model",
        partial(same_tokens, model="tiny"),
        seconds=2,
    ),
    Demo(
        "code01-2-real",
        ("R3-3", "R3-4"),
        "Code 01 demo 2: the same tokens with any blocks, SmolLM2",
        partial(same_tokens, model="smollm2"),
        model="smollm2",
        seconds=10,
    ),
    Demo("code01-3", ("R1-4", "R1-5"), "Code 01 demo 3: waste at the end of a request", wastes),
    Demo("code01-4", ("R1-6",), "Code 01 demo 4: external fragmentation", external_fragmentation, seconds=3),
)
