"""Admission order: which waiting request is tried next.

A policy is a function from the waiting requests (sorted by priority, then arrival) to the order in which the
scheduler tries them. The scheduler stops at the first one that does not fit, and it never lets a request pass
a preempted one of the same or a higher priority that arrived earlier, whatever the policy says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from leafage.core.protocols import KV
from leafage.core.request import Request
from leafage.errors import InvalidParameterError

Policy = Callable[[Sequence[Request], KV], Iterable[Request]]


def fcfs(waiting: Sequence[Request], kv: KV) -> Iterable[Request]:
    """First come, first served within each priority. Nothing is ever passed."""
    return waiting


POLICIES: dict[str, Policy] = {"fcfs": fcfs}


def policy_named(name: str) -> Policy:
    """Raises InvalidParameterError for an unknown one."""
    if name not in POLICIES:
        raise InvalidParameterError("unknown policy", value=name, limit=" or ".join(POLICIES))
    return POLICIES[name]
