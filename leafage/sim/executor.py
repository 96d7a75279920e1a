"""The simulated executor: instead of computing, it advances a virtual clock and answers from the trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from leafage.core.batch import Batch, ItemOutput, SampledToken, StepOutput
from leafage.sim.beam_rows import beam_row
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
    """Seconds of a batch."""

    def seconds(self, batch: Batch) -> float: ...


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

    def execute(self, batch: Batch) -> StepOutput:
        self._clock.advance(self._cost_model.seconds(batch))
        requests = self._requests
        items: list[ItemOutput] = []
        for item in batch.items:
            if not item.samples:
                items.append(NOTHING)
                continue
            request = requests[item.request_id]
            output = request.output
            if item.params.beam_width is not None:
                top = beam_row(output[0], item.samples[0].position, item.history[-1], item.top_k_logprobs)
                items.append(ItemOutput([SampledToken(*top[0], rank=1, top=top)]))
                continue
            items.append(
                ItemOutput(
                    [
                        SampledToken(
                            _token(request, sample.index, sample.position - item.num_prompt_tokens), 0.0
                        )
                        for sample in item.samples
                    ]
                )
            )
        return StepOutput(items)


def _token(request: SimRequest, index: int, number: int) -> int:
    if index and request.siblings:
        return request.siblings[index - 1][number]
    return request.output[number] + index * SIBLING


NOTHING = ItemOutput()
SIBLING = 1 << 48
"""Between the token ids of a request's sequences, so that no two of them give the same answer."""
