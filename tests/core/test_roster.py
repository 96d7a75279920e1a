"""Roster: waiting and running requests in the order of service."""

from __future__ import annotations

from leafage.core.kv_manager import KVManager
from leafage.core.policy import Fcfs
from leafage.core.request import Request, RequestStatus
from leafage.core.roster import Roster
from leafage.core.sampling_params import SamplingParams


def make(request_id: str, arrival: int, priority: int = 0, n: int = 1) -> Request:
    request = Request(request_id, [1], SamplingParams(n=n), arrival=arrival, priority=priority)
    request.new_sequence(arrival)
    return request


def test_lists_are_sorted_by_priority_then_arrival() -> None:
    roster = Roster(Fcfs(KVManager(1, 1)))
    late, early, urgent = make("late", 2), make("early", 1), make("urgent", 3, priority=-1)
    for request in (late, early, urgent):
        roster.add(request)
    assert roster.waiting == [urgent, early, late] and len(roster) == 3
    roster.start(early)
    roster.start(urgent)
    assert roster.running == [urgent, early] and roster.waiting == [late]
    roster.check()


def test_a_running_gang_counts_as_its_sequences() -> None:
    roster = Roster(Fcfs(KVManager(1, 1)))
    gang = make("gang", 1, n=4)
    roster.add(gang)
    assert roster.num_seqs == 0
    roster.start(gang)
    assert roster.num_seqs == 4
    roster.stop(gang)
    assert roster.num_seqs == 0 and gang.status is RequestStatus.PREEMPTED
    roster.start(gang)
    roster.remove(gang)
    assert roster.num_seqs == 0 and roster.get("gang") is None and not len(roster)


def test_a_preempted_request_blocks_later_ones_of_its_class_and_below() -> None:
    roster = Roster(Fcfs(KVManager(1, 1)))
    first, later = make("first", 1), make("later", 5)
    lower, urgent, earlier = make("lower", 6, priority=1), make("urgent", 7, priority=-1), make("earlier", 0)
    for request in (first, later, lower, urgent, earlier):
        roster.add(request)
    roster.start(first)
    assert not roster.blocked(later)
    roster.stop(first)
    assert roster.blocked(later) and roster.blocked(lower)
    assert not roster.blocked(urgent) and not roster.blocked(earlier) and not roster.blocked(first)
    roster.remove(first)
    assert not roster.blocked(later)


def test_those_who_are_passed_count_it() -> None:
    roster = Roster(Fcfs(KVManager(1, 1)))
    requests = [make(str(i), i, priority) for i, priority in enumerate([0, 0, 0, 1, -1])]
    for request in requests:
        roster.add(request)
    roster.start(requests[2])
    assert [request.passed for request in requests] == [1, 1, 0, 0, 0], "earlier ones of its class"
    roster.start(requests[1])
    assert [request.passed for request in requests] == [2, 1, 0, 0, 0]
    roster.start(requests[0])
    roster.start(requests[4])
    assert [request.passed for request in requests] == [2, 1, 0, 0, 0], "classes are apart"
