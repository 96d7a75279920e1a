"""The simulated executor: instead of computing, it advances a virtual clock and answers from the trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Protocol

from leafage.core.batch import Batch, ItemOutput, SampledToken, StepOutput
from leafage.core.request import Sequence
from leafage.sim.beam_rows import beam_row
from leafage.sim.cost_model import Load, load_of
from leafage.sim.workload import SimRequest


class VirtualClock:
    """Simulated seconds since the start; nothing but the simulation moves them."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, f"time cannot go back by {seconds} s"
        self._now += seconds

    def advance_to(self, time: float) -> None:
        """Go on to `time`; stay where we are if it is past."""
        if time > self._now:
            self._now = time


class StepCost(Protocol):
    """What a step takes, by its work."""

    def seconds_of(self, load: Load) -> float: ...


class SimExecutor:
    """Takes the time that the cost model says and gives the tokens that the trace says. Beam searches find
    tokens of their own (`beam_rows`); the trace says how many.

    Args:
        cost_model: seconds of a batch.
        clock: advanced by them.
        requests: what is being simulated, by request id.
    """

    def __init__(self, cost_model: StepCost, clock: VirtualClock, requests: Mapping[str, SimRequest]) -> None:
        self._cost_model = cost_model
        self._clock = clock
        self._requests = requests
        self._rested = True

    def rest(self, until: float) -> None:
        """Nothing is to be done until then."""
        if until > self._clock.now():
            self._clock.advance_to(until)
            self._rested = True

    def execute(self, batch: Batch) -> StepOutput:
        self.forward(load_of(batch))
        requests = self._requests
        items: list[ItemOutput] = []
        for item in batch.items:
            if not item.samples:
                items.append(NOTHING)
                continue
            request, start = requests[item.request_id], item.num_prompt_tokens
            output = request.output
            if item.params.beam_width is not None:
                top = beam_row(output[0], item.samples[0].position, item.history[-1], item.top_k_logprobs)
                items.append(ItemOutput([SampledToken(*top[0], rank=1, top=top)]))
                continue
            sampled = []
            for sample in item.samples:
                at = sample.position - start
                token_id = _tokens(request, sample.index, at, at + 1)[0] if sample.index else output[at]
                sampled.append(SampledToken(token_id, 0.0, 0, []))
            items.append(ItemOutput(sampled, []))
        return StepOutput(items)

    def next_tokens(self, seq: Sequence, count: int) -> Iterable[int]:
        """The next so many tokens that a sequence will draw."""
        start = len(seq.tokens) - seq.num_prompt_tokens
        return _tokens(self._requests[seq.request_id], seq.index, start, start + count)

    def forward(self, load: Load) -> None:
        """Take the time of a step with this work."""
        if self._rested:
            load.starts, self._rested = 1, False
        self._clock.advance(self._cost_model.seconds_of(load))


def _tokens(request: SimRequest, index: int, start: int, stop: int) -> SequenceOf[int]:
    """A part of the answer of one sequence."""
    if not index:
        return request.output[start:stop]
    if request.siblings:
        return request.siblings[index - 1][start:stop]
    return [token + index * SIBLING for token in request.output[start:stop]]


NOTHING = ItemOutput()
SIBLING = 1 << 48
"""Between the token ids of a request's sequences, so that no two of them give the same answer."""
