"""The pitfalls that no other demo shows: kernels of paged memory, and what multiples depend on."""

from __future__ import annotations

from dataclasses import dataclass

from leafage.sim.cost_model import CostModel
from leafage.sim.hardware import Hardware
from leafage.sim.reproduce.code_02 import ENGINES, LARGE
from leafage.sim.reproduce.demo import Cell, Check, Column, Demo, Outcome, Results, Source, Table, Tools
from leafage.sim.reproduce.scenarios import SCENARIO_A, SCENARIO_B, Scenario
from leafage.sim.result import SimResult

# -- pitfall 8 ---------------------------------------------------------------------------------------

NAMES = ("Max", "Oracle", "paged")
CASES = (
    (SCENARIO_A, {name: ENGINES[name, 3.0] for name in NAMES}),
    (SCENARIO_B, {name: LARGE[name, 12.0] for name in NAMES}),
)


def multiples(results: Results) -> Outcome:
    """The same systems on a device short of memory and on one that is not."""
    columns = [
        Column("scenario"),
        Column("KV of a token, KiB", Source.OURS),
        Column("KV tokens", Source.OURS),
        Column("paged over Max, tok/s", Source.OURS, "{:.2f}x"),
        Column("paged over Oracle, tok/s", Source.OURS, "{:.2f}x"),
        Column("paged: KV in use %", Source.OURS, "{:.0f}"),
    ]
    rows: list[list[Cell]] = []
    over_max, over_oracle = [], []
    for scenario, parts in CASES:
        found: dict[str, SimResult] = {name: results[part] for name, part in parts.items()}
        speed = {name: result.throughput for name, result in found.items()}
        over_max.append(speed["paged"] / speed["Max"])
        over_oracle.append(speed["paged"] / speed["Oracle"])
        rows.append(
            [
                _short(scenario),
                scenario.spec.kv_bytes_per_token // 1024,
                found["paged"].num_slots,
                over_max[-1],
                over_oracle[-1],
                100 * found["paged"].occupancy,
            ]
        )
    return Outcome(
        [Table("What paging gains when the load is high", columns, rows)],
        [
            Check.shape(
                "the gain over Oracle shrinks where memory is not short",
                f"{over_oracle[0]:.2f}x, then {over_oracle[1]:.2f}x",
                "well above 1.1x, then below",
                over_oracle[0] > 1.1 > over_oracle[1] > 1,
            ),
            Check.shape(
                "so does the gain over Max",
                f"{over_max[0]:.2f}x, then {over_max[1]:.2f}x",
                "less than two thirds of it",
                over_max[1] < over_max[0] * 2 / 3,
            ),
        ],
        [
            "Grouped-query attention makes a token's K/V six times smaller, and the device has twice the "
            "memory: arithmetic begins to limit as well. `leafage sim compare` answers the question for "
            "another model, device or trace."
        ],
    )


def _short(scenario: Scenario) -> str:
    return f"{scenario.model} on {scenario.hardware}"


# -- pitfalls 1 and 2 --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttentionEfficiency:
    """What of its speed this machine's attention keeps, by block size: of decode rows, of prompts."""

    def __call__(self, tools: Tools) -> dict[int, tuple[float, float]]:
        return {size: (decode, prompt) for size, decode, prompt in tools.block_efficiency()}


ATTENTION = AttentionEfficiency()


def paged_kernel(results: Results) -> Outcome:
    """Attention over scattered blocks beside attention over one piece, on this machine."""
    found: dict[int, tuple[float, float]] = results[ATTENTION]
    rows: list[tuple[str, Cell, Cell, Cell]] = []
    for size in (8, 16):
        decode, prompt = found[size]
        said = ("slower", "20 to 26 %") if size == 16 else (None, None)
        rows.append((f"blocks of {size}, decode rows: slower by", f"{1 / decode - 1:.0%}", *said))
        rows.append((f"blocks of {size}, prompts: slower by", f"{1 / prompt - 1:.0%}", None, None))
    return Outcome(
        [Table.compared("Paged attention against contiguous K and V", rows)],
        [
            Check.shape(
                "blocks smaller than a tile make attention slower",
                f"{found[8][0]:.0%} of its speed for decode rows with blocks of 8",
                "below 90 %",
                found[8][0] < 0.9,
            )
        ],
        [
            "Measured in this machine's native kernels, one thread, 1,024 tokens: blocks in random places "
            "against one block for all of it; the paper compares its kernel with FasterTransformer's on an "
            "A100. Our kernels read tiles of 16 tokens: smaller blocks are gathered, larger ones cost little "
            "or nothing, within the noise. Never is paged attention faster: the gain is the larger batch."
        ],
    )


def small_blocks(results: Results) -> Outcome:
    """What the lecture's simulation leaves out: kernels and swaps pay for small blocks."""
    found: dict[int, tuple[float, float]] = results[ATTENTION]
    columns = [
        Column("block size"),
        Column("attention of decode rows, % of its speed", Source.OURS, "{:.0f}"),
        Column("attention of prompts, %", Source.OURS, "{:.0f}"),
        Column("swap of 512 tokens, ms (A100)", Source.OURS, "{:.1f}"),
        Column("held, not written, tokens a request", Source.OURS, "{:.1f}"),
    ]
    hardware = Hardware.load(SCENARIO_A.hardware)
    rows: list[list[Cell]] = []
    swaps = {}
    for size, (decode, prompt) in found.items():
        cost = CostModel(hardware, SCENARIO_A.spec, block_size=size).restore_cost
        swaps[size] = 1e3 * cost.swap(-(-512 // size))
        rows.append([size, 100 * decode, 100 * prompt, swaps[size], (size - 1) / 2])
    return Outcome(
        [Table("What a block size costs", columns, rows)],
        [
            Check.shape(
                "blocks of 1 cost the kernel",
                f"{found[1][0]:.0%} of its speed against {found[16][0]:.0%} with blocks of 16",
                "clearly less",
                found[1][0] < 0.95 * found[16][0],
            ),
            Check.shape(
                "and swaps",
                f"{swaps[1]:.1f} ms against {swaps[16]:.1f} ms",
                "more",
                swaps[1] > 1.2 * swaps[16],
            ),
        ],
        [
            "Kernels are this machine's; swaps are the paper GPU's; the last column is the mean of a last "
            "block that is filled to any length alike. Together with code 02 demo 4 (memory) the best size "
            "lies in between: 16 by default, here as in vLLM."
        ],
    )


DEMOS = (
    Demo(
        "pitfall-1",
        ("P1", "R3-6"),
        "Pitfall 1: paged attention is slower, not faster",
        parts=(ATTENTION,),
        combine=paged_kernel,
        seconds=2,
    ),
    Demo(
        "pitfall-2",
        ("P2", "R3-10"),
        "Pitfall 2: smaller blocks are not always better",
        parts=(ATTENTION,),
        combine=small_blocks,
        seconds=2,
    ),
    Demo(
        "pitfall-8",
        ("P8", "R3-11"),
        "Pitfall 8: what paging gains depends on how short memory is",
        parts=tuple(part for _, parts in CASES for part in parts.values()),
        combine=multiples,
        seconds=3,
    ),
)
