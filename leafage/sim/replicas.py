"""Several engines that serve one workload: which request goes to which."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, get_args

from leafage.errors import InvalidParameterError
from leafage.sim.result import SimResult
from leafage.sim.simulation import Simulation
from leafage.sim.verdict import Verdict
from leafage.sim.workload import SimRequest, Workload

Router = Literal["round_robin", "least_loaded"]
"""`round_robin` sends requests to the replicas in turn; `least_loaded` to the one that has the fewest waiting
and running when they arrive, in turn among equals."""


def check_router(router: str) -> Router:
    """The router of this name.

    Raises:
        InvalidParameterError: there is none.
    """
    for known in get_args(Router):
        if router == known:
            return known  # type: ignore[no-any-return]
    raise InvalidParameterError("unknown router", value=router, limit=", ".join(get_args(Router)))


def serve(
    replicas: Sequence[Simulation],
    workload: Workload,
    router: Router,
    on_progress: Callable[[int, float], None] | None = None,
    verdict: Verdict | None = None,
) -> list[SimResult]:
    """Simulate several engines side by side, on one time; returns what each did.

    What follows a request, such as the next turn of its conversation, goes where that went, which has its
    prefix in the cache.

    Args:
        on_progress: told (requests ended, simulated seconds) now and then.
        verdict: stop all of them once it is missed.
    """
    ended = [0] * len(replicas)

    def progress_of(index: int) -> Callable[[int, float], None]:
        def tell(count: int, seconds: float) -> None:
            ended[index] = count
            if on_progress is not None:
                on_progress(sum(ended), seconds)

        return tell

    followed = _Followed(workload)
    for index, replica in enumerate(replicas):
        replica.begin(followed, progress_of(index), verdict)
    turn = 0
    for request in workload:
        if verdict is not None and verdict.is_missed:
            break
        if router == "least_loaded":
            for replica in replicas:
                replica.advance(request.arrival)
            fewest = min(replica.num_unfinished for replica in replicas)
            while replicas[turn % len(replicas)].num_unfinished > fewest:
                turn += 1
        chosen = replicas[turn % len(replicas)]
        chosen.advance(request.arrival)
        chosen.add(request)
        turn += 1
    for replica in replicas:
        replica.advance(math.inf)
    return [replica.result() for replica in replicas]


class _Followed:
    """A workload of which a replica knows nothing but what follows its requests."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def __iter__(self) -> Iterator[SimRequest]:
        return iter(())

    def finished(self, request: SimRequest, time: float) -> Iterable[SimRequest]:
        return self._workload.finished(request, time)
