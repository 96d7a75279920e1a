"""The flat arrays of one step, as both the native and the reference program read them."""

from __future__ import annotations

import numpy as np


class StepInputs:
    """A step's int32 arrays, one behind the other in `data`, so that native code takes one pointer.

    R rows (tokens of the step), I items (sequences), L logit rows. The arrays are read-only views, in the
    order in which they lie in `data`:

    - token_ids: [R].
    - positions: [R] absolute position of each row's token.
    - slots: [R] block * block_size + offset where the row's K/V goes; -1 writes nothing.
    - item_rows: [I] first row of each item; its rows are consecutive.
    - item_num_rows: [I].
    - item_starts: [I] position of the item's first row.
    - table_offsets: [I] where the item's block table begins in `tables`.
    - logit_rows: [L] rows that need logits, ascending.
    - tables: concatenated block tables; the rest of `data`.
    """

    __slots__ = ("data", "num_items", "num_logit_rows", "num_rows")

    def __init__(self, data: bytes, num_rows: int, num_items: int, num_logit_rows: int) -> None:
        self.data = data
        self.num_rows = num_rows
        self.num_items = num_items
        self.num_logit_rows = num_logit_rows

    @classmethod
    def of(
        cls,
        token_ids: np.ndarray,
        positions: np.ndarray,
        slots: np.ndarray,
        item_rows: np.ndarray,
        item_num_rows: np.ndarray,
        item_starts: np.ndarray,
        table_offsets: np.ndarray,
        tables: np.ndarray,
        logit_rows: np.ndarray,
    ) -> StepInputs:
        """From the arrays, each int32 [n].

        Raises:
            ValueError: an array has another dtype or number of dimensions, or not the length of its fellows.
        """
        rows = {"token_ids": token_ids, "positions": positions, "slots": slots}
        items = {
            "item_rows": item_rows,
            "item_num_rows": item_num_rows,
            "item_starts": item_starts,
            "table_offsets": table_offsets,
        }
        arrays = rows | items | {"logit_rows": logit_rows, "tables": tables}
        for name, array in arrays.items():
            if array.dtype != np.int32 or array.ndim != 1:
                raise ValueError(f"expected {name} as int32 [n], got {array.dtype} {array.shape}")
        for group in (rows, items):
            lengths = {name: len(array) for name, array in group.items()}
            if len(set(lengths.values())) > 1:
                raise ValueError(f"expected arrays of one length, got {lengths}")
        data = np.concatenate(list(arrays.values())).tobytes()
        return cls(data, len(token_ids), len(item_rows), len(logit_rows))

    def replace(self, **arrays: np.ndarray) -> StepInputs:
        """A copy with other values for some arrays. Raises as `of`."""
        return StepInputs.of(**{name: arrays.get(name, getattr(self, name)) for name in ARRAYS})

    token_ids = property(lambda self: self._view(0))
    positions = property(lambda self: self._view(1))
    slots = property(lambda self: self._view(2))
    item_rows = property(lambda self: self._view(3))
    item_num_rows = property(lambda self: self._view(4))
    item_starts = property(lambda self: self._view(5))
    table_offsets = property(lambda self: self._view(6))
    logit_rows = property(lambda self: self._view(7))
    tables = property(lambda self: self._view(8))

    def _view(self, number: int) -> np.ndarray:
        """The array with this number in the order of ARRAYS."""
        lengths = [self.num_rows] * 3 + [self.num_items] * 4 + [self.num_logit_rows]
        values = np.frombuffer(self.data, np.int32)
        first = sum(lengths[:number])
        return values[first:] if number == len(lengths) else values[first : first + lengths[number]]


ARRAYS = (
    "token_ids", "positions", "slots", "item_rows", "item_num_rows", "item_starts", "table_offsets",
    "logit_rows", "tables",
)  # fmt: skip
"""In the order in which they lie in `data`."""
