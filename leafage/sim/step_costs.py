"""What steps of one model take on one machine, as measured: the part of a hardware file that replaces the
roofline for that model."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from leafage.errors import InvalidParameterError
from leafage.sim.llm_spec import LLMSpec

if TYPE_CHECKING:
    from leafage.sim.cost_model import Load

Curve = tuple[tuple[int, float], ...]
"""Points (count, seconds) of a piecewise-linear function, by count; beyond the last it goes on as it rose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Seconds of a step, a sum over what it does; all that surrounds the executor is in it.

    A roofline is no model of a small engine on a CPU: reading weights and arithmetic overlap in part, few
    rows run through other kernels than many, and a sequence costs scheduling and text.

    Attributes:
        spec: the model that ran; its weights' bytes say how it was quantized.
        block_size: of the KV cache while it ran.
        tokens: by tokens in the layers; at 0 what every step takes.
        rows: by rows that go through the output head and are sampled.
        per_item: each sequence.
        per_context: each token that a row of an item with one token attends to.
        per_pair: the same of longer items.
        per_start: of a step before which the engine had nothing to do: threads slept, and others used the
            caches.
        error: mean of |predicted / measured - 1| over steps that the fit has not seen.
    """

    spec: LLMSpec
    block_size: int
    tokens: Curve
    rows: Curve
    per_item: float = 0.0
    per_context: float = 0.0
    per_pair: float = 0.0
    per_start: float = 0.0
    error: float = 0.0

    def __post_init__(self) -> None:
        for name in ("tokens", "rows"):
            curve = getattr(self, name)
            counts = [count for count, _ in curve]
            if len(curve) < 2 or counts[0] != 0 or sorted(set(counts)) != counts:
                raise InvalidParameterError(
                    f"steps: {name} is no curve",
                    value=counts,
                    limit="at least two points, from count 0 upwards",
                )
            for _, seconds in curve:
                _check_seconds(name, seconds)
        for name in ("per_item", "per_context", "per_pair", "per_start", "error"):
            _check_seconds(name, getattr(self, name))

    @classmethod
    def from_dict(cls, numbers: Any) -> StepCosts:
        """What `as_dict` gave.

        Raises:
            InvalidParameterError: something is missing, unknown or out of range.
        """
        if not isinstance(numbers, Mapping):
            raise InvalidParameterError(
                "steps is no object",
                value=type(numbers).__name__,
                remedy="write it anew with `leafage sim calibrate`",
            )
        names = {field.name for field in fields(cls)}
        if set(numbers) != names:
            raise InvalidParameterError(
                "steps does not hold the expected numbers",
                value=", ".join(sorted(map(str, numbers))),
                limit=", ".join(sorted(names)),
            )
        try:
            curves = {
                name: tuple((int(count), seconds) for count, seconds in numbers[name])
                for name in ("tokens", "rows")
            }
            return cls(**{**numbers, **curves, "spec": LLMSpec(**numbers["spec"])})
        except (TypeError, ValueError) as error:
            raise InvalidParameterError(
                "steps cannot be read", value=error, remedy="write it anew with `leafage sim calibrate`"
            ) from error

    def scaled(self, factor: float) -> StepCosts:
        """Those of a machine on which everything takes `factor` times as long."""

        def curve(points: Curve) -> Curve:
            return tuple((count, factor * seconds) for count, seconds in points)

        return replace(
            self,
            tokens=curve(self.tokens),
            rows=curve(self.rows),
            per_item=factor * self.per_item,
            per_context=factor * self.per_context,
            per_pair=factor * self.per_pair,
            per_start=factor * self.per_start,
        )

    @property
    def seconds_per_token(self) -> float:
        """Of one more token where there are many: over the upper half of the counts. Where measuring a tiny
        model found none, the share of a token in a whole step."""
        count, seconds = self.tokens[-1]
        below = max((point for point in self.tokens if 2 * point[0] <= count), default=self.tokens[0])
        slope = (seconds - below[1]) / (count - below[0])
        return slope or (seconds + self.rows[1][1] + self.per_item) / count or 1e-12

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return asdict(self)


class MeasuredSteps:
    """`StepCosts`, ready for many look-ups.

    Args:
        decode, prompt: what attention of decode rows and of prompts is multiplied with, where blocks are of
            another size.
    """

    def __init__(self, costs: StepCosts, *, decode: float = 1.0, prompt: float = 1.0) -> None:
        self._tokens = _CurveTable(costs.tokens)
        self._rows = _CurveTable(costs.rows)
        self._per_item = costs.per_item
        self._per_context = costs.per_context * decode
        self._per_pair = costs.per_pair * prompt
        self._per_start = costs.per_start

    def seconds_of(self, load: Load) -> float:
        """What a step with this work takes, without transfers and copies."""
        return (
            self._tokens(load.tokens)
            + self._rows(load.rows)
            + load.items * self._per_item
            + load.decode_context * self._per_context
            + (load.pairs - load.decode_context) * self._per_pair
            + load.starts * self._per_start
        )

    def seconds_of_context(self, num_tokens: int) -> float:
        """What attention to so many tokens takes in decode rows."""
        return num_tokens * self._per_context


class _CurveTable:
    def __init__(self, curve: Curve) -> None:
        self._counts = [count for count, _ in curve]
        self._seconds = [seconds for _, seconds in curve]
        self._slopes = _slopes(curve)
        self._slopes.append(self._slopes[-1])

    def __call__(self, count: int) -> float:
        at = bisect_right(self._counts, count) - 1
        return self._seconds[at] + (count - self._counts[at]) * self._slopes[at]


def _slopes(curve: Sequence[tuple[int, float]]) -> list[float]:
    """Seconds for one more, between each two points."""
    return [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(curve)]


def _check_seconds(name: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < 1e6:
        raise InvalidParameterError(f"steps: {name} is out of range", value=value, limit="a number from 0")
