"""The witness of the promise tests sees one flipped bit, and a skipped row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from leafage.core.batch import Batch, Item, Logits, StepOutput
from leafage.core.sampling_params import SamplingParams
from tests.promises import Witness


class Program:
    logits = np.zeros((1, 4), np.float32)

    def forward(self, inputs: Any) -> Any:
        yield 0, self.logits


class Executor:
    def __init__(self) -> None:
        self.program = Program()

    def execute(self, batch: Batch) -> StepOutput:
        list(self.program.forward(None))
        return StepOutput()


def item(tokens: list[int]) -> Item:
    params = SamplingParams()
    return Item(0, "r", [0], len(tokens) - 1, tokens[-1:], 0, Logits.LAST, [], 0, params, tokens, len(tokens))


def test_one_flipped_bit_is_seen() -> None:
    witness, executor = Witness(), Executor()
    witness.watch(SimpleNamespace(build=SimpleNamespace(engine=SimpleNamespace(executor=executor))))  # type: ignore[arg-type]
    for tokens in ([1, 2], [1, 3], [1, 2]):
        executor.execute(Batch([item(tokens)]))
    witness.check(at_least=1)
    executor.program.logits = np.array([[0, 0, 0, 1e-45]], np.float32)
    executor.execute(Batch([item([1, 2])]))
    with pytest.raises(AssertionError, match=r"1 of 1 rows differ: \['r at 1'\]"):
        witness.check(at_least=1)


def test_too_few_comparisons_fail() -> None:
    with pytest.raises(AssertionError):
        Witness().check(at_least=1)
