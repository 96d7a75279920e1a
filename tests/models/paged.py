"""Runs one sequence through a program in steps, over a paged cache with blocks in shuffled order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from leafage.kernels.reference import ReferenceProgram
from leafage.kernels.step_inputs import StepInputs
from leafage.runtime.load import LoadedModel

BLOCK_SIZE = 16


class Runnable(Protocol):
    def forward(self, inputs: StepInputs) -> Iterator[tuple[int, np.ndarray]]: ...


class PagedSequence:
    """A sequence over its own program and cache. `extend` computes more tokens of it."""

    def __init__(self, program: Runnable, num_blocks: int) -> None:
        self.program = program
        self.num_computed = 0
        self.table = np.random.default_rng(1).permutation(num_blocks).astype(np.int32)

    def extend(self, tokens: list[int], logit_rows: list[int] | None = None) -> np.ndarray:
        """Logits [rows, vocab] of these tokens, or of those of them that `logit_rows` (ascending) picks."""
        count = len(tokens)
        positions = np.arange(self.num_computed, self.num_computed + count, dtype=np.int32)
        slots = self.table[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE

        def ints(*values: int) -> np.ndarray:
            return np.array(values, np.int32)

        inputs = StepInputs.of(
            token_ids=np.array(tokens, np.int32),
            positions=positions,
            slots=slots,
            item_rows=ints(0),
            item_num_rows=ints(count),
            item_starts=ints(self.num_computed),
            table_offsets=ints(0),
            tables=self.table,
            logit_rows=np.array(range(count) if logit_rows is None else logit_rows, np.int32),
        )
        self.num_computed += count
        parts = [logits.copy() for _, logits in self.program.forward(inputs)]
        return np.concatenate(parts) if parts else np.empty((0, 0), np.float32)

    def extend_in(self, chunks: list[int], tokens: list[int]) -> np.ndarray:
        """Logits of all `tokens`, computed in steps of these lengths and a last one with the rest."""
        parts, start = [], 0
        for chunk in [*chunks, len(tokens) - sum(chunks)]:
            parts.append(self.extend(tokens[start : start + chunk]))
            start += chunk
        return np.concatenate(parts)

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """`count` greedy tokens after `prompt`."""
        tokens = [int(self.extend(prompt, [len(prompt) - 1]).argmax())]
        while len(tokens) < count:
            tokens.append(int(self.extend(tokens[-1:]).argmax()))
        return tokens


def reference_sequence(model: LoadedModel, num_tokens: int) -> PagedSequence:
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    weights: Any = model.weights
    program = ReferenceProgram(model.program, weights, num_blocks=num_blocks, block_size=BLOCK_SIZE)
    return PagedSequence(program, num_blocks)
