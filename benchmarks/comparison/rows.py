"""The table: what was measured, put side by side, with what is wanted and whether it was reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from peers import expected

from comparison import plan
from comparison.runs import Record, Sample
from comparison.sides import LEAFAGE, TITLES, Side, Sides
from comparison.spread import Spread, Target, digits, ratios

TOKENS_DIFFER = "TOKENS DIFFER"
MEAN_CONTEXT = 192  # of W1: 128 tokens of prompt, and half of the output


@dataclass(slots=True)
class Row:
    """A line of the table.

    Attributes:
        group: the row's name in `plan.ROWS`.
        against: what ours stands beside.
        ours, theirs: by repetition, in `unit`.
        values: what is judged, by repetition, with `suffix`: ratios, or ours where nothing stands beside it.
        target: what is wanted of their median; None only prints them.
        problem: why the row does not count, or what is wrong.
        settled: the verdict of a row that has no values.
        cpu: CPU seconds of both sides, medians.
        others: most CPUs that other processes kept busy during a run of either side.
    """

    group: str
    title: str
    against: str
    unit: str = ""
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    suffix: str = "x"
    target: Target | None = None
    problem: str = ""
    settled: str = "printed"
    note: str = ""
    cpu: tuple[float | None, float | None] = (None, None)
    others: float = 0.0

    @property
    def verdict(self) -> str:
        if self.problem:
            return self.problem
        if self.target is None:
            return self.settled
        return "ok" if self.target.met(self.values) else "MISSED"

    def as_dict(self) -> dict[str, Any]:
        spread = asdict(Spread.of(self.values)) if self.values else None
        return asdict(self) | {"verdict": self.verdict, "spread": spread}

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> Row:
        """What `as_dict` gave."""
        values = {name: row[name] for name in cls.__slots__}
        return cls(**values | {"target": row["target"] and Target(**row["target"]), "cpu": tuple(row["cpu"])})


class Table:
    """Makes rows from a record."""

    def __init__(self, record: Record, sides: Sides, figures: dict[str, Any]) -> None:
        self._record = record
        self._settings = sides.settings
        self._figures = figures  # known ones of peers on this CPU

    def rows(self, wanted: set[str]) -> list[Row]:
        """The rows of these names, in the order of `plan.ROWS`."""
        return [row for name in plan.ROWS if name in wanted for row in getattr(self, f"_{name}")()]

    # -- the rows --------------------------------------------------------------------------------

    def _w1(self) -> list[Row]:
        return [
            self._pair("w1", "W1", plan.OURS, plan.llamacpp("Q4_1"), 2.2, ", same file"),
            self._pair("w1", "W1", plan.OURS, plan.OPENVINO, 2.7, ", same file"),
            self._pair("w1", "W1", plan.OURS, plan.VLLM, 5.0),
            self._share_of_memory("w1", plan.OURS, 75),
        ]

    def _w2(self) -> list[Row]:
        return [
            self._pair("w2", "W2", plan.OURS, plan.OPENVINO, 1.2, ", same file"),
            self._pair("w2", "W2", plan.OURS, plan.VLLM, 1.45),
            self._pair("w2", "W2", plan.OURS, plan.llamacpp("Q4_1"), None, ", same file"),
            self._gemm(),
            self._attention(),
        ]

    def _w3(self) -> list[Row]:
        return [
            self._pair("w3", "W3", plan.OURS, plan.OPENVINO, 1.5, ", same file"),
            self._pair("w3", "W3", plan.OURS, plan.VLLM, 1.5),
            self._pair("w3", "W3", plan.OURS, plan.llamacpp("Q8_0"), 3.0),
            self._check("w3", "W3 = each request alone", "W3 alone"),
        ]

    def _w4(self) -> list[Row]:
        return [
            self._pair("w4", "W4", plan.OURS, plan.VLLM, 1.8),
            self._pair("w4", "W4", plan.OURS, plan.llamacpp("Q8_0"), 8.0),
            self._check("w4", "W4 = each request alone", "W4 alone"),
        ]

    def _w4cached(self) -> list[Row]:
        return [
            self._pair("w4cached", "W4cached", plan.OURS, plan.OPENVINO, 2.5, ", same file"),
            self._check("w4cached", "W4cached = from a cold cache", "W4cached"),
        ]

    def _w5(self) -> list[Row]:
        peers = (plan.OPENVINO, plan.VLLM, plan.llamacpp("Q8_0"))
        rows = [
            self._pair("w5", "W5", plan.OURS, plan.OPENVINO, 1.3, ", same file"),
            self._pair("w5", "W5", plan.OURS, plan.VLLM, 1.8),
            self._pair("w5", "W5", plan.OURS, plan.llamacpp("Q8_0"), None),
        ]
        for title, name, target in (
            ("mean TTFT", "mean_first_token", 1.0),
            ("P99 inter-token latency", "p99_inter_token", 1.2),
        ):
            for peer in peers:
                row = self._latency("w5", "W5", title, name, plan.OURS, peer)
                row.target = Target(target, at_most=True) if peer == plan.OPENVINO else None
                rows.append(row)
        return [
            *rows,
            *map(self._budget, plan.TOKEN_BUDGETS),
            self._check("w5", "W5 = with any token budget", "W5"),
            self._check("w5", "W5 = each request alone", "W5 alone"),
        ]

    def _w7(self) -> list[Row]:
        return [
            self._pair("w7", "W7", plan.OURS, plan.OPENVINO, 1.6, ", same file"),
            self._pair("w7", "W7", plan.OURS, plan.VLLM, 1.9),
            self._pair("w7", "W7", plan.OURS, plan.llamacpp("Q8_0"), None),
            self._check("w7", "W7 = each request alone", "W7 alone"),
        ]

    def _beam(self) -> list[Row]:
        cost = Row("beam", "beam Q4_1", "our n = 4 sampling", "s", suffix="x its time")
        cost.target = Target(1.5, at_most=True)
        if self._fill(cost, plan.OURS, "beam", plan.OURS, "n=4"):
            cost.values = [a / b for a, b in zip(cost.ours, cost.theirs, strict=True)]
        return [
            self._pair("beam", "beam", plan.OURS, plan.VLLM, 10.0),
            self._pair("beam", "beam", plan.OURS, plan.OPENVINO, None, ", same file"),
            cost,
        ]

    def _pressure(self) -> list[Row]:
        work, title = "W3 pressed", "W3 in 20 % of its KV, Q4_1"
        own = Row("pressure", title, "our W3 in a large pool", "s", suffix=" % of its speed")
        own.target = Target(60)
        if self._fill(own, plan.PRESSED, work, plan.OURS, work):
            own.values = [100 * b / a for a, b in zip(own.ours, own.theirs, strict=True)]
            counts = [sample.answer["counted"] for sample in self._record.samples[plan.PRESSED, work]]
            again = Spread.of([count["recomputed_tokens"] for count in counts])
            preempted = Spread.of([count["num_preemptions"] for count in counts])
            own.note = f"{preempted.show(' preemptions')}, {again.show(' tokens computed again')}"
        rows = [own, self._check("pressure", "W3 in a small KV pool = in a large one", work)]
        for side in plan.PRESSED_PEERS:
            how = " ".join((TITLES[side.engine], side.form, *side.options[len(plan.SMALL_POOL) :]))
            row = Row("pressure", title, f"{how}, as small a pool", "s")
            if self._fill(row, plan.PRESSED, work, side, work, both_all=False):
                row.values = ratios(row.ours, row.theirs, more_is_better=False)
            rows.append(row)
        return rows

    def _formats(self) -> list[Row]:
        rows = []
        for form, decode in (("Q4_0", 1.4), ("Q8_0", 1.6), ("Q4_K_M", 1.5)):
            ours, theirs = Side(LEAFAGE, form), plan.llamacpp(form)
            rows += [
                self._pair("formats", "W1", ours, theirs, decode, ", same file"),
                self._share_of_memory("formats", ours, 70),
                self._pair("formats", "W2", ours, theirs, 2.0, ", same file"),
            ]
        return rows

    def _best(self) -> list[Row]:
        rows = []
        forms = ("Q4_0", "Q8_0", "BF16")
        for workload in ("W1", "W2"):
            ours = self._fastest(LEAFAGE, ("Q4_1", "Q4_0", "Q8_0"), workload)
            theirs = self._fastest("llamacpp", forms, workload)
            row = self._pair("best", workload, ours, theirs, None)
            row.note = f"{ours} against {theirs}"
            for form in forms:  # one that is set up badly might have been the best
                row.problem = row.problem or self._invalid(plan.llamacpp(form), workload)
            rows.append(row)
        return rows

    def _sampled(self) -> list[Row]:
        rows = []
        for side, target in ((plan.OURS, 8.0), (plan.GEMMA, 15.0)):
            row = Row("sampled", f"W3 sampled, {side.form}", "our greedy W3", "s", suffix=" % slower")
            row.target = Target(target, at_most=True)
            if self._fill(row, side, "W3 sampled", side, "W3"):
                row.values = [100 * (a / b - 1) for a, b in zip(row.ours, row.theirs, strict=True)]
            rows.append(row)
        return rows

    def _start(self) -> list[Row]:
        rows = []
        for form in ("Q4_1", "Q4_K_M"):
            row = Row(
                "start", f"start to first token, {form}", "llama.cpp's server", "s", suffix="x its time"
            )
            row.target = Target(2.0, at_most=True)
            if self._fill(row, Side(LEAFAGE, form), "cold", plan.llamacpp(form), "cold"):
                row.values = [a / b for a, b in zip(row.ours, row.theirs, strict=True)]
            rows.append(row)
        return rows

    def _memory(self) -> list[Row]:
        rows = []
        for form, target in (("Q4_1", 200), ("Q4_K_M", 300)):
            row = Row("memory", f"memory in W3, {form}", "file and KV pool", "MB", suffix=" MB more")
            row.target = Target(target, at_most=True)
            for figures in self._own_figures(row, plan.in_small_pool(form), "memory"):
                row.ours.append(figures["peak"] / 1e6)
                row.theirs.append((figures["file"] + figures["pool"]) / 1e6)
                row.values.append(figures["beyond"] / 1e6)
            rows.append(row)
        return rows

    def _outside(self) -> list[Row]:
        rows = []
        for batch, target in ((1, 0.15), (64, 1.5), (256, 5.0)):
            row = Row("outside", f"outside native calls, batch {batch}", "one step", "ms", suffix=" ms")
            row.target = Target(target, at_most=True)
            found = self._own_figures(row, plan.OURS, f"outside {batch}")
            row.ours = row.values = [1e3 * figures["outside"] for figures in found]
            row.theirs = [1e3 * (figures["outside"] + figures["native"]) for figures in found]
            if found:
                parts = {
                    name: Spread.of([1e3 * figures["parts"][name] for figures in found]).median
                    for name in found[0]["parts"]
                }
                row.note = ", ".join(f"{name} {value:.3f}" for name, value in parts.items())
            rows.append(row)
        return rows

    def _llama1b(self) -> list[Row]:
        theirs = plan.llamacpp("llama1b")
        return [
            self._share_of_memory("llama1b", plan.LLAMA1B, 75),
            self._pair("llama1b", "W1", plan.LLAMA1B, theirs, None, ", same file"),
            self._pair("llama1b", "W2", plan.LLAMA1B, theirs, None, ", same file"),
        ]

    # -- how they are made -----------------------------------------------------------------------

    def _pair(
        self, group: str, workload: str, ours: Side, theirs: Side, target: float | None, how: str = ""
    ) -> Row:
        """Ratios of a workload; above 1, ours is ahead."""
        form = "" if how else f" {theirs.form}"
        against = f"{TITLES[theirs.engine]}{form}{how}"
        is_rate = workload in expected.RATES
        row = Row(group, f"{workload} {ours.form}", against, "tok/s" if is_rate else "s")
        row.target = None if target is None else Target(target)
        if self._fill(row, ours, workload, theirs, workload):
            row.values = ratios(row.ours, row.theirs, more_is_better=is_rate)
            row.problem = self._invalid(theirs, workload)
            if workload == "W3":
                row.note = self._output_rates(ours, theirs)
            elif workload in ("W5", "W7"):
                row.note = self._tokens_computed(ours, theirs, workload)
        return row

    def _latency(self, group: str, workload: str, title: str, name: str, ours: Side, theirs: Side) -> Row:
        """Times that the answers have by that name, in ms; above 1x, ours are longer."""
        row = Row(group, f"{workload} {title}", str(theirs), "ms", suffix="x its time")
        if self._fill(row, ours, workload, theirs, workload, figure=_milliseconds(name)):
            row.values = [a / b for a, b in zip(row.ours, row.theirs, strict=True)]
            row.problem = self._invalid(theirs, workload)
        return row

    def _budget(self, tokens: int) -> Row:
        """W5 with another token budget against W5 with ours."""
        row = Row("w5", f"W5, token budget {tokens}", "the default", "s", suffix="x its time")
        side = plan.with_budget(tokens)
        if self._fill(row, side, "W5", plan.OURS, "W5"):
            row.values = [a / b for a, b in zip(row.ours, row.theirs, strict=True)]
            samples = self._record.samples[side, "W5"]
            first, gap = (
                Spread.of([_milliseconds(name)(sample, "W5") for sample in samples]).show(" ms")
                for name in ("mean_first_token", "p99_inter_token")
            )
            row.note = f"mean TTFT {first}, P99 inter-token latency {gap}"
        return row

    def _fill(
        self,
        row: Row,
        ours: Side,
        our_work: str,
        theirs: Side,
        their_work: str,
        *,
        figure: Callable[[Sample, str], float] | None = None,
        both_all: bool = True,
    ) -> bool:
        """Measurements of both sides; false, and the reason in the row, where one has none.

        Args:
            figure: of a sample of a workload.
            both_all: else the side that has more keeps as many, its first ones.
        """
        figure = figure or _figure
        both = []
        for side, work in ((ours, our_work), (theirs, their_work)):
            samples = self._record.samples.get((side, work), [])
            if not samples and not row.problem:
                row.problem = self._reason(side, work)
            both.append(samples)
        if not both_all and all(both):
            both = [samples[: min(map(len, both))] for samples in both]
        row.others = max([row.others, *(sample.others for samples in both for sample in samples)])
        row.ours, row.theirs = (
            [figure(sample, work) for sample in samples]
            for samples, work in zip(both, (our_work, their_work), strict=True)
        )
        row.cpu = (_cpu(both[0]), _cpu(both[1]))
        if not row.problem and len(row.ours) != len(row.theirs):
            row.problem = f"{len(row.ours)} runs of ours, {len(row.theirs)} of theirs"
        return not row.problem

    def _reason(self, side: Side, workload: str) -> str:
        text = self._record.errors.get((side, workload), "not run")
        return "not installed" if "run benchmarks/peers/setup" in text else f"FAILED: {side}: {text}"

    def _invalid(self, side: Side, workload: str) -> str:
        """Why what a peer did does not count, by what is known of it on this CPU."""
        figure = self._figures.get(side.engine, {}).get(side.form, {}).get(workload)
        samples = self._record.samples.get((side, workload))
        if figure is None or not samples:
            return ""
        share = expected.share(workload, self._median(side, workload), figure)
        if share >= expected.SHARE:
            return ""
        return f"INVALID: {side} at {100 * share:.0f} % of its known {digits(figure)}"

    def _output_rates(self, ours: Side, theirs: Side) -> str:
        rates = []
        for side in (ours, theirs):
            samples = self._record.samples[side, "W3"]
            rates.append(
                Spread.of([s.answer["num_output_tokens"] / s.answer["wall"] for s in samples]).median
            )
        return f"{digits(rates[0])} against {digits(rates[1])} output tok/s"

    def _tokens_computed(self, ours: Side, theirs: Side, workload: str) -> str:
        """What both did in the workload: tokens are what a result can be checked by."""
        samples = self._record.samples[ours, workload]
        computed = Spread.of([sample.answer["counted"]["prompt_tokens"] for sample in samples]).median
        made = Spread.of([sample.answer["counted"]["generation_tokens"] for sample in samples]).median
        text = (
            f"prompts of {samples[0].answer['num_prompt_tokens']:,} tokens, of which we computed "
            f"{computed:,.0f}; {made:,.0f} generated"
        )
        found = [sample.answer for sample in self._record.samples[theirs, workload]]
        if all(answer.get("cached_tokens") is not None for answer in found):
            rest = [answer["num_prompt_tokens"] - answer["cached_tokens"] for answer in found]
            text += f"; {TITLES[theirs.engine]} computed {Spread.of(rest).median:,.0f}"
        return text

    def _fastest(self, engine: str, forms: tuple[str, ...], workload: str) -> Side:
        return max((Side(engine, form) for form in forms), key=lambda side: self._median(side, workload))

    def _median(self, side: Side, workload: str) -> float:
        """Of the side's figures; 0 without any."""
        samples = self._record.samples.get((side, workload))
        return Spread.of([_figure(s, workload) for s in samples]).median if samples else 0.0

    def _share_of_memory(self, group: str, side: Side, target: float) -> Row:
        """Bytes that decode reads a second, against what the machine could read right before and after."""
        row = Row(group, f"W1 {side.form}", "memory floor", "GB/s", suffix=" % of it")
        row.target = Target(target)
        samples = self._record.samples.get((side, "W1"), [])
        if not samples:
            row.problem = self._reason(side, "W1")
            return row
        settings: Any = self._settings[side]["settings"]
        per_token = settings["linear_bytes"] + MEAN_CONTEXT * settings["kv_bytes_per_token"]
        row.ours = [_figure(sample, "W1") * per_token / 1e9 for sample in samples]
        row.theirs = [_floor(sample, "bandwidth") for sample in samples]
        row.values = [100 * a / b for a, b in zip(row.ours, row.theirs, strict=True)]
        row.others = max(sample.others for sample in samples)
        row.cpu = (_cpu(samples), None)
        rate = Spread.of([_figure(sample, "W1") for sample in samples])
        row.note = f"{rate.show(' tok/s')}, {per_token / 1e6:.0f} MB a token"
        return row

    def _gemm(self) -> Row:
        row = Row("w2", "W2 matrix products alone, Q4_1", "int8 peak", "GOP/s", suffix=" % of it")
        row.target = Target(63)
        found = self._own_figures(row, plan.OURS, "gemm")
        if found:
            samples = self._record.samples[plan.OURS, "gemm"]
            row.ours = [figures["operations_per_second"] / 1e9 for figures in found]
            row.theirs = [_floor(sample, "int8_peak") for sample in samples]
            row.values = [100 * a / b for a, b in zip(row.ours, row.theirs, strict=True)]
            row.note = samples[0].floors[0].instruction
        return row

    def _attention(self) -> Row:
        row = Row("w2", "W2 attention alone", "", "GFLOP/s", suffix=" GFLOP/s", target=Target(300))
        found = self._own_figures(row, plan.OURS, "attention")
        row.ours = row.values = [figures["operations_per_second"] / 1e9 for figures in found]
        return row

    def _own_figures(self, row: Row, side: Side, workload: str) -> list[dict[str, Any]]:
        samples = self._record.samples.get((side, workload), [])
        if not samples:
            row.problem = self._reason(side, workload)
        row.others = max([row.others, *(sample.others for sample in samples)])
        return [sample.answer["figures"] for sample in samples]

    def _check(self, group: str, name: str, workload: str) -> Row:
        """Whether tokens were the same; our side failed where nobody could compare them."""
        row = Row(group, f"tokens of {name}", "batch 1", settled="equal")
        if name not in self._record.checks:
            row.problem = self._reason(plan.OURS, workload)
        elif not self._record.checks[name]:
            row.problem = TOKENS_DIFFER
        return row


def _milliseconds(name: str) -> Callable[[Sample, str], float]:
    """A figure of `_fill`: a time that answers have by this name."""
    return lambda sample, workload: 1e3 * float(sample.answer[name])


def _figure(sample: Sample, workload: str) -> float:
    answer = sample.answer
    if workload == "W1":
        return float((answer["num_output_tokens"] - 1) / answer["decode"])
    if workload == "W2":
        return float(answer["num_prompt_tokens"] / answer["wall"])
    return float(answer["wall"])


def _floor(sample: Sample, name: str) -> float:
    """What the machine could do, in G/s: the mean of right before and right after."""
    return sum(float(getattr(floors, name)) for floors in sample.floors) / len(sample.floors) / 1e9


def _cpu(samples: list[Sample]) -> float | None:
    seconds = [sample.answer["cpu"] for sample in samples if sample.answer.get("cpu") is not None]
    return Spread.of(seconds).median if seconds else None
