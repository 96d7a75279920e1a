"""build_inputs: batch -> flat arrays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leafage.core.batch import Batch, Item, Logits
from leafage.core.sampling_params import SamplingParams
from leafage.runtime.inputs import build_inputs

BIG = 1 << 31
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
    again = inputs.replace()
    assert again.data == inputs.data, "the arrays lie where their names say"


@pytest.mark.parametrize(
    ("table", "start", "num_tokens", "message"),
    [
        ([5], 15, 2, "covers tokens 15 to 17 of item 0, got 1 blocks"),
        ([5], -1, 1, "covers tokens -1"),
        ([], 0, 1, "got 0 blocks"),
        ([BIG], 0, 1, "tables as 32-bit integers, got 2147483648"),
        ([5], BIG, 1, "starts as 32-bit"),
    ],
)
def test_what_does_not_fit_is_refused(table, start, num_tokens, message):
    item = make_item(table, 0, num_tokens)
    item.start = start
    with pytest.raises(ValueError, match=message):
        build_inputs(Batch(items=[item]), 16)


def test_tables_longer_than_needed_are_kept_whole():
    """A sequence may own blocks beyond its last token; offsets of later items count them."""
    inputs = build_inputs(Batch(items=[make_item([3, 4, 5], 0, 2), make_item([9], 0, 1)]), 16)
    assert inputs.tables.tolist() == [3, 4, 5, 9] and inputs.table_offsets.tolist() == [0, 3]
    assert inputs.slots.tolist() == [48, 49, 144]
