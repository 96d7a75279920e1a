"""build_inputs: batch -> flat arrays."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from leafage.core.batch import Batch, Item, Logits
from leafage.core.sampling_params import SamplingParams
from leafage.runtime.inputs import build_inputs

PARAMS = SamplingParams()


def make_item(
    table: list[int], start: int, num_tokens: int, write_from: int = 0, logits: Logits = Logits.LAST
) -> Item:
    token_ids = [1000 + start + i for i in range(num_tokens)]
    return Item(
        seq_id=0,
        request_id="r",
        block_table=table,
        start=start,
        token_ids=token_ids,
        write_from=write_from,
        logits=logits,
        samples=[],
        top_k_logprobs=0,
        params=PARAMS,
        history=[0] * start + token_ids,
        num_prompt_tokens=start + num_tokens,
    )


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 9), st.integers(0, 50), st.sampled_from(list(Logits))),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([1, 3, 8, 16]),
)
def test_arrays_match_a_row_by_row_construction(shapes, block_size):
    items, next_block = [], 0
    for start, count, write_from, logits in shapes:
        num_blocks = -(-(start + count) // block_size)
        items.append(
            make_item(
                list(range(next_block, next_block + num_blocks))[::-1], start, count, write_from, logits
            )
        )
        next_block += num_blocks
    inputs = build_inputs(Batch(items=items), block_size)

    row = 0
    logit_rows = []
    for index, item in enumerate(items):
        assert inputs.item_rows[index] == row
        assert inputs.item_num_rows[index] == len(item.token_ids)
        assert inputs.item_starts[index] == item.start
        offset = inputs.table_offsets[index]
        assert inputs.tables[offset : offset + len(item.block_table)].tolist() == item.block_table
        for i, token_id in enumerate(item.token_ids):
            position = item.start + i
            assert inputs.token_ids[row] == token_id
            assert inputs.positions[row] == position
            slot = item.block_table[position // block_size] * block_size + position % block_size
            assert inputs.slots[row] == (slot if position >= item.write_from else -1)
            if item.logits is Logits.ALL or (item.logits is Logits.LAST and i == len(item.token_ids) - 1):
                logit_rows.append(row)
            row += 1
    assert inputs.logit_rows.tolist() == logit_rows
    for name in inputs.__slots__:
        array = getattr(inputs, name)
        assert array.dtype == np.int32 and array.flags.c_contiguous, name
