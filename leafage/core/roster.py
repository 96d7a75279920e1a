"""Roster: the unfinished requests, waiting or running, in the order of service."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from itertools import islice

from leafage.core.policy import Policy
from leafage.core.request import Request, RequestStatus


def rank(request: Request) -> tuple[int, int]:
    """The order of service: priority (lower first), then arrival."""
    return (request.priority, request.arrival)


class Roster:
    """Every unfinished request is in exactly one of two lists, `waiting` or `running`, both sorted by rank.

    The policy is told who waits, and each request counts how often it was passed. A running gang counts as
    all its sequences from admission to its end, forked or not.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.num_seqs = 0
        """Sequences of running gangs."""
        self._requests: dict[str, Request] = {}
        self._preempted: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def requests(self) -> Iterable[Request]:
        return self._requests.values()

    def get(self, request_id: str) -> Request | None:
        """The unfinished request of that id."""
        return self._requests.get(request_id)

    def add(self, request: Request) -> None:
        """A new request waits."""
        insort(self.waiting, request, key=rank)
        self._requests[request.request_id] = request
        request.status = RequestStatus.WAITING
        self.policy.add(request)

    def start(self, request: Request) -> None:
        """From waiting to running. It passes those of its class that arrived earlier and still wait."""
        first = bisect_left(self.waiting, (request.priority, -1), key=rank)
        for other in islice(self.waiting, first, None):
            if other is request:
                break
            other.passed += 1
        self._stop_waiting(request)
        request.status = RequestStatus.RUNNING
        self.num_seqs += request.params.num_sequences
        insort(self.running, request, key=rank)

    def stop(self, request: Request) -> None:
        """From running back to waiting."""
        _remove(self.running, request)
        request.status = RequestStatus.PREEMPTED
        self.num_seqs -= request.params.num_sequences
        self._preempted.append(request)
        insort(self.waiting, request, key=rank)
        self.policy.add(request)

    def remove(self, request: Request) -> None:
        """The request ended."""
        del self._requests[request.request_id]
        if request.status is RequestStatus.RUNNING:
            _remove(self.running, request)
            self.num_seqs -= request.params.num_sequences
        else:
            self._stop_waiting(request)
        request.status = RequestStatus.FINISHED

    def blocked(self, request: Request) -> bool:
        """Whether a preempted gang of the same or a higher priority that arrived earlier still waits.

        Nothing may pass it, under any policy.
        """
        return any(
            other.priority <= request.priority and other.arrival < request.arrival
            for other in self._preempted
        )

    def check(self) -> None:
        """Assert that the lists are sorted, disjoint and complete, and what holds for their members."""
        both = self.waiting + self.running
        assert {id(r) for r in both} == {id(r) for r in self._requests.values()} and len(both) == len(self)
        for requests in (self.waiting, self.running):
            assert requests == sorted(requests, key=rank), "a list is not in the order of service"
        assert self.num_seqs == sum(r.params.num_sequences for r in self.running), "num_seqs is wrong"
        assert all(r.status is RequestStatus.RUNNING and r.live for r in self.running)
        assert [r for r in self.waiting if r.status is RequestStatus.PREEMPTED] == sorted(
            self._preempted, key=rank
        ), "the preempted requests are not those that wait preempted"
        for request in self.waiting:
            assert not any(seq.block_table for seq in request.sequences), f"{request.request_id} holds blocks"

    def _stop_waiting(self, request: Request) -> None:
        _remove(self.waiting, request)
        self.policy.remove(request)
        if request.status is RequestStatus.PREEMPTED:
            self._preempted.remove(request)


def _remove(requests: list[Request], request: Request) -> None:
    position = bisect_left(requests, rank(request), key=rank)
    assert requests[position] is request
    del requests[position]
