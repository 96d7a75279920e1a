"""Runs workloads on all sides, interleaved, between measurements of the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from peers.client import PeerError

from comparison import machine
from comparison.sides import Side, Sides, say
from leafage import bench

MAX_IDLE_CPUS = 0.03
MAX_STOLEN = 0.03
"""CPUs that the host may take while a side works; short work is done again when it took more."""
SHORT_SECONDS, MOST_TRIES = 5.0, 4


@dataclass(frozen=True, slots=True)
class Step:
    """Work for one side.

    Attributes:
        record: false for what only prepares the next step.
        floors: measure the machine right before and after it.
        check: name of a check that the tokens are those of the step of ours before it in its group.
    """

    side: Side
    workload: str
    work: bench.Work
    reset_cache: bool = True
    record: bool = True
    floors: bool = False
    check: str = ""


@dataclass(slots=True)
class Sample:
    """One answer of a side.

    Attributes:
        answer: as the driver gave it, without the tokens.
        others, stolen: CPUs that other processes kept busy meanwhile, and that the host took.
        load: load average of the last minute, when it began.
        floors: the machine's right before and right after, where the step asked for them.
        tries: how often it was done; this is the answer from which the host took least.
    """

    answer: dict[str, Any]
    others: float
    stolen: float
    load: float
    floors: list[bench.Floors] = field(default_factory=list)
    tries: int = 1


@dataclass(slots=True)
class Record:
    """All that was measured.

    Attributes:
        samples: by side and workload, a repetition each.
        errors: why a side has no samples of a workload.
        floors: by block, before each repetition and after the last.
        checks: by what was compared, whether the tokens were the same.
    """

    samples: dict[tuple[Side, str], list[Sample]] = field(default_factory=dict)
    errors: dict[tuple[Side, str], str] = field(default_factory=dict)
    floors: dict[str, list[bench.Floors]] = field(default_factory=dict)
    checks: dict[str, bool] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "samples": [
                {"side": str(side), "workload": workload, **asdict(sample)}
                for (side, workload), samples in self.samples.items()
                for sample in samples
            ],
            "errors": [
                {"side": str(side), "workload": workload, "error": text}
                for (side, workload), text in self.errors.items()
            ],
            "floors": {name: [asdict(floors) for floors in found] for name, found in self.floors.items()},
            "checks": self.checks,
        }


class Runner:
    """Fills a Record.

    Args:
        tell: called with a line of text for each answer.
    """

    def __init__(self, sides: Sides, threads: int, *, tell: Callable[[str], None] = say) -> None:
        self.record = Record()
        self._sides = sides
        self._threads = threads
        self._tell = tell
        self._first: dict[tuple[Side, str], tuple[bench.Work, list[list[int]]]] = {}

    def block(self, name: str, repetitions: int, groups: Callable[[int], list[list[Step]]]) -> None:
        """Run groups of steps, in turn from the first and from the last, with the floors around each turn.

        Args:
            groups: the groups of a repetition; a group's steps stay in order. What one side of a pair does
                should stand next to what the other does.
        """
        for repetition in range(repetitions):
            wanted = groups(repetition)
            self._start({step.side for group in wanted for step in group})
            self._measure_floors(name)
            self._tell(f"{name}: repetition {repetition + 1} of {repetitions}")
            for group in wanted if repetition % 2 == 0 else reversed(wanted):
                self._group(group)
        if repetitions:
            self._measure_floors(name)

    def alone(self, side: Side, workload: str) -> None:
        """Check that the requests of the first repetition, each run alone on a cold cache, give the same."""
        if (side, workload) in self._first:
            work, tokens = self._first[side, workload]
            answer = self.run(Step(side, f"{workload} alone", work))
            if answer is not None:
                self.check(f"{workload} = each request alone", answer["tokens"] == tokens)

    def check(self, name: str, same: bool) -> None:
        self.record.checks[name] = self.record.checks.get(name, True) and same

    def times(self, repetitions: int, step: Step) -> None:
        """One step again and again: what nobody stands beside."""
        for _ in range(repetitions):
            self.run(step)

    def run(self, step: Step) -> dict[str, Any] | None:
        """The answer to one step, None (and an error in the record) where the side failed."""
        key = (step.side, step.workload)
        tries: list[tuple[Sample, dict[str, Any]]] = []
        try:
            while not tries or self._again(step, tries[-1][0], len(tries)):
                tries.append(self._try(step))
        except PeerError as error:
            self.record.errors[key] = str(error)
            self.record.samples.pop(key, None)
            return None
        sample, answer = min(tries, key=lambda found: found[0].stolen)
        sample.tries = len(tries)
        if step.record and key not in self.record.errors:
            self.record.samples.setdefault(key, []).append(sample)
        self._tell(
            f"  {step.side}, {step.workload}: {answer['wall']:.2f} s, CPU {answer['cpu']:.2f} s"
            + (f", others {sample.others:.2f} CPUs" if sample.others >= 0.05 else "")
            + (f", the host {sample.stolen:.2f}" if sample.stolen > MAX_STOLEN else "")
            + (f", {len(tries)} tries" if len(tries) > 1 else "")
        )
        return answer

    def _again(self, step: Step, sample: Sample, tries: int) -> bool:
        """What reads the cache that it found has changed it."""
        short = sample.answer["wall"] < SHORT_SECONDS and step.reset_cache and step.record
        return short and sample.stolen > MAX_STOLEN and tries < MOST_TRIES

    def _try(self, step: Step) -> tuple[Sample, dict[str, Any]]:
        peer = self._sides.get(step.side)
        floors = [bench.measure_floors(self._threads)] if step.floors else []
        load, meter = bench.load_average(), machine.Meter(peer.pid)
        work = step.work
        answer = peer.run(
            step.workload,
            work.prompts,
            work.output_lengths,
            reset_cache=step.reset_cache,
            turns=work.turns,
            n=work.n,
            temperature=work.temperature,
            beam_width=work.beam_width,
        )
        others, stolen = meter.others()
        floors += [bench.measure_floors(self._threads)] if step.floors else []
        kept = {name: value for name, value in answer.items() if name not in ("tokens", "output_tokens")}
        kept["num_output_tokens"] = sum(answer["output_tokens"])
        kept["num_prompt_tokens"] = work.num_prompt_tokens
        return Sample(kept, others, stolen, load, floors), answer

    def _start(self, sides: Iterable[Side]) -> None:
        """All sides before the first measurement, so that none loads while another is measured."""
        for side in sorted(sides, key=str):
            with suppress(PeerError):  # `run` reports it
                self._sides.get(side)
        for side in self._sides.running():
            if side in self._sides.idle_cpus:
                continue
            self._sides.idle_cpus[side] = machine.idle_cpus(self._sides.get(side).pid, 0.5)
            if self._sides.idle_cpus[side] > MAX_IDLE_CPUS:
                self._tell(f"warning: {side} uses {self._sides.idle_cpus[side]:.2f} CPUs while it is idle")

    def _group(self, group: list[Step]) -> None:
        before: list[list[int]] | None = None
        for step in group:
            answer = self.run(step)
            if answer is None:
                return
            if step.check:
                self.check(step.check, answer["tokens"] == before)
            if "tokens" in answer and step.record:
                before = answer["tokens"]
                self._first.setdefault((step.side, step.workload), (step.work, before))

    def _measure_floors(self, block: str) -> None:
        self.record.floors.setdefault(block, []).append(bench.measure_floors(self._threads))
