"""Whether the engine is given a request, or its client is asked to come again."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from leafage.engine.inputs import NewRequest
from leafage.errors import InvalidParameterError, RequestTooLargeError
from leafage.server.config import ServerConfig
from leafage.server.errors import RETRY, ApiError

if TYPE_CHECKING:
    from leafage.engine.engine import Engine
    from leafage.engine.metrics import EngineMetrics

PACE_SECONDS = 60.0
"""How far back the pace of the engine is looked at."""
LONGEST_RETRY = 60
UNKNOWN_RETRY = 10
"""Seconds to come again after, when no request has ended lately."""


class Admission:
    """Bounds the queue. On the event loop; of the engine it reads single numbers, which a step may change.

    A request waits when the engine has not begun it. Those that have just come need not wait: as long as the
    last step left nobody waiting, as many as there are free places run in the next one. They do not count.

    Args:
        num_submitted: tells of requests on their way to the engine.
        rejections: where those that are turned away are counted.
    """

    def __init__(
        self,
        config: ServerConfig,
        engine: Engine,
        metrics: EngineMetrics,
        num_submitted: Callable[[], int],
        rejections: dict[str, int],
    ) -> None:
        self._max_queue = config.max_queue
        self._max_prompt_len = config.max_prompt_len
        self._scheduler = engine.scheduler
        self._metrics = metrics
        self._rejections = rejections
        self._num_submitted = num_submitted
        self._ended: deque[tuple[float, int]] = deque(maxlen=256)

    def check(self, requests: Sequence[NewRequest]) -> None:
        """Before requests are submitted.

        Raises:
            ApiError: 429, the queue is full.
            RequestTooLargeError: a prompt is too long.
            InvalidParameterError: there are more than could ever wait.
        """
        self._check_sizes(requests)
        self.check_queue(len(requests))

    def check_queue(self, num_requests: int = 1) -> None:
        """Raises ApiError 429 when so many more would be too many."""
        num_waiting = self._scheduler.num_waiting + self._num_submitted()
        if num_waiting + num_requests <= self._max_queue:
            return
        if num_waiting + num_requests > self._max_queue + self._num_free_places():
            self._rejections["queue_full"] += 1
            raise ApiError(
                f"too many requests wait; got {num_waiting} and {num_requests} more; "
                f"limit: {self._max_queue} (--max-queue). {RETRY}",
                status=429,
                code="queue_full",
                headers={"Retry-After": str(self._retry_after(num_waiting))},
            )

    def ended(self, num_requests: int) -> None:
        """So many are gone."""
        self._ended.append((time.monotonic(), num_requests))

    def _num_free_places(self) -> int:
        if self._metrics.num_left_waiting and self._scheduler.num_waiting:
            return 0
        return max(0, self._scheduler.max_num_seqs - self._scheduler.roster.num_seqs)

    def _retry_after(self, num_waiting: int) -> int:
        """Seconds in which half of the queue is gone at the present pace."""
        now = time.monotonic()
        lately = [(when, count) for when, count in self._ended if now - when < PACE_SECONDS]
        if not lately:
            return UNKNOWN_RETRY
        pace = sum(count for _, count in lately) / max(now - lately[0][0], 1.0)
        return min(max(1, math.ceil(num_waiting / 2 / pace)), LONGEST_RETRY)

    def _check_sizes(self, requests: Sequence[NewRequest]) -> None:
        most = self._max_queue + self._scheduler.max_num_seqs
        if len(requests) > most:
            raise InvalidParameterError(
                "prompt has more entries than may run and wait together",
                value=len(requests),
                limit=f"{most} (max_num_seqs + max_queue)",
                remedy="send them in parts",
            )
        if self._max_prompt_len is not None:
            longest = max(len(new.prompt_token_ids) for new in requests)
            if longest > self._max_prompt_len:
                raise RequestTooLargeError(
                    "the prompt is longer than this server allows",
                    value=f"{longest} tokens",
                    limit=f"{self._max_prompt_len} tokens (--max-prompt-len)",
                    remedy="shorten the prompt",
                )
