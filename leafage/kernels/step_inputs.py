"""The flat arrays of one step, as both the native and the reference program read them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(slots=True)
class StepInputs:
    """All arrays are int32 and C-contiguous. R rows (tokens of the step), I items (sequences), L logit rows.

    Attributes:
        token_ids: [R].
        positions: [R] absolute position of each row's token.
        slots: [R] block * block_size + offset where the row's K/V goes; -1 writes nothing.
        item_rows: [I] first row of each item; its rows are consecutive.
        item_num_rows: [I].
        item_starts: [I] position of the item's first row.
        table_offsets: [I] where the item's block table begins in `tables`.
        tables: concatenated block tables.
        logit_rows: [L] rows that need logits, ascending.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    item_rows: np.ndarray
    item_num_rows: np.ndarray
    item_starts: np.ndarray
    table_offsets: np.ndarray
    tables: np.ndarray
    logit_rows: np.ndarray
