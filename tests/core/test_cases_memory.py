"""Cases M of the collected failures of other engines: preemption, exhausted KV caches."""

from __future__ import annotations

import pytest

from leafage.errors import RequestTooLargeError
from tests.core.toy import Loop


def test_m01_a_request_larger_than_the_cache_is_refused_at_once_and_blocks_nobody() -> None:
    loop = Loop(4, 16)
    with pytest.raises(RequestTooLargeError) as caught:
        loop.add(range(100), max_tokens=8)
    message = str(caught.value)
    assert (
        "100 prompt tokens" in message and "64 tokens" in message and "shorten the prompt" in message.lower()
    )
    assert not loop.scheduler.has_unfinished
    after = loop.add(range(30), max_tokens=8)
    loop.run()
    loop.assert_undisturbed(after)


@pytest.mark.parametrize("reservation", [None, "max", "oracle"])
def test_m01_more_sequences_than_fit_are_told_so(reservation: str | None) -> None:
    """The prompt is not what is too long: one sequence of it would run."""
    loop = Loop(4, 16, max_model_len=60, reservation=reservation)
    told = r"n = 4'; limit: 64 tokens\. (Lower n\b|Set max_tokens to at most)"
    with pytest.raises(RequestTooLargeError, match=told) as caught:
        loop.add(range(20), max_tokens=20, n=4, temperature=1.0)
    assert "shorten the prompt" not in str(caught.value).lower()
    loop.add(range(20), max_tokens=20)


def blocked_head(**options: object) -> tuple[Loop, str]:
    """A pool whose half runs long, a head that needs more than is left, and small requests behind it."""
    loop = Loop(64, 4, **options)  # type: ignore[arg-type]
    loop.add(range(1000, 1128), "running", max_tokens=60)
    loop.step()
    head = loop.add(range(200), "head", max_tokens=4)
    for i in range(40):
        loop.add(range(2000 + 10 * i, 2008 + 10 * i), f"small {i}", max_tokens=2)
    return loop, head


def test_m02_strict_order_waits_for_a_head_that_does_not_fit() -> None:
    """What fcfs documents: nobody passes the head, and it runs as soon as the running one has ended."""
    loop, head = blocked_head()
    while (head, 0) not in loop.answers:
        assert ("small 0", 0) not in loop.answers
        loop.step()
    assert loop.answers["running", 0].finish is not None
    loop.run()


@pytest.mark.parametrize("bound", [0, 3, 16])
def test_m02_skipping_a_blocked_head_is_bounded(bound: int) -> None:
    """Small ones run, at most `max_passes` of them; then the head runs."""
    loop, head = blocked_head(policy="first_fit", max_passes=bound)
    while loop.requests[head].num_cached is None:
        small = [r for r in loop.requests.values() if r.request_id.startswith("small")]
        assert sum(request.num_cached is not None for request in small) <= bound
        loop.step()
    assert loop.requests[head].passed == bound, "all of the bound is used"
    loop.run()
    for request_id in loop.requests:
        loop.assert_undisturbed(request_id)


@pytest.mark.parametrize("prefix_index", ["radix", "none"])
def test_m05_recompute_changes_no_token(prefix_index: str) -> None:
    prompts = [[100 * i + j for j in range(20)] for i in range(8)]
    needed = 8 * -(-(20 + 40) // 4)
    loop = Loop(needed * 30 // 100, 4, prefix_index=prefix_index)
    ids = [loop.add(prompt, max_tokens=40) for prompt in prompts]
    loop.run()
    assert loop.scheduler.counters.preemptions > 0
    assert loop.scheduler.counters.recomputed_tokens > 0
    for request_id in ids:
        loop.assert_undisturbed(request_id)


def test_m07_an_exhausted_pool_is_a_decision_not_an_exception() -> None:
    loop = Loop(6, 4)
    first = loop.add(range(16), max_tokens=8)
    second = loop.add(range(100, 104), max_tokens=20)
    third = loop.add(range(200, 216), max_tokens=8)
    loop.step()
    assert [r.request_id for r in loop.scheduler.roster.waiting] == [third], "it does not fit: it waits"
    loop.run()
    for request_id in (first, second, third):
        loop.assert_undisturbed(request_id)


def test_m11_long_answers_in_a_small_pool_all_finish_by_preemption() -> None:
    loop = Loop(64, 16)
    ids = [loop.add([1000 * i + j for j in range(64)], max_tokens=400) for i in range(4)]
    loop.run()
    assert loop.scheduler.counters.preemptions > 0
    for request_id in ids:
        assert len(loop.tokens(request_id)) == 400
        loop.assert_undisturbed(request_id)


def test_m12_every_step_makes_progress() -> None:
    """Never a step without rows while requests wait, and never more preemptions than B for each request."""
    loop = Loop(16, 4, max_preemptions=3)
    ids = [loop.add([1000 * i + j for j in range(10)], max_tokens=50) for i in range(12)]
    steps = 0
    while loop.scheduler.has_unfinished:
        rows = loop.executor.num_rows
        loop.step()
        steps += 1
        assert loop.executor.num_rows > rows
    assert steps <= 12 * 51
    assert all(loop.requests[r].num_preemptions <= 3 for r in ids)
