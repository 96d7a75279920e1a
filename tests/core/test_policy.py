"""Admission orders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from leafage.core.kv_manager import KVManager
from leafage.core.policy import fcfs
from leafage.core.request import Request
from tests.core.toy import Loop


def test_fcfs_keeps_the_order_of_service() -> None:
    loop = Loop()
    for name, priority in (("b", 0), ("a", 0), ("urgent", -1)):
        loop.add([1], name, priority=priority)
    order = fcfs(loop.scheduler.roster.waiting, loop.kv)
    assert [request.request_id for request in order] == ["urgent", "b", "a"]


def test_a_policy_is_a_function_of_the_waiting_requests() -> None:
    def shortest(waiting: Sequence[Request], kv: KVManager) -> Iterable[Request]:
        return sorted(waiting, key=lambda request: len(request.prompt_token_ids))

    loop = Loop(policy=shortest, max_num_seqs=1)
    loop.add(range(9), "long", max_tokens=1)
    loop.add(range(50, 53), "short", max_tokens=1)
    loop.step()
    assert [request_id for request_id, _ in loop.answers] == ["short"]
    loop.run()
