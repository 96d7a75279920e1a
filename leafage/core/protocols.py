"""What the core expects of the world. Implementations live outside: runtime, sim, engine, grammar, tier."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Protocol

from leafage.core.batch import Batch, StepOutput

if TYPE_CHECKING:
    from leafage.core.request import FinishReason, Sequence


class Executor(Protocol):
    """Runs batches: the model runner, the simulator's cost model, or a toy in the tests."""

    def execute(self, batch: Batch) -> StepOutput:
        """Run one batch. Raises ExecutorError when nothing of it can be used."""
        ...


class Clock(Protocol):
    """Seconds since an arbitrary start; real or virtual."""

    def now(self) -> float: ...


class StopCheck(Protocol):
    """Decides whether a sequence ends with a token; called in `Scheduler.update` for each sampled token.

    The engine implements it with the incremental detokenizer (stop strings); the simulator has none.
    End-of-generation ids, stop token ids, max_tokens and min_tokens are the core's own business.
    """

    def finished(self, sequence: Sequence, token_id: int) -> FinishReason | None: ...


class Matcher(Protocol):
    """Per-sequence state of a grammar."""

    def accept(self, token_id: int) -> bool: ...
    def forced(self) -> SequenceOf[int]: ...
    def fill_mask(self, buffer: memoryview) -> None: ...


class SwapSpace(Protocol):
    """Bookkeeping of slots outside the KV cache; the data is moved by the executor."""

    @property
    def num_free(self) -> int: ...
    def allocate(self) -> int: ...
    def free(self, slot: int) -> None: ...
