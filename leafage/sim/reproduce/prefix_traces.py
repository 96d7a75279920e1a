"""The lecture's workloads for a prefix cache: a few-shot evaluation and conversations. Times are steps."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count

from leafage.sim.workload import SimRequest

COMMON, TASK, NUM_TASKS = 100, 500, 8
NUM_REQUESTS = 400
ANSWER = 40
NUM_SESSIONS, NUM_TURNS = 60, 5


def few_shot(seed: int, num_requests: int = NUM_REQUESTS) -> list[SimRequest]:
    """Prompts of 100 common tokens, 500 of one of 8 tasks and 20 to 99 of their own, all there at once.

    No two questions have a token in common.
    """
    rng = random.Random(seed)
    common = range(COMMON)
    fresh = _Fresh(COMMON)
    tasks = [fresh.take(TASK) for _ in range(NUM_TASKS)]
    requests = []
    for number in range(num_requests):
        task = tasks[rng.randrange(NUM_TASKS)]
        prompt = [*common, *task, *fresh.take(rng.randint(20, 99))]
        requests.append(SimRequest(str(number), 0.0, prompt, fresh.take(ANSWER)))
    return requests


def best_hit_rate(requests: list[SimRequest]) -> float:
    """What a cache of any size gives in any order at most: every shared token is computed once."""
    tasks = {request.prompt[COMMON] for request in requests}
    shared = COMMON + TASK
    computed = COMMON + TASK * len(tasks) + sum(len(request.prompt) - shared for request in requests)
    return 1 - computed / sum(len(request.prompt) for request in requests)


class Conversations:
    """60 conversations of 5 turns over one system prompt of 100 tokens.

    A turn's prompt is all that was said before, and a question of 20 to 99 tokens; answers have 40 to 119.
    It comes 5 to 40 steps after the turn before it was served. All first turns are there at once.
    """

    def __init__(self, seed: int, num_sessions: int = NUM_SESSIONS, num_turns: int = NUM_TURNS) -> None:
        rng = random.Random(seed)
        fresh = _Fresh(COMMON)
        self._turns = [
            [
                _Turn(fresh.take(rng.randint(20, 99)), fresh.take(rng.randint(40, 119)), rng.randint(5, 40))
                for _ in range(num_turns)
            ]
            for _ in range(num_sessions)
        ]

    def __iter__(self) -> Iterator[SimRequest]:
        for session in range(len(self._turns)):
            yield self._request(session, 0, 0.0, list(range(COMMON)))

    def finished(self, request: SimRequest, time: float) -> Iterable[SimRequest]:
        """The next turn of its conversation."""
        session, number = map(int, request.request_id.split("."))
        if number + 1 == len(self._turns[session]):
            return ()
        pause = self._turns[session][number].pause
        return [self._request(session, number + 1, time + pause, [*request.prompt, *request.output])]

    def _request(self, session: int, number: int, arrival: float, said: list[int]) -> SimRequest:
        turn = self._turns[session][number]
        return SimRequest(f"{session}.{number}", arrival, [*said, *turn.question], turn.answer)


@dataclass(frozen=True, slots=True)
class _Turn:
    """What is said in a turn, and how many steps the user takes until the next one."""

    question: list[int]
    answer: list[int]
    pause: int


class _Fresh:
    """Token ids that nothing else has."""

    def __init__(self, start: int) -> None:
        self._ids = count(start)

    def take(self, num_tokens: int) -> list[int]:
        return [next(self._ids) for _ in range(num_tokens)]
