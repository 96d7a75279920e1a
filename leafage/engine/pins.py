"""Pins of an engine: their ids, when they expire, and who waits for them."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from leafage.core.pins import PrefixPin
from leafage.core.protocols import Clock
from leafage.errors import InvalidParameterError, RequestError

if TYPE_CHECKING:
    from leafage.core.scheduler import Scheduler

OnEnd = Callable[[PrefixPin], None]
"""Told once: when the pin holds, has failed, or was released before it held (`error`)."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A prefix that stays cached until it is released or expires. Release it, or use it as a context manager.

    Attributes:
        id: unique over the life of the engine.
        num_tokens: leading tokens that stay cached.
        num_blocks: blocks that hold them; 0 while they are being computed.
        cache_salt: the prefixes of which salt they are shared with.
        ttl: seconds until it expires, as of when this object was made; None: never.
    """

    id: str
    num_tokens: int
    num_blocks: int
    cache_salt: str
    ttl: float | None
    _release: Callable[[str], object] = field(repr=False, compare=False)

    def release(self) -> None:
        """Make its blocks ordinary cache before the next step. The second time nothing happens."""
        self._release(self.id)

    def __enter__(self) -> Pin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class PinKeeper:
    """Starts, releases and expires the pins of a scheduler. For the thread that steps the engine.

    A pin's time begins when its prefix is computed. The clock is read between steps, and only while a pin is
    to expire.
    """

    def __init__(self, scheduler: Scheduler, clock: Clock) -> None:
        self._scheduler = scheduler
        self._pins = scheduler.kv.pins
        self._clock = clock
        self._numbers = itertools.count()
        self._ttl: dict[str, float] = {}  # of pins that are being computed for the first time
        self._expiries: list[tuple[float, str]] = []  # a heap; pins that were released are skipped
        self._expires: dict[str, float] = {}
        self._waiting: dict[str, OnEnd] = {}

    def pin(
        self,
        token_ids: list[int],
        *,
        ttl: float | None = None,
        cache_salt: str = "",
        priority: int = 0,
        on_end: OnEnd | None = None,
    ) -> str:
        """Start a pin, returns its id. See `Engine.pin_prefix`."""
        number = isinstance(ttl, int | float) and not isinstance(ttl, bool)
        if ttl is not None and not (number and 0 < ttl < math.inf):
            raise InvalidParameterError(
                "ttl is out of range",
                value=ttl,
                limit="more than 0 seconds",
                remedy="leave it out to keep the prefix until it is released",
            )
        pin = PrefixPin(f"leafage-pin-{next(self._numbers)}", token_ids, cache_salt, priority)
        self._pins.start(pin, self._scheduler.add)
        if ttl is not None:
            self._ttl[pin.pin_id] = ttl
        if on_end is not None:
            self._waiting[pin.pin_id] = on_end
        if pin.held:
            self._ended(pin)
        return pin.pin_id

    def release(self, pin_id: str) -> bool:
        """Give a pin up; False when there is none by that id (any more)."""
        for kept in (self._ttl, self._expires):
            kept.pop(pin_id, None)
        on_end = self._waiting.pop(pin_id, None)
        pin = self._pins.release(pin_id, self._scheduler.abort)
        if pin is not None and on_end is not None:
            pin.error = RequestError(
                "the pin was released before its prefix was computed", remedy="pin it again"
            )
            on_end(pin)
        return pin is not None

    def expire(self) -> None:
        """Release those whose time is over."""
        if not self._expiries:
            return
        now = self._clock.now()
        while self._expiries and self._expiries[0][0] <= now:
            self.release(heapq.heappop(self._expiries)[1])

    def settle(self) -> None:
        """A step is over: those that it brought to hold begin to age, and who waits is told."""
        news = self._pins.news
        if news:
            for pin in news:
                self._ended(pin)
            news.clear()

    def give_up(self, error: Exception) -> None:
        """The engine stops: tell all who wait."""
        for pin in self._pins:
            if pin.pin_id in self._waiting:
                pin.error = error
                self._ended(pin)

    def list(self, release: Callable[[str], object]) -> list[Pin]:
        """All pins, the oldest first.

        Args:
            release: what `Pin.release` calls, with the pin's id.
        """
        self.expire()
        return [self.describe(pin, release) for pin in self._pins]

    def describe(self, pin: PrefixPin, release: Callable[[str], object]) -> Pin:
        """A pin as its user sees it, now."""
        expires = self._expires.get(pin.pin_id)
        ttl = self._ttl.get(pin.pin_id) if expires is None else max(0.0, expires - self._clock.now())
        return Pin(pin.pin_id, len(pin.token_ids), len(pin.nodes), pin.cache_salt, ttl, release)

    def _ended(self, pin: PrefixPin) -> None:
        """A pin holds, or has failed. One that was discarded and computed again keeps its time."""
        ttl = self._ttl.pop(pin.pin_id, None)
        if ttl is not None and pin.held:
            expires = self._expires[pin.pin_id] = self._clock.now() + ttl
            heapq.heappush(self._expiries, (expires, pin.pin_id))
            if len(self._expiries) > 2 * len(self._expires) + 64:  # too many of released pins: start over
                self._expiries = sorted((when, pin_id) for pin_id, when in self._expires.items())
        on_end = self._waiting.pop(pin.pin_id, None)
        if on_end is not None:
            on_end(pin)
