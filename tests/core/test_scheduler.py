"""Scheduler: budget, admission, preemption, endings."""

from __future__ import annotations

import pytest

from leafage.core.batch import Batch, Logits
from leafage.core.request import FinishKind, FinishReason, RequestStatus, Sequence
from leafage.errors import ExecutorError, InvalidParameterError, RequestTooLargeError
from tests.core.toy import Loop, numbers


def rows(batch: Batch) -> list[tuple[str, int]]:
    return [(item.request_id, len(item.token_ids)) for item in batch.items]


def finish_step(loop: Loop, batch: Batch) -> None:
    loop.record(loop.scheduler.update(batch, loop.executor.execute(batch)))
    loop.verify()


# -- budget ------------------------------------------------------------------------------------------


def test_decodes_come_first_and_prompts_are_cut_to_the_budget() -> None:
    loop = Loop(200, 4, max_num_batched_tokens=20)
    loop.add(numbers(8, 0), "a", max_tokens=9)
    loop.step()
    loop.add(numbers(50, 100), "b", max_tokens=9)
    batch = loop.scheduler.schedule()
    assert rows(batch) == [("a", 1), ("b", 16)], "19 tokens are left; a cut chunk ends at a block boundary"
    assert [item.logits for item in batch.items] == [Logits.LAST, Logits.NONE]
    assert not batch.items[1].samples
    finish_step(loop, batch)


def test_one_prompt_takes_at_most_half_while_others_wait() -> None:
    loop = Loop(200, 4, max_num_batched_tokens=64)
    for i, name in enumerate("abc"):
        loop.add(numbers(100, 1000 * i), name, max_tokens=2)
    batch = loop.scheduler.schedule()
    assert rows(batch) == [("a", 32), ("b", 16), ("c", 16)]
    finish_step(loop, batch)


def test_budget_that_nobody_takes_goes_to_the_first_prompt() -> None:
    loop = Loop(200, 4, max_num_batched_tokens=64)
    loop.add(numbers(100, 0), "long", max_tokens=2)
    loop.add(numbers(4, 1000), "short", max_tokens=2)
    batch = loop.scheduler.schedule()
    assert rows(batch) == [("long", 60), ("short", 4)]
    finish_step(loop, batch)


def test_a_block_larger_than_the_budget_still_progresses() -> None:
    loop = Loop(4, 256, max_num_batched_tokens=100)
    request_id = loop.add(numbers(300, 0), max_tokens=5)
    loop.run()
    loop.assert_undisturbed(request_id)


def test_equal_chunked_prompts_yield_until_the_earlier_one_passes() -> None:
    loop = Loop(200, 4, max_num_batched_tokens=16)
    loop.add(numbers(64, 0), "a", max_tokens=2)
    loop.add(numbers(64, 0), "b", max_tokens=2)
    for _ in range(4):
        batch = loop.scheduler.schedule()
        assert rows(batch) == [("a", 16)], "b waits and costs nothing"
        finish_step(loop, batch)
    batch = loop.scheduler.schedule()
    assert rows(batch) == [("a", 1), ("b", 1)]
    finish_step(loop, batch)


def test_a_yielding_request_takes_over_when_the_earlier_one_is_aborted() -> None:
    loop = Loop(200, 4, max_num_batched_tokens=16)
    loop.add(numbers(64, 0), "a", max_tokens=2)
    loop.add(numbers(64, 0), "b", max_tokens=2)
    loop.step()
    loop.scheduler.abort("a")
    loop.verify()
    batch = loop.scheduler.schedule()
    assert rows(batch) == [("b", 16)] and batch.items[0].start == 16
    finish_step(loop, batch)
    loop.run()
    loop.assert_undisturbed("b")


def test_more_decode_rows_than_budget_take_turns_as_whole_gangs() -> None:
    loop = Loop(200, 4, max_num_batched_tokens=4, max_num_seqs=8)
    loop.add(numbers(4, 0), "first", n=3, max_tokens=6, temperature=1.0)
    loop.step()
    loop.add([100], "second", n=3, max_tokens=6, temperature=1.0)
    loop.step()
    batch = loop.scheduler.schedule()
    assert rows(batch) == [("first", 1)] * 3, "the older gang first; half a gang is never run"
    finish_step(loop, batch)
    loop.run()
    loop.assert_undisturbed("first")
    loop.assert_undisturbed("second")


# -- admission ----------------------------------------------------------------------------------------


def test_max_num_seqs_counts_a_gang_as_its_sequences_from_admission() -> None:
    loop = Loop(200, 4, max_num_seqs=3)
    loop.add(numbers(8, 0), "two", n=2, max_tokens=5, temperature=1.0)
    loop.add(numbers(8, 100), "next", n=2, max_tokens=5, temperature=1.0)
    loop.step()
    assert loop.scheduler.num_running == 1 and loop.scheduler.num_waiting == 1
    loop.run()
    loop.assert_undisturbed("next")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"max_preemptions": 0}, "max_preemptions"),
        ({"watermark": -1}, "watermark"),
        ({"policy": "best"}, "unknown policy"),
    ],
)
def test_wrong_limits_are_refused_by_name(options: dict[str, int], named: str) -> None:
    with pytest.raises(InvalidParameterError, match=named):
        Loop(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("length", "params", "words"),
    [
        (60, {"max_tokens": 1}, ["60 prompt tokens", "59", "max_model_len is 60"]),
        (35, {"max_tokens": 26}, ["35 prompt tokens + max_tokens 26", "limit: 60", "at most 6"]),
        (45, {"max_tokens": 5}, ["45 prompt tokens", "40 tokens"]),
        (39, {"max_tokens": 3}, ["39 prompt tokens + max_tokens 3", "40 tokens", "at most 2"]),
        (5, {"max_tokens": 5, "n": 9}, ["n is larger", "9", "limit: 8"]),
        (9, {"max_tokens": 30, "n": 4, "temperature": 1.0}, ["n = 4", "40 tokens"]),
    ],
)
def test_what_can_never_run_is_refused_with_value_limit_and_remedy(
    length: int, params: dict[str, int], words: list[str]
) -> None:
    loop = Loop(10, 4, max_model_len=60, max_num_seqs=8)
    with pytest.raises(RequestTooLargeError) as caught:
        loop.add(numbers(length, 0), **params)
    for word in words:
        assert word in str(caught.value), f"{word!r} is missing in {caught.value}"
    assert caught.value.remedy
    assert not loop.scheduler.has_unfinished


def test_an_empty_prompt_and_an_id_in_use_are_refused() -> None:
    loop = Loop()
    with pytest.raises(InvalidParameterError, match="empty"):
        loop.add([])
    loop.add([1], "x")
    with pytest.raises(InvalidParameterError, match="in use"):
        loop.add([1], "x")
    loop.run()
    with pytest.raises(InvalidParameterError, match="added before"):
        loop.scheduler.add(loop.requests["x"])


@pytest.mark.parametrize(("max_model_len", "expected"), [(60, 40 - 10 + 1), (30, 20)])
def test_an_unset_max_tokens_is_what_fits(max_model_len: int, expected: int) -> None:
    loop = Loop(10, 4, max_model_len=max_model_len)
    request_id = loop.add(numbers(10, 0), max_tokens=None)
    assert loop.requests[request_id].max_tokens == expected
    loop.run()
    assert len(loop.tokens(request_id)) == expected
    loop.assert_undisturbed(request_id)


def test_the_largest_accepted_gang_runs_alone() -> None:
    """The last block is used to its last slot, at every offset."""
    for length in range(1, 20):
        for n in (1, 2, 3):
            loop = Loop(8, 4)
            room = loop.kv.longest_output(length, n)
            if room < 1:
                continue
            request_id = loop.add(numbers(length, 0), max_tokens=room, n=n, temperature=1.0, seed=3)
            with pytest.raises(RequestTooLargeError):
                loop.add(numbers(length, 0), max_tokens=room + 1, n=n, temperature=1.0)
            loop.run()
            assert loop.scheduler.counters.preemptions == 0
            loop.assert_undisturbed(request_id)


def test_the_watermark_holds_back_admission_only_while_something_runs() -> None:
    loop = Loop(10, 4, watermark=4)
    loop.add(numbers(28, 0), "first", max_tokens=9)
    loop.step()
    assert loop.scheduler.num_running == 1, "waived when nothing runs"
    loop.add(numbers(4, 100), "second", max_tokens=2)
    loop.step()
    assert loop.scheduler.num_waiting == 1
    loop.run()


# -- preemption ---------------------------------------------------------------------------------------


def test_the_victim_is_the_latest_of_the_lowest_priority() -> None:
    loop = Loop(9, 4)
    loop.add(numbers(8, 0), "low", max_tokens=20, priority=1)
    loop.add(numbers(8, 100), "old", max_tokens=20)
    loop.add(numbers(8, 200), "new", max_tokens=20)
    while loop.scheduler.counters.preemptions == 0:
        loop.step()
    assert [r.request_id for r in loop.scheduler.roster.waiting] == ["low"]
    while loop.scheduler.counters.preemptions == 1:
        loop.step()
    waiting = [r.request_id for r in loop.scheduler.roster.waiting]
    assert waiting == ["new", "low"]
    loop.run()
    for request_id in ("low", "old", "new"):
        loop.assert_undisturbed(request_id)


def test_nothing_passes_a_preempted_request_of_its_class_but_a_higher_one_may() -> None:
    loop = Loop(8, 4, policy="shortest_prompt")
    loop.add(numbers(8, 0), "a", max_tokens=20)
    loop.add(numbers(8, 100), "b", max_tokens=20)
    while loop.scheduler.counters.preemptions == 0:
        loop.step()
    assert loop.requests["b"].status is RequestStatus.PREEMPTED
    loop.add([300], "tiny", max_tokens=1)
    loop.add([400], "urgent", max_tokens=1, priority=-1)
    loop.step()
    assert loop.answers["urgent", 0].finish is not None
    assert loop.requests["tiny"].status is RequestStatus.WAITING
    loop.run()
    loop.assert_undisturbed("b")


def test_the_oldest_is_never_preempted() -> None:
    loop = Loop(20, 4)
    for i in range(8):
        loop.add(numbers(12, 100 * i), max_tokens=40)
    loop.run()
    assert loop.scheduler.counters.preemptions > 0
    assert loop.requests["r0"].num_preemptions == 0
    for i in range(8):
        loop.assert_undisturbed(f"r{i}")


@pytest.mark.parametrize("most", [1, 2])
def test_preemptions_of_one_request_are_bounded(most: int) -> None:
    loop = Loop(20, 4, max_preemptions=most)
    for i in range(10):
        loop.add(numbers(9, 100 * i), max_tokens=40)
    loop.run()
    assert max(request.num_preemptions for request in loop.requests.values()) == most


def test_a_gang_is_preempted_and_resumed_as_a_whole() -> None:
    loop = Loop(16, 4)
    loop.add(numbers(10, 0), "first", max_tokens=40)
    loop.add(numbers(10, 100), "gang", n=3, max_tokens=12, temperature=1.0, seed=9)
    seen = False
    while loop.scheduler.has_unfinished:
        loop.step()
        gang = loop.requests["gang"]
        if gang.status is RequestStatus.PREEMPTED and len(gang.sequences) == 3:
            seen = True
            assert not any(seq.block_table for seq in gang.sequences)
    assert seen
    loop.assert_undisturbed("gang")
    loop.assert_undisturbed("first")


def test_recomputed_tokens_and_their_hits_are_counted_apart() -> None:
    loop = Loop(12, 4)
    loop.add(numbers(8, 0), max_tokens=33)
    loop.add(numbers(8, 100), max_tokens=33)
    loop.run()
    counters = loop.scheduler.counters
    assert counters.preemptions > 0 and counters.recomputed_tokens > 0
    assert counters.prompt_tokens == 16 + counters.recomputed_tokens + counters.preemptions


# -- endings ------------------------------------------------------------------------------------------


class StopAt:
    """Says that the text ends with the token that makes the output `length` long."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.calls: list[int] = []

    def finished(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        self.calls.append(token_id)
        done = sequence.num_output_tokens + 1 >= self.length
        return FinishReason(FinishKind.STOP, "stop!") if done else None


def test_each_kind_of_ending_says_why() -> None:
    loop = Loop(60, 4, vocab_size=3)
    loop.add(numbers(5, 0), "length", max_tokens=7)
    loop.add(numbers(5, 0), "eos", max_tokens=70, eos=[0])
    loop.add(numbers(5, 0), "id", max_tokens=70, stop_token_ids=[0])
    loop.add(numbers(5, 0), "both", max_tokens=70, stop_token_ids=[0], eos=[0])
    loop.add(numbers(5, 0), "ignored", max_tokens=30, eos=[0], ignore_eos=True)
    loop.add(numbers(5, 0), "later", max_tokens=70, eos=[0], min_tokens=20)
    loop.run()
    endings = {request_id: answer.finish for (request_id, _), answer in loop.answers.items()}
    assert endings["length"] == FinishReason(FinishKind.LENGTH)
    assert endings["eos"] == FinishReason(FinishKind.STOP)
    assert endings["id"] == FinishReason(FinishKind.STOP, 0)
    assert endings["both"] == FinishReason(FinishKind.STOP)
    assert endings["ignored"] == FinishReason(FinishKind.LENGTH)
    assert loop.tokens("eos")[-1] == 0 and 0 not in loop.tokens("eos")[:-1], "the last token is reported"
    assert 0 in loop.tokens("ignored")[:-1]
    assert len(loop.tokens("later")) > 20 and 0 not in loop.tokens("later")[:-1]
    for request_id in endings:
        loop.assert_undisturbed(request_id)


def test_the_stop_check_sees_every_token_and_ends_the_sequence() -> None:
    check = StopAt(5)
    loop = Loop(60, 4, stop_check=check)
    request_id = loop.add(numbers(5, 0), max_tokens=50)
    loop.run()
    assert loop.answers[request_id, 0].finish == FinishReason(FinishKind.STOP, "stop!")
    assert check.calls == loop.tokens(request_id) and len(check.calls) == 5


def test_a_stop_string_before_min_tokens_does_not_end_the_output() -> None:
    loop = Loop(60, 4, stop_check=StopAt(5))
    request_id = loop.add(numbers(5, 0), max_tokens=50, min_tokens=9)
    loop.run()
    assert len(loop.tokens(request_id)) == 9


@pytest.mark.parametrize("state", ["waiting", "prefilling", "running", "preempted", "in flight"])
def test_abort_frees_everything_in_every_state(state: str) -> None:
    loop = Loop(10, 4, max_num_batched_tokens=8 if state == "prefilling" else 64)
    loop.add(numbers(8, 0), "keep", max_tokens=20)
    if state == "waiting":
        loop.add(numbers(39, 100), "gone", max_tokens=1)
        loop.step()
    else:
        loop.add(numbers(12, 100), "gone", max_tokens=20)
        loop.step()
        while state == "preempted" and loop.requests["gone"].status is not RequestStatus.PREEMPTED:
            loop.step()
    batch = loop.scheduler.schedule() if state == "in flight" else None
    assert loop.scheduler.abort("gone")
    assert not loop.scheduler.abort("gone") and not loop.scheduler.abort("never seen")
    if batch is not None:
        deltas = loop.scheduler.update(batch, loop.executor.execute(batch))
        assert {delta.request_id for delta in deltas} == {"keep"}, "an aborted request is not reported"
        loop.record(deltas)
    loop.verify()
    assert loop.scheduler.roster.get("gone") is None
    assert {seq.gang[0].seq_id for seq in loop.kv.attached()} <= {
        seq.seq_id for seq in loop.requests["keep"].sequences
    }
    loop.run()
    loop.assert_undisturbed("keep")


def test_released_sequences_are_told_to_the_executor_once() -> None:
    loop = Loop(60, 4)
    loop.add(numbers(5, 0), "a", max_tokens=1)
    loop.add(numbers(5, 50), "b", max_tokens=4)
    loop.step()
    batch = loop.scheduler.schedule()
    assert batch.released == [loop.requests["a"].sequences[0].seq_id]
    finish_step(loop, batch)
    loop.run()
    idle = loop.scheduler.schedule()
    assert not idle.has_work and not idle.released, "kept for a batch that is executed"
    loop.record(loop.scheduler.update(idle, type(loop.executor.execute(idle))()))
    loop.add(numbers(5, 70), "c", max_tokens=1)
    assert len(loop.scheduler.schedule().released) == 1


def test_a_bad_row_ends_its_request_only() -> None:
    loop = Loop(60, 4)
    loop.add(numbers(16, 0), "bad", max_tokens=9)
    loop.add(numbers(16, 0), "same prompt", max_tokens=9)
    loop.add(numbers(5, 50), "other", max_tokens=9)
    loop.executor.row_errors["bad"] = "NaN in the logits"
    loop.step()
    loop.executor.row_errors.clear()
    finish = loop.answers["bad", 0].finish
    assert finish is not None and finish.kind is FinishKind.ERROR and "NaN in the logits" in str(finish.error)
    loop.run()
    loop.assert_undisturbed("same prompt")
    loop.assert_undisturbed("other")
    assert loop.answers["same prompt", 0].num_cached == 0, "what the bad row wrote is not used"


def test_a_failed_batch_ends_its_requests_with_the_error() -> None:
    loop = Loop(10, 4)
    loop.add(numbers(8, 0), "in the batch", max_tokens=9)
    loop.step()
    loop.add(numbers(36, 100), "waits", max_tokens=1)
    batch = loop.scheduler.schedule()
    error = ExecutorError("the device is gone")
    deltas = loop.scheduler.fail(batch, error)
    loop.verify()
    assert [(d.request_id, d.finish) for d in deltas] == [
        ("in the batch", FinishReason(FinishKind.ERROR, error=error))
    ]
    loop.record(deltas)
    loop.run()
    loop.assert_undisturbed("waits")


# -- prompt_logprobs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [5, 64])
def test_prompt_logprobs_attach_nothing_and_deliver_each_row_once(budget: int) -> None:
    loop = Loop(60, 4, max_num_batched_tokens=budget)
    loop.add(numbers(20, 0), "plain", max_tokens=2)
    loop.run()
    loop.add(numbers(20, 0), "scored", max_tokens=2, prompt_logprobs=1)
    loop.run()
    answer = loop.answers["scored", 0]
    assert answer.num_cached == 0
    assert [token.token_id for token in answer.prompt_logprobs] == numbers(19, 1)
    assert loop.kv.counters.merged_blocks > 0, "its blocks merge with the cached ones"
    loop.assert_undisturbed("scored")


def test_prompt_logprobs_survive_a_preemption() -> None:
    loop = Loop(10, 4, max_num_batched_tokens=12)
    loop.add(numbers(4, 0), "old", max_tokens=30)
    while len(loop.requests["old"].sequences[0].tokens) < 12:
        loop.step()
    loop.add(numbers(26, 100), "scored", max_tokens=2, prompt_logprobs=1)
    loop.run()
    assert loop.requests["scored"].num_preemptions > 0
    rows = [int(token.logprob) for token in loop.answers["scored", 0].prompt_logprobs]
    assert rows == list(range(25))
    loop.assert_undisturbed("scored")
    loop.assert_undisturbed("old")
