"""From a chunk to an item, and back."""

from __future__ import annotations

from leafage.core.batch import ItemOutput, Logits, SampledToken
from leafage.core.request import Request, derive
from leafage.core.rows import Chunk, build_item, new_prompt_logprobs
from leafage.core.sampling_params import SamplingParams


def chunk(start: int, end: int, *, num_prompt: int = 10, **params: object) -> Chunk:
    request = Request("r", list(range(num_prompt)), SamplingParams(**params), seed=3)  # type: ignore[arg-type]
    request.eos_token_ids = frozenset({7})
    return Chunk(request, request.new_sequence(1), start, end)


def test_only_a_chunk_that_reaches_the_last_token_draws() -> None:
    item = build_item(chunk(0, 6))
    assert item.logits is Logits.NONE and not item.samples and item.token_ids == [0, 1, 2, 3, 4, 5]
    item = build_item(chunk(6, 10))
    assert item.logits is Logits.LAST and [s.position for s in item.samples] == [10]


def test_the_prompts_last_row_draws_for_the_whole_gang() -> None:
    item = build_item(chunk(6, 10, n=3))
    assert [(s.index, s.position, s.seed) for s in item.samples] == [(i, 10, derive(3, i)) for i in range(3)]


def test_attached_positions_are_not_written() -> None:
    part = chunk(9, 10)
    part.seq.write_from = 10
    assert build_item(part).write_from == 10
    part.seq.write_from = 4
    assert build_item(part).write_from == 9


def test_end_ids_are_banned_until_min_tokens() -> None:
    assert build_item(chunk(9, 10, min_tokens=1, stop_token_ids=[5])).banned_token_ids == {5, 7}
    assert build_item(chunk(9, 10, stop_token_ids=[5])).banned_token_ids == set()
    part = chunk(9, 10, min_tokens=1)
    part.seq.tokens.append(4)
    part.end = 11
    assert build_item(part).banned_token_ids == set()


def test_prompt_logprobs_ask_for_all_rows_until_delivered() -> None:
    part = chunk(0, 4, prompt_logprobs=5, logprobs=2)
    item = build_item(part)
    assert item.logits is Logits.ALL and item.top_k_logprobs == 5
    result = ItemOutput(prompt_logprobs=[SampledToken(row + 1, -1.0) for row in range(4)])
    assert [t.token_id for t in new_prompt_logprobs(part, result)] == [1, 2, 3, 4]
    assert new_prompt_logprobs(part, result) == [], "computed again after a preemption"
    part.start, part.end = 2, 10
    result = ItemOutput(prompt_logprobs=[SampledToken(row + 1, -1.0) for row in range(2, 9)])
    assert [t.token_id for t in new_prompt_logprobs(part, result)] == [5, 6, 7, 8, 9]
    assert build_item(part).logits is Logits.LAST, "all rows are delivered"
