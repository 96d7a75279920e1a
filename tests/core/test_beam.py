from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafage.core.batch import SampledToken
from leafage.core.beam import BeamSearch
from leafage.core.request import FinishKind, FinishReason
from leafage.core.sampling_params import SamplingParams
from tests.core.naive_beam import naive_beam_search
from tests.core.toy import Loop, searched

STOP, LENGTH = FinishReason(FinishKind.STOP), FinishReason(FinishKind.LENGTH)


def _search(
    table: np.ndarray, params: SamplingParams, max_tokens: int, stop_ids: frozenset[int]
) -> list[tuple[list[int], float]]:
    """BeamSearch over a model whose log-probabilities depend on the last token: row 0 is the start's."""
    search = BeamSearch(params, max_tokens, len(stop_ids))
    length = 0

    def ends(parent: int, token_id: int) -> FinishReason | None:
        return STOP if token_id in stop_ids else LENGTH if length == max_tokens else None

    def row(last: int) -> SampledToken:
        best = np.lexsort((np.arange(table.shape[1]), -table[last]))[: search.num_candidates]
        return SampledToken(int(best[0]), 0.0, 1, [(int(i), float(table[last][i])) for i in best])

    rows = [row(0)]
    while rows:
        length += 1
        rows = [row(beam.path.token.token_id + 1) for beam in search.advance(rows, ends)]
    return [([t.token_id for t in h.path.tokens()], h.score) for h in search.finished]


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 5),
    st.integers(1, 9),
    st.sampled_from([(), (0,), (0, 3)]),
    st.sampled_from([1.0, 0.0, -1.0, 2.5]),
    st.sampled_from([True, False, "never"]),
    st.booleans(),
)
@settings(deadline=None, max_examples=300)
def test_equals_a_search_that_computes_every_step_from_scratch(
    seed: int,
    width: int,
    max_tokens: int,
    stop_ids: tuple[int, ...],
    length_penalty: float,
    early_stopping: bool | str,
    ties: bool,
) -> None:
    rng = np.random.default_rng(seed)
    table = np.log(rng.dirichlet(np.ones(12), size=13)).astype(np.float32)
    if ties:
        table = np.round(table)
    params = SamplingParams(beam_width=width, length_penalty=length_penalty, early_stopping=early_stopping)
    expected = naive_beam_search(
        lambda tokens: table[tokens[-1] + 1 if tokens else 0],
        [],
        width=width,
        max_tokens=max_tokens,
        stop_ids=frozenset(stop_ids),
        length_penalty=length_penalty,
        early_stopping=early_stopping,
    )
    got = _search(table, params, max_tokens, frozenset(stop_ids))
    assert got == [(answer.tokens, answer.score) for answer in expected]


def test_a_search_of_which_nothing_goes_on_ends_with_what_stood_best() -> None:
    search = BeamSearch(SamplingParams(beam_width=2, n=2), 5, 0)
    row = SampledToken(1, -0.5, 1, [(i, -0.5 - i) for i in range(4)])
    assert search.advance([row], lambda parent, token_id: STOP) == []
    assert [h.path.token.token_id for h in search.finished] == [0, 1]


def test_a_banned_token_is_no_candidate() -> None:
    search = BeamSearch(SamplingParams(beam_width=2), 5, 0)
    row = SampledToken(1, -0.5, 1, [(1, -0.5), (0, float("-inf"))])
    assert [beam.path.token.token_id for beam in search.advance([row], lambda parent, token_id: None)] == [1]


# -- in the scheduler --------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_beams_through_blocks_equal_the_naive_search(width: int, block_size: int) -> None:
    loop = Loop(400, block_size)
    request_id = loop.add(range(10), beam_width=width, n=width, max_tokens=20, eos=(3,))
    loop.run()
    assert [loop.tokens(request_id, i) for i in range(width)] == searched(loop.requests[request_id], 50)
    assert loop.kv.num_active == 0


@pytest.mark.parametrize(("width", "bound"), [(2, 1 / 2), (4, 3 / 4), (8, 7 / 8)])
def test_r4_3_beams_share_blocks(width: int, bound: float) -> None:
    """Mean saving against beams with blocks of their own: prompt 40, 30 steps, blocks of 4."""
    loop = Loop(400, 4)
    request_id = loop.add(range(40), beam_width=width, max_tokens=31)
    savings = []
    while loop.scheduler.has_unfinished:
        loop.step()
        members = loop.requests[request_id].live
        if len(members) == width:
            alone = sum(len(seq.block_table) for seq in members)
            savings.append(1 - loop.kv.num_active / alone)
    assert bound - 0.1 <= sum(savings) / len(savings) <= bound


def test_r4_6_beams_mix_with_ordinary_and_parallel_requests_in_one_batch() -> None:
    loop = Loop(400, 4)
    together = []
    loop.executor.before_execute = lambda batch: together.append({item.request_id for item in batch.items})
    ids = [
        loop.add(range(9), beam_width=3, n=2, max_tokens=12),
        loop.add(range(9), max_tokens=12, seed=5, temperature=1.0),
        loop.add(range(9), n=3, max_tokens=12, seed=5, temperature=1.0),
        loop.add(range(5), beam_width=2, max_tokens=7),
    ]
    loop.run()
    for request_id in ids:
        loop.assert_undisturbed(request_id)
    assert set(ids) in together


def test_preempted_beams_go_on_where_they_were() -> None:
    """In a pool for little more than one search the later ones are preempted, and resume in lockstep."""
    loop = Loop(26, 2, max_num_batched_tokens=7)
    ids = [loop.add(range(i, i + 8), beam_width=3, n=3, max_tokens=14) for i in (0, 20, 40, 60)]
    loop.run()
    assert loop.scheduler.counters.preemptions > 0
    for request_id in ids:
        loop.assert_undisturbed(request_id)


def test_a_fully_cached_gang_of_beams_resumes_in_one_step() -> None:
    """All the tokens of its beams are in the index: nothing to compute but their last ones, together."""
    loop = Loop(200, 1)
    request_id = loop.add(range(6), beam_width=3, max_tokens=20)
    for _ in range(8):
        loop.step()
    request = loop.requests[request_id]
    loop.scheduler.admission.restart(request)
    before = [seq.num_output_tokens for seq in request.live]
    loop.step()
    assert [seq.num_output_tokens for seq in request.live] == [count + 1 for count in before]
    loop.run()
    loop.assert_undisturbed(request_id)


def test_an_ended_search_reports_every_answer_once() -> None:
    loop = Loop(40, 4)
    request_id = loop.add(range(9), beam_width=4, n=3, max_tokens=12)
    loop.step()
    loop.executor.row_errors = {request_id: "NaN"}
    loop.step()
    kinds = [answer.finish.kind for answer in loop.answers.values() if answer.finish is not None]
    assert kinds == [FinishKind.ERROR] * 3


def test_a_failed_gang_reports_every_sequence_although_it_never_forked() -> None:
    loop = Loop(40, 4)
    request_id = loop.add(range(9), n=3, max_tokens=12)
    loop.executor.row_errors = {request_id: "NaN"}
    loop.step()
    assert sorted(loop.answers) == [(request_id, 0), (request_id, 1), (request_id, 2)]
