"""From a Batch to the flat arrays that a program reads."""

from __future__ import annotations

from leafage.core.batch import Batch, Item, Logits
from leafage.kernels import _native
from leafage.kernels.step_inputs import StepInputs

_NONE, _LAST = Logits.NONE, Logits.LAST  # an enum's members are slow to look up, and every row asks


def build_inputs(batch: Batch, block_size: int) -> StepInputs:
    """Flatten a batch: one row per token, items in the batch's order.

    The K/V of a row goes to slot `block_table[position // block_size] * block_size + position % block_size`,
    or nowhere (-1) below the item's `write_from`.

    Raises:
        ValueError: a block table does not cover its item's positions, or a number is no 32-bit integer.
    """
    items = batch.items
    return StepInputs(
        *_native.flatten(
            [item.token_ids for item in items],
            [item.start for item in items],
            [item.write_from for item in items],
            [item.block_table for item in items],
            [_num_logit_rows(item) for item in items],
            block_size,
        )
    )


def _num_logit_rows(item: Item) -> int:
    """How many of the item's rows, the last ones, need logits."""
    logits = item.logits
    return 1 if logits is _LAST else 0 if logits is _NONE else len(item.token_ids)
