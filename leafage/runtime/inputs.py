"""From a Batch to the flat arrays that a program reads."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import numpy as np

from leafage.core.batch import Batch, Logits
from leafage.kernels.step_inputs import StepInputs


def build_inputs(batch: Batch, block_size: int) -> StepInputs:
    """Flatten a batch: one row per token, items in the batch's order.

    The K/V of a row goes to slot `block_table[position // block_size] * block_size + position % block_size`,
    or nowhere (-1) below the item's `write_from`.
    """
    items = batch.items
    num_items = len(items)
    num_rows = np.fromiter((len(item.token_ids) for item in items), np.int32, num_items)
    starts = np.fromiter((item.start for item in items), np.int32, num_items)
    write_from = np.fromiter((item.write_from for item in items), np.int32, num_items)
    table_lengths = np.fromiter((len(item.block_table) for item in items), np.int32, num_items)
    tables = _flat((item.block_table for item in items), int(table_lengths.sum()))
    token_ids = _flat((item.token_ids for item in items), int(num_rows.sum()))

    first_rows = _exclusive_sum(num_rows)
    table_offsets = _exclusive_sum(table_lengths)
    if len(token_ids) == num_items:  # decode: a row is an item
        positions = starts
        blocks = tables[table_offsets + positions // block_size]
        writes = positions >= write_from
    else:
        item_of_row = np.repeat(np.arange(num_items, dtype=np.int32), num_rows)
        positions = np.arange(len(token_ids), dtype=np.int32) - first_rows[item_of_row] + starts[item_of_row]
        blocks = tables[table_offsets[item_of_row] + positions // block_size]
        writes = positions >= write_from[item_of_row]
    slots = np.where(writes, blocks * block_size + positions % block_size, -1).astype(np.int32, copy=False)

    logit_rows: list[int] = []
    for item, first, count in zip(items, first_rows.tolist(), num_rows.tolist(), strict=True):
        if item.logits is Logits.LAST:
            logit_rows.append(first + count - 1)
        elif item.logits is Logits.ALL:
            logit_rows.extend(range(first, first + count))
    return StepInputs(
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        item_rows=first_rows,
        item_num_rows=num_rows,
        item_starts=starts,
        table_offsets=table_offsets,
        tables=tables,
        logit_rows=np.asarray(logit_rows, dtype=np.int32),
    )


def _flat(lists: Iterable[list[int]], length: int) -> np.ndarray:
    return np.fromiter(chain.from_iterable(lists), np.int32, length)


def _exclusive_sum(counts: np.ndarray) -> np.ndarray:
    out = np.empty_like(counts)
    if len(counts):
        out[0] = 0
        np.cumsum(counts[:-1], out=out[1:])
    return out
