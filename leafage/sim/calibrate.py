"""Measures the steps of a real engine and fits what they cost (`step_costs`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from leafage.errors import InvalidParameterError
from leafage.sim.least_squares import Floats, nnls
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.replay import RealEngine, Step, replay
from leafage.sim.step_costs import Curve, MeasuredSteps, StepCosts
from leafage.sim.workload import SimRequest

ROUNDS = 3
"""Times that the whole grid is gone through: a machine changes its speed from one minute to the next."""
PARTS = 8
"""Into which a round is divided."""
STEPS_EACH = 3
"""Decode steps at each batch size, in each round."""
STEPS_OF_FEW = 10
"""The same at the sizes of _FEW, as most steps of an engine that is not overloaded. So many because the
end of a sequence takes time, and is as rare in a real load."""
PAUSE = 0.05
"""Seconds without work before a prompt that is measured alone."""
MOST_SEQUENCES = 128
"""In a step; what more of them cost goes on as it rose."""
OUTLIER = 1.0
"""A step that took longer than predicted by more than this share was disturbed, and is not fitted."""
LONGEST_DISTURBANCE = 10.0
"""Of a disturbed step at most so many times its predicted seconds count: one long stall is an accident."""
KINDS = ("decode", "prompt", "mixed")


@dataclass(frozen=True, slots=True)
class Scenario:
    """Requests that are sent together to a real engine.

    Attributes:
        held_out: its steps are not fitted, only predicted.
    """

    name: str
    requests: list[SimRequest]
    held_out: bool = False


@dataclass(frozen=True, slots=True)
class Error:
    """Of predicted over measured - 1.

    Attributes:
        count: steps.
        bias: of the sums of all steps' seconds: what throughput is wrong by.
        mean: of the absolute values of single steps.
        worst: the value that nine in ten steps stay below.
    """

    count: int
    bias: float
    mean: float
    worst: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted costs, and how far they are off.

    Attributes:
        fitted, held_out: by kind of step (KINDS, and "all"), those that there were.
        disturbed: share of the fitted scenarios' steps that were left out as outliers.
        lost: what disturbed steps took beyond their prediction, over the predicted seconds of all steps. The
            costs are longer by this share, for steps to come will be disturbed as often.
    """

    costs: StepCosts
    fitted: dict[str, Error]
    held_out: dict[str, Error]
    disturbed: float
    lost: float


class Scenarios:
    """The grid of batch sizes, contexts and chunk sizes, within the limits of an engine; ROUNDS times.

    Prompts are random, so nothing is shared, but for chunks: they extend a prompt that is cached, which is
    how few tokens come to a long context. Long contexts are the same in every round, so later ones find them.

    Raises:
        InvalidParameterError: the engine has no room for it.
    """

    def __init__(self, real: RealEngine, *, seed: int = 0) -> None:
        self._real = real
        self._seed = seed
        self._rng = np.random.default_rng(seed)
        self._number = 0
        longest = min(real.max_model_len - 64, real.kv_tokens // 2)
        if longest < 64:
            raise InvalidParameterError(
                "the engine is too small to calibrate",
                value=f"{real.max_model_len} tokens in a sequence, {real.kv_tokens} in the KV cache",
                limit="at least 128",
                remedy="raise max_model_len or kv_cache_tokens",
            )
        self._long = min(1536, longest)
        self._pace: tuple[float, float] | None = None

    def __iter__(self) -> Iterator[Scenario]:
        for _ in range(ROUNDS):
            for number in range(PARTS):
                yield from self.part(number, PARTS)

    def part(self, number: int, parts: int) -> Iterator[Scenario]:
        """One of so many parts that make the grid together. Each has some of its sizes and all kinds of
        steps, for a neighbour on the machine may slow down what reads much and not what computes much.

        Before the first, the engine runs requests of which nothing is kept.
        """
        real = self._real
        if self._pace is None:
            self._pace = self._warm_up()

        def own(sizes: Sequence[int]) -> Sequence[int]:
            return sizes[number::parts]

        limits = (MOST_SEQUENCES, real.max_num_seqs, real.max_num_batched_tokens, real.kv_tokens // 128)
        most = max(1, min(limits))
        grid, between = self._split(_BATCH_SIZES, most)
        yield from self._decode("batch sizes", 8, own(grid))
        yield from self._decode("batch sizes between", 24, own(between or [1]), held_out=True)
        few = [size for size in _FEW if size <= most]
        few = few[number % len(few) :: max(1, parts // 2)] or few[-1:]
        yield from self._decode("few sequences", 128, few, steps=STEPS_OF_FEW)
        fitting = min(most, real.kv_tokens // (2 * self._long), _LONG_BATCH_SIZES[-1])
        grid, between = self._split(_LONG_BATCH_SIZES, max(1, fitting))
        yield from self._decode("long contexts", self._long, own(grid))
        yield from self._decode("contexts between", self._long // 2, own(between or [1]), held_out=True)
        room = real.max_model_len - self._long - 1
        chunks, between = self._split(_CHUNKS, min(real.max_num_batched_tokens, room))
        for context in (0, self._long):
            yield from self._chunks(f"chunks at {context}", context, own(chunks))
        yield from self._chunks(f"chunks at {self._long // 3}", self._long // 3, own(between), held_out=True)
        yield self._mixed("mixed", -(-32 // parts))
        yield self._mixed("mixed, other lengths", -(-24 // parts), held_out=True)
        grid, between = self._split(_CHUNKS, min(real.max_num_batched_tokens, self._long))
        for beside in (2, 6):
            yield from self._one_by_one("prompts beside few", min(beside, most), own(grid))
        yield from self._one_by_one("prompts beside other few", min(4, most), own(between), held_out=True)

    def _warm_up(self) -> tuple[float, float]:
        """Returns about what a step with one row, and each token of a prompt, takes."""
        for _ in range(2):
            count = min(64, self._real.max_num_batched_tokens)
            first, *others = replay(self._real, [self._request(self._ids(count), 8)]).steps
        return min(step.seconds for step in others), first.seconds / first.load.tokens

    @staticmethod
    def _split(counts: Sequence[int], limit: int) -> tuple[list[int], list[int]]:
        """Every count to fit, and those between them to hold out, up to the limit, which is fitted."""
        within = [count for count in counts if count < limit]
        return [*within[::2], limit], within[1::2]

    def _decode(
        self,
        name: str,
        context: int,
        sizes: Sequence[int],
        *,
        steps: int = STEPS_EACH,
        held_out: bool = False,
    ) -> Iterator[Scenario]:
        """As many sequences as the largest size; they end so that each size lasts some steps."""
        if not sizes:
            return
        largest = max(sizes)
        ranks = [sum(size > rank for size in sizes) for rank in range(largest)]
        # The first prompts decode while the last are computed: all outlast that.
        share = largest / (self._real.max_num_batched_tokens - largest / 2)
        room = self._real.max_model_len - steps * len(sizes) - 3
        context = max(1, min(context, self._long, int(room / (1 + share))))
        waits = int(context * share) + 3
        contexts = self._contexts(name, context, largest)
        requests = [
            self._request(tokens, waits + steps * rank) for tokens, rank in zip(contexts, ranks, strict=True)
        ]
        yield Scenario(name, requests, held_out)

    def _chunks(
        self, name: str, context: int, sizes: Sequence[int], *, held_out: bool = False
    ) -> Iterator[Scenario]:
        """Prompts of so many new tokens behind a cached prefix, one after the other."""
        (head,) = self._contexts(name, context, 1)
        if context and sizes:
            yield Scenario(name, [self._request(head, 1)], held_out)
        for size in sizes:
            yield Scenario(name, [self._request([*head, *self._ids(size)], 1, PAUSE)], held_out)

    def _mixed(self, name: str, count: int, *, held_out: bool = False) -> Scenario:
        """Prompts and answers of many lengths, so that chunks are computed beside decode rows."""
        longest = min(600, self._long)
        prompts = np.clip(self._rng.lognormal(np.log(120), 0.8, count), 4, longest).astype(int)
        outputs = np.clip(self._rng.lognormal(np.log(40), 0.8, count), 4, 200).astype(int)
        requests = [
            self._request(self._ids(int(prompt)), min(int(output), self._real.max_model_len - int(prompt)))
            for prompt, output in zip(prompts, outputs, strict=True)
        ]
        return Scenario(name, requests, held_out)

    def _one_by_one(
        self, name: str, beside: int, sizes: Sequence[int], *, held_out: bool = False
    ) -> Iterator[Scenario]:
        """Prompts that come one after the other while a few sequences decode: mixed steps of few tokens."""
        assert self._pace is not None
        if not sizes:
            return
        step, token = self._pace
        arrivals = [4 * step]
        for size in sizes:
            arrivals.append(arrivals[-1] + 3 * step + 2 * size * token)
        outputs = max(1, min(self._real.max_model_len - 32, int(arrivals[-1] / step)))
        decoding = [self._request(self._ids(32), outputs) for _ in range(beside)]
        prompts = [
            self._request(self._ids(size), 1, arrival) for size, arrival in zip(sizes, arrivals, strict=False)
        ]
        yield Scenario(name, [*decoding, *prompts], held_out)

    def _contexts(self, name: str, length: int, count: int) -> list[list[int]]:
        """So many prompts of this length, the same whenever the name is."""
        rng = np.random.default_rng([self._seed, *name.encode()])
        return [
            [int(token) for token in rng.integers(0, self._real.vocab_size, length)] for _ in range(count)
        ]

    def _ids(self, count: int) -> list[int]:
        return [int(token) for token in self._rng.integers(0, self._real.vocab_size, count)]

    def _request(self, prompt: list[int], num_output_tokens: int, arrival: float = 0.0) -> SimRequest:
        self._number += 1
        return SimRequest(f"calibration-{self._number}", arrival, prompt, range(num_output_tokens))


_BATCH_SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112)
_LONG_BATCH_SIZES = (1, 2, 4, 6, 8)
_FEW = (1, 2, 3, 4, 5, 6, 7, 8)
_CHUNKS = (2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224)
_KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192)
"""Counts at which the slope of a curve may change."""


def measure(
    real: RealEngine, scenarios: Iterable[Scenario], *, on_progress: Callable[[str], None] = lambda what: None
) -> tuple[list[Step], list[Step]]:
    """Run scenarios; returns the steps to fit and those held out."""
    fitted: list[Step] = []
    held_out: list[Step] = []
    last = ""
    for scenario in scenarios:
        if scenario.name != last:
            on_progress(f"measuring: {scenario.name}")
            last = scenario.name
        steps = replay(real, scenario.requests).steps
        plain = [step for step in steps if not step.load.moved_blocks]
        (held_out if scenario.held_out else fitted).extend(plain)
    return fitted, held_out


def fit(spec: LLMSpec, block_size: int, steps: Sequence[Step], held_out: Sequence[Step]) -> Fit:
    """Non-negative costs with the smallest sum of squared relative errors, disturbed steps left out.

    The errors told are of costs fitted to `steps` alone; then the costs are fitted to `held_out` as well.

    Raises:
        InvalidParameterError: there are too few steps.
    """
    if len(steps) < 100:
        raise InvalidParameterError("too few steps to fit", value=len(steps), limit="at least 100")
    found, kept = _solve(spec, block_size, steps)
    outside = errors(found, held_out)
    everything = [*steps, *held_out]
    both, undisturbed = _solve(spec, block_size, everything)
    lost = _lost(both, everything, undisturbed)
    return Fit(
        costs=replace(both.scaled(1 + lost), error=outside["all"].mean if outside else 0.0),
        fitted=errors(found, [step for step, keep in zip(steps, kept, strict=True) if keep]),
        held_out=outside,
        disturbed=1 - float(np.mean(kept)),
        lost=lost,
    )


def _lost(costs: StepCosts, steps: Sequence[Step], kept: NDArray[np.bool_]) -> float:
    """Seconds beyond the prediction that the steps not kept took, over the predicted seconds of all."""
    measured_steps = MeasuredSteps(costs)
    predicted = np.array([measured_steps.seconds_of(step.load) for step in steps])
    measured = np.minimum([step.seconds for step in steps], LONGEST_DISTURBANCE * predicted)
    return float(np.sum((measured - predicted)[~kept]) / np.sum(predicted))


def _solve(spec: LLMSpec, block_size: int, steps: Sequence[Step]) -> tuple[StepCosts, NDArray[np.bool_]]:
    """Fitted costs, and which of the steps count."""
    design = _Design(steps)
    matrix, seconds = design.matrix(steps), np.array([step.seconds for step in steps])
    kept = np.ones(len(steps), bool)
    scale = seconds
    for _ in range(6):
        costs = nnls(matrix[kept] / scale[kept, None], seconds[kept] / scale[kept])
        # Relative to what is predicted: relative to what was measured, steps that happened to be quick would
        # weigh more than slow ones, and the costs would be too low.
        scale = np.maximum(matrix @ costs, 1e-9)
        kept = seconds < (1 + OUTLIER) * scale
    return design.costs(spec, block_size, costs), kept


def errors(costs: StepCosts, steps: Sequence[Step]) -> dict[str, Error]:
    """How far predictions are from what was measured, by kind of step and for all."""
    measured_steps = MeasuredSteps(costs)
    predicted = np.array([measured_steps.seconds_of(step.load) for step in steps])
    measured = np.array([step.seconds for step in steps])
    kinds = np.array([kind_of(step) for step in steps])
    found = {}
    for kind in (*KINDS, "all"):
        chosen = np.ones(len(steps), bool) if kind == "all" else kinds == kind
        if not chosen.any():
            continue
        off = np.abs(predicted[chosen] / measured[chosen] - 1)
        found[kind] = Error(
            count=int(chosen.sum()),
            bias=float(predicted[chosen].sum() / measured[chosen].sum() - 1),
            mean=float(off.mean()),
            worst=float(np.quantile(off, 0.9)),
        )
    return found


def kind_of(step: Step) -> str:
    """One of KINDS."""
    load = step.load
    if load.tokens == load.items == load.rows:
        return "decode"
    return "mixed" if load.decode_context else "prompt"


class _Design:
    """The columns of the fit: one, the stretches of both curves, and the four costs by count."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._tokens = _knots(step.load.tokens for step in steps)
        self._rows = [0, *_knots(step.load.rows for step in steps)]

    def matrix(self, steps: Sequence[Step]) -> Floats:
        loads = [step.load for step in steps]
        tokens = np.array([load.tokens for load in loads], np.float64)
        rows = np.array([load.rows for load in loads], np.float64)
        items = np.array([load.items for load in loads], np.float64)
        context = np.array([load.decode_context for load in loads], np.float64)
        pairs = np.array([load.pairs for load in loads], np.float64) - context
        starts = np.array([load.starts for load in loads], np.float64)
        columns = [np.ones(len(loads)), *_ramps(tokens, self._tokens), *_ramps(rows, self._rows)]
        return np.stack([*columns, items, context, pairs, starts], axis=1)

    def costs(self, spec: LLMSpec, block_size: int, found: Floats) -> StepCosts:
        split = len(self._tokens)
        first = float(found[0])
        per_item, per_context, per_pair, per_start = map(float, found[-4:])
        tokens = _curve(self._tokens, first, found[1:split])
        return StepCosts(
            spec=spec,
            block_size=block_size,
            tokens=((0, first), *tokens),
            rows=_curve(self._rows, 0.0, found[split:-4]),
            per_item=per_item,
            per_context=per_context,
            per_pair=per_pair,
            per_start=per_start,
        )


def _knots(counts: Iterator[int] | Sequence[int]) -> list[int]:
    """Knots up to the first that nothing reaches beyond."""
    highest = max(counts)
    within = [knot for knot in _KNOTS if knot < highest]
    return [*within, max(highest, 2)]


def _ramps(counts: Floats, knots: list[int]) -> list[Floats]:
    """How much of each stretch between two knots lies below the counts."""
    return [np.clip(counts - a, 0, b - a) for a, b in pairwise(knots)]


def _curve(knots: list[int], first: float, slopes: Floats) -> Curve:
    points = [(knots[0], first)]
    for at, (knot, slope) in enumerate(zip(knots[1:], slopes, strict=True)):
        points.append((knot, points[-1][1] + float(slope) * (knot - knots[at])))
    return tuple(points)
