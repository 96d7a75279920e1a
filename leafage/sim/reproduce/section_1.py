"""Section 1: where the KV cache goes, system by system, and why contiguous memory cannot share."""

from __future__ import annotations

from leafage.core.kv_manager import KVManager
from leafage.core.protocols import KV
from leafage.core.reserved import ReservedKVManager
from leafage.core.usage import Usage
from leafage.sim.cost_model import CostModel
from leafage.sim.hardware import Hardware
from leafage.sim.reproduce.demo import Cell, Check, Column, Demo, Outcome, Results, Source, Table, Tools
from leafage.sim.reproduce.scenarios import SCENARIO_A
from leafage.sim.reproduce.stepping import engine_over
from leafage.sim.result import SimResult
from leafage.sim.workload import SimRequest

# -- what a device's memory is for -------------------------------------------------------------------


def memory(tools: Tools) -> Outcome:
    """A 13B model on a device of 40 GB."""
    hardware, spec = Hardware.load(SCENARIO_A.hardware), SCENARIO_A.spec
    weights = 100 * spec.weight_bytes / hardware.memory_bytes
    kv = 100 * CostModel(hardware, spec).kv_pool_bytes / hardware.memory_bytes
    rows: list[tuple[str, Cell, Cell, Cell]] = [
        ("weights, % of the memory", round(weights, 1), "about 65", "about 65"),
        ("KV cache, %", round(kv, 1), "close to 30", "close to 30"),
        ("the rest, %", round(100 - weights - kv, 1), "a small part", "a small part"),
    ]
    return Outcome(
        [Table.compared("OPT-13B on an A100 of 40 GB", rows)],
        [
            Check.exact("weights, GB", f"{spec.weight_bytes / 1e9:.1f}", "26.2"),
            Check.exact("weights, % of the memory", round(weights, 1), 65.5),
            Check.exact("KV cache, %", round(kv, 1), 24.5),
        ],
        [
            "Weights and KV cache may take 90 % of the memory here, as vLLM's default has it since; the "
            "paper's KV cache is a little larger."
        ],
    )


# -- wastes ------------------------------------------------------------------------------------------

RATE = 3.0
ALLOCATORS = {"counted": "-scattered", "first fit": "", "buddy": "-buddy"}
SYSTEMS = {
    (f"{name}, {allocator}" if name != "paged" else name): SCENARIO_A.at(RATE, **settings)
    for name, allocator, settings in (
        *(
            (name, allocator, {"kv": f"reserved-{name.lower()}{suffix}"})
            for name in ("Max", "Pow2", "Oracle")
            for allocator, suffix in ALLOCATORS.items()
        ),
        ("paged", "", {}),
    )
}


def wastes(results: Results) -> Outcome:
    """Every slot of the KV cache over time: stored, or lost in one of three ways, or free."""
    kinds = ("stored", "reservation", "internal", "external", "free")
    columns = [Column("memory"), *(Column(f"{kind} %", Source.OURS, "{:.1f}") for kind in kinds)]
    columns += [Column("tok/s", Source.OURS, "{:.0f}"), Column("mean batch", Source.OURS, "{:.1f}")]
    rows: list[list[Cell]] = []
    stored: dict[str, float] = {}
    found: dict[str, SimResult] = {name: results[part] for name, part in SYSTEMS.items()}
    for name, result in found.items():
        shares = [100 * result.share(kind) for kind in kinds]
        stored[name] = shares[0]
        rows.append([name, *shares, result.throughput, result.mean_batch])
    buddies = [stored[f"{name}, buddy"] for name in ("Max", "Pow2", "Oracle")]
    said: list[tuple[str, Cell, Cell, Cell]] = [
        ("three Orca systems, buddy allocator: stored %", _range(buddies), None, "20.4 to 38.2"),
        ("paged: stored %", f"{stored['paged']:.1f}", "about 90", "96.3"),
    ]
    lost = {name: found[name].share("external") for name in found}
    return Outcome(
        [
            Table(f"Scenario A at rate {RATE:g}: the KV cache, weighted by time", columns, rows, stacked=5),
            Table.compared("Effective use", said),
        ],
        [
            Check.shape(
                "three Orca systems: stored %, least and most",
                _range(buddies),
                "20.4 to 38.2, 4 points apart at most",
                abs(min(buddies) - 20.4) <= 4 and abs(max(buddies) - 38.2) <= 4,
            ),
            Check.band("paged: stored %", stored["paged"], 80, 96.3, format="{:.1f}"),
            Check.exact("paged: external fragmentation", round(lost["paged"], 6), 0.0),
            Check.shape(
                "one piece costs what counting does not",
                f"{100 * lost['Oracle, first fit']:.1f} % external",
                "above 1 %, and 0 where it is counted",
                lost["Oracle, first fit"] > 0.01 and lost["Oracle, counted"] == 0,
            ),
            Check.shape(
                "internal fragmentation of paging is below a block for each request",
                f"{100 * found['paged'].share('internal'):.2f} %",
                f"below {100 * found['paged'].mean_batch * 16 / found['paged'].num_slots:.2f} %",
                found["paged"].share("internal") < found["paged"].mean_batch * 16 / found["paged"].num_slots,
            ),
        ],
        [
            "`counted`: the reservation only, as the lecture's simulator has it; its blocks may lie "
            "anywhere. `first fit` and `buddy`: in one piece, as Orca (the paper's is `buddy`, which rounds "
            "up to powers of two and cannot merge all that is free). This is one reason for the paper's "
            "larger gains over Orca: one piece costs throughput on top of the reservation."
        ],
    )


def _range(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"


# -- copies ------------------------------------------------------------------------------------------

PROMPT, OUTPUT, BLOCK = 62, 40, 8
WAYS = {"parallel, n = 2": (2, None), "parallel, n = 4": (4, None), "beam search, width 4": (1, 4)}


def copies(tools: Tools) -> Outcome:
    """Several sequences of one prompt: copies in contiguous memory, shared blocks in paged memory."""
    columns = [
        Column("decoding"),
        Column("memory"),
        Column("blocks held", Source.OURS),
        Column("slots that duplicate others", Source.OURS),
        Column("blocks copied", Source.OURS),
    ]
    rows: list[list[Cell]] = []
    checks = []
    for way, (n, beams) in WAYS.items():
        held: dict[str, float] = {}
        for name in ("contiguous", "paged"):
            length = PROMPT + OUTPUT + 1
            kv: KV
            if name == "paged":
                kv = KVManager(128, BLOCK, "none")
            else:
                kv = ReservedKVManager(128, BLOCK, "oracle", max_model_len=length)
            request = SimRequest("0", 0.0, range(PROMPT), range(OUTPUT + 1), n=n, beam_width=beams)
            usage, copied = _at_end(kv, request, length)
            held[name] = usage.held / BLOCK
            rows.append([way, name, int(held[name]), int(usage.duplicates), copied])
            if name == "contiguous":
                checks.append(
                    Check.shape(
                        f"{way}: contiguous memory holds duplicates",
                        f"{usage.duplicates:.0f} slots",
                        "at least the full blocks of the prompt, again for each sequence",
                        usage.duplicates >= ((beams or n) - 1) * (PROMPT // BLOCK) * BLOCK,
                    )
                )
            else:
                checks.append(Check.exact(f"{way}: paged duplicates of the prompt", usage.duplicates, 0))
        checks.append(
            Check.shape(
                f"{way}: paged memory holds less",
                f"{held['paged']:.0f} blocks against {held['contiguous']:.0f}",
                "fewer blocks",
                held["paged"] < held["contiguous"],
            )
        )
    return Outcome(
        [Table(f"Prompt of {PROMPT}, answers of {OUTPUT} tokens, blocks of {BLOCK}", columns, rows)], checks
    )


def _at_end(kv: KV, request: SimRequest, length: int) -> tuple[Usage, int]:
    """The usage when the last K/V is written, and the blocks copied so far."""
    engine = engine_over(kv, [request], max_model_len=length)
    for _ in range(len(request.output) - 1):
        engine.step()
    engine.scheduler.schedule()
    return kv.usage(engine.scheduler.roster.running), kv.counters.copied_blocks


DEMOS = (
    Demo("memory", ("R1-2", "R0-5"), "Section 1.2: what a device's memory is for", memory),
    Demo(
        "wastes",
        ("R1-3", "R1-4"),
        "Section 1.3: the wastes of contiguous memory, over time",
        parts=tuple(SYSTEMS.values()),
        combine=wastes,
        seconds=2,
    ),
    Demo("copies", ("R1-7",), "Section 1.4: contiguous memory cannot share", copies),
)
