"""Section 4's published gains of sharing, beside the simulator's: blocks saved, and throughput against "
"Oracle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from leafage.core.batch import Batch
from leafage.core.protocols import KV
from leafage.core.request import Delta, Request
from leafage.engine.engine import Observer
from leafage.sim.distributions import (
    ALPACA_OUTPUT,
    ALPACA_PROMPT,
    SHAREGPT_OUTPUT,
    SHAREGPT_PROMPT,
    LogNormal,
)
from leafage.sim.independent import Independent
from leafage.sim.reproduce.demo import Cell, Check, Column, Demo, Outcome, Part, Results, Source, Table, Tools
from leafage.sim.reproduce.scenarios import SCENARIO_A
from leafage.sim.shared_prompts import FewShot
from leafage.sim.simulation import Simulation
from leafage.sim.workload import Workload

LENGTHS = {"Alpaca": (ALPACA_PROMPT, ALPACA_OUTPUT), "ShareGPT": (SHAREGPT_PROMPT, SHAREGPT_OUTPUT)}
WIDTHS = (2, 4, 6)
EVERY = 8
"""Steps from one look at the blocks to the next."""


class BlocksSaved:
    """Watches a simulation: the blocks that running sequences hold, and what they would without sharing.

    It stands before the engine's own observer and tells it everything.
    """

    def __init__(self, simulation: Simulation) -> None:
        assert simulation.engine.observer is not None
        self._inner: Observer = simulation.engine.observer
        self._kv: KV = simulation.engine.scheduler.kv
        simulation.engine.observer = self
        simulation.fast_forward = False  # steps that are taken together are not shown
        self._num_steps = self._held = self._separate = 0

    @property
    def share(self) -> float:
        """Of the blocks without sharing, over the whole run."""
        return 1 - self._held / self._separate

    def scheduled(self, batch: Batch) -> None:
        self._inner.scheduled(batch)
        self._num_steps += 1
        if self._num_steps % EVERY == 0:
            tables = [seq.block_table for seq in self._kv.attached()]
            self._held += len(set().union(*tables))
            self._separate += sum(map(len, tables))

    def added(self, request: Request) -> None:
        self._inner.added(request)

    def stepped(self, batch: Batch, deltas: list[Delta]) -> None:
        self._inner.stepped(batch, deltas)

    def aborted(self, request_id: str) -> None:
        self._inner.aborted(request_id)


@dataclass(frozen=True, slots=True)
class Decoding:
    """A part: a dataset's lengths decoded in one way, all requests there at once.

    Attributes:
        width: samples of each prompt, or beams; 1: one answer.
        num_requests: fewer where each is several sequences, which take as long.
    """

    dataset: str
    beams: bool
    width: int
    num_requests: int

    def __call__(self, tools: Tools) -> float:
        """Blocks saved, as a share."""
        simulation = SCENARIO_A.simulation(tools)
        saved = BlocksSaved(simulation)
        simulation.run(self.workload())
        return saved.share

    def workload(self) -> Workload:
        prompt, output = LENGTHS[self.dataset]
        ways: dict[str, Any] = {"beam_width": self.width} if self.beams else {"n": self.width}
        return Independent(
            arrivals="at-once",
            num_requests=self.num_requests,
            prompt_tokens=prompt,
            output_tokens=output,
            max_total_tokens=SCENARIO_A.max_model_len,
            **ways,
        )


@dataclass(frozen=True, slots=True)
class AgainstOracle:
    """A part: throughput of a workload when it is paged, over that when the true lengths are reserved."""

    decoding: Decoding

    def __call__(self, tools: Tools) -> float:
        return _throughput(tools, self.decoding.workload()) / _throughput(
            tools, self.decoding.workload(), kv="reserved-oracle"
        )


@dataclass(frozen=True, slots=True)
class Translation:
    """A part: translation with examples before each sentence, as WMT16's English to German.

    Attributes:
        examples_tokens: of the common prefix; 80 for one example and 341 for five (Kwon et al., SOSP 2023,
            section 6.4).
    """

    examples_tokens: int
    num_requests: int = 300

    def __call__(self, tools: Tools) -> tuple[float, float]:
        """Throughput over that of Oracle: prefix shared, and paged without sharing."""
        shared, paged, oracle = (
            _throughput(tools, self.workload(), **settings)
            for settings in ({"prefix_index": "radix"}, {}, {"kv": "reserved-oracle"})
        )
        return shared / oracle, paged / oracle

    def workload(self) -> Workload:
        return FewShot(
            num_requests=self.num_requests,
            num_tasks=1,
            system_tokens=0,
            task_tokens=self.examples_tokens,
            question_tokens=LogNormal(28, 0.5, 4, 200),
            output_tokens=LogNormal(32, 0.5, 4, 200),
        )


def _throughput(tools: Tools, workload: Workload, **settings: Any) -> float:
    return SCENARIO_A.simulation(tools, **settings).run(workload).throughput


# -- blocks saved ----------------------------------------------------------------------------------

NUM_REQUESTS = {
    ("Alpaca", False): 48,
    ("ShareGPT", False): 40,
    ("Alpaca", True): 24,
    ("ShareGPT", True): 8,
}
"""By dataset and whether it is searched; fewer where each takes long."""
SAVED = {
    (dataset, beams, width): Decoding(dataset, beams, width, NUM_REQUESTS[dataset, beams])
    for dataset in LENGTHS
    for beams in (False, True)
    for width in WIDTHS
}
PAPER_SAVED = {
    ("Alpaca", False): (6.1, 9.8),
    ("ShareGPT", False): (16.2, 30.5),
    ("Alpaca", True): (37.6, 55.2),
    ("ShareGPT", True): (44.3, 66.3),
}
"""At widths 2 to 6, in per cent."""


def blocks_saved(results: Results) -> Outcome:
    """Shares of blocks saved by width."""
    rows: list[list[Cell]] = []
    checks = []
    found: dict[tuple[str, bool], list[float]] = {}
    for (dataset, beams), (low, high) in PAPER_SAVED.items():
        ours = found[dataset, beams] = [100 * results[SAVED[dataset, beams, width]] for width in WIDTHS]
        name = f"{dataset}, {'beam search' if beams else 'parallel sampling'}"
        rows.append([name, *ours, f"{low} to {high}"])
        checks.append(
            Check.shape(
                f"{name}: the wider, the more is saved", _percents(ours), "rising", ours == sorted(ours)
            )
        )
    for beams in (False, True):
        short, long = found["Alpaca", beams], found["ShareGPT", beams]
        checks.append(
            Check.shape(
                f"{'beams' if beams else 'samples'}: ShareGPT's longer prompts save more than Alpaca's",
                f"{_percents(long)} and {_percents(short)}",
                "more at every width",
                all(a > b for a, b in zip(long, short, strict=True)),
            )
        )
    more = all(
        beam > sample for d in LENGTHS for beam, sample in zip(found[d, True], found[d, False], strict=True)
    )
    checks.append(Check.shape("beams share more than samples", str(more), "at every width", more))
    columns = [Column("blocks saved, %"), *(Column(f"width {w}", Source.OURS, "{:.1f}") for w in WIDTHS)]
    return Outcome(
        [Table("OPT-13B, blocks of 16", [*columns, Column("widths 2 to 6", Source.PAPER)], rows)],
        checks,
        [
            "Lengths have the datasets' means, their shapes are ours. Simulated beams choose among made-up "
            "rows of probabilities, so what they share is of the right kind and no more."
        ],
    )


def _percents(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.1f}%" for value in values)


# -- throughput ------------------------------------------------------------------------------------

GAINS: dict[str, tuple[Part, str | None]] = {
    "one answer": (AgainstOracle(Decoding("Alpaca", False, 1, 300)), "1.3x"),
    "6 samples": (AgainstOracle(Decoding("Alpaca", False, 6, 150)), None),
    "2 beams": (AgainstOracle(Decoding("Alpaca", True, 2, 150)), None),
    "6 beams": (AgainstOracle(Decoding("Alpaca", True, 6, 150)), "2.3x"),
}
"""Alpaca's lengths."""
TRANSLATIONS: dict[str, tuple[Part, str]] = {
    "1 example": (Translation(80), "1.67x"),
    "5 examples": (Translation(341), "3.58x"),
}


def throughput(results: Results) -> Outcome:
    """Ratios of throughput."""
    gains = {name: results[part] for name, (part, _) in GAINS.items()}
    rows = [(name, gains[name], None, paper) for name, (_, paper) in GAINS.items()]
    shots = {name: results[part] for name, (part, _) in TRANSLATIONS.items()}
    translated: list[list[Cell]] = [
        [name, shots[name][0], shots[name][1], paper] for name, (_, paper) in TRANSLATIONS.items()
    ]
    one, five = shots["1 example"], shots["5 examples"]
    checks = [
        Check.shape(
            "sharing gains more the more there is to share",
            ", ".join(f"{name} {gain:.2f}x" for name, gain in gains.items()),
            "one answer < 6 samples < 6 beams, beams rising",
            1 < gains["one answer"] < gains["6 samples"] < gains["6 beams"]
            and gains["one answer"] < gains["2 beams"] < gains["6 beams"],
        ),
        Check.shape(
            "a longer common prefix gains more",
            f"{one[0]:.2f}x and {five[0]:.2f}x",
            "1 < 1 example < 5 examples",
            1 < one[0] < five[0],
        ),
        Check.shape(
            "and paging alone gains little of it",
            f"{one[1]:.2f}x and {five[1]:.2f}x",
            "below 1.3x",
            max(one[1], five[1]) < 1.3,
        ),
    ]
    columns = [
        Column("prefix"),
        Column("prefix shared", Source.OURS, "{:.2f}x"),
        Column("paged, not shared", Source.OURS, "{:.2f}x"),
        Column("prefix shared", Source.PAPER),
    ]
    return Outcome(
        [
            Table.compared("Throughput over Oracle's, OPT-13B, Alpaca's lengths", rows, format="{:.2f}x"),
            Table("Throughput over Oracle's, translation behind a common prefix", columns, translated),
        ],
        checks,
        [
            "Oracle reserves the true length of every sequence and shares nothing. Ours is the throughput of "
            "requests that are all there at once; the paper's is the rate at equal latency, on its own "
            "implementation of Orca, and LLaMA-13B for translation.",
        ],
    )


DEMOS = (
    Demo(
        "section4-1",
        ("R4-4",),
        "Section 4: blocks that samples and beams save, by dataset",
        parts=tuple(SAVED.values()),
        combine=blocks_saved,
        seconds=2,
    ),
    Demo(
        "section4-2",
        ("R4-4", "R4-5"),
        "Section 4: throughput of sharing against Oracle",
        parts=tuple(part for part, _ in (*GAINS.values(), *TRANSLATIONS.values())),
        combine=throughput,
        seconds=3,
    ),
)
