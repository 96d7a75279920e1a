"""The engine: the one short loop that drives the core through an executor."""

from __future__ import annotations

import random
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Protocol

from leafage.core.batch import NO_OUTPUT, Batch
from leafage.core.protocols import Clock, Executor
from leafage.core.request import Delta, Request
from leafage.core.sampling_params import SamplingParams
from leafage.core.step_times import StepTimes
from leafage.engine.pins import OnEnd, PinKeeper
from leafage.errors import ExecutorError, InvalidParameterError

if TYPE_CHECKING:
    from leafage.core.scheduler import Scheduler


class Observer(Protocol):
    """Watches the loop: counters and times. Whatever it raises is counted and goes no further."""

    def added(self, request: Request) -> None: ...
    def scheduled(self, batch: Batch) -> None: ...
    def stepped(self, batch: Batch, deltas: list[Delta]) -> None: ...
    def aborted(self, request_id: str) -> None: ...


class Engine:
    """Requests in, deltas out. Not thread-safe: one thread adds, aborts and steps.

    Args:
        scheduler: decides what each step computes.
        executor: computes it; the engine does not know which one.
        clock: by which pins expire.
        vocab_size: prompts and parameters may name the token ids 0 ... vocab_size - 1.
        eos_token_ids: end-of-generation ids of the model.
        seed: makes the seeds that are drawn for requests without one repeatable.
        observer: told of every step.
        times: counts where the time of steps goes.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        *,
        clock: Clock,
        vocab_size: int,
        eos_token_ids: frozenset[int] = frozenset(),
        seed: int | None = None,
        observer: Observer | None = None,
        times: StepTimes | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        self.observer = observer
        self.times = times or StepTimes()
        self.num_observer_errors = 0
        self.pins = PinKeeper(scheduler, clock)
        self._seeds = random.Random(seed)

    def step(self) -> list[Delta]:
        """Schedule, execute, update. Returns what became known, in the order it was drawn."""
        self.pins.expire()
        batch = self.scheduler.schedule()
        self._observe("scheduled", batch)
        self.times.lap("schedule")
        try:
            output = self.executor.execute(batch) if batch.has_work else NO_OUTPUT
        except ExecutorError as error:
            deltas = self.scheduler.fail(batch, error)
        except Exception as error:  # a fault of an executor ends its batch, never the loop
            deltas = self.scheduler.fail(batch, _wrapped(error))
        else:
            deltas = self.scheduler.update(batch, output)
        self.pins.settle()
        self._observe("stepped", batch, deltas)
        self.times.lap("update")
        return deltas

    def add_request(
        self,
        request_id: str,
        prompt_token_ids: SequenceOf[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str | None = None,
    ) -> Request:
        """Queue a request. From here on it ends with its answer or with an error.

        Args:
            priority: its class; lower ones run first.
            cache_salt: prefixes are shared only with requests of the same salt.
            tenant: whom the policy `fair` charges; None means the cache_salt.

        Raises:
            InvalidParameterError: the id is in use, the prompt is empty, or a token id is outside the
                vocabulary.
            RequestTooLargeError: the request could never run.
        """
        prompt = list(prompt_token_ids)
        self._check_vocabulary(prompt, params)
        request = Request(
            request_id=request_id,
            prompt_token_ids=prompt,
            params=params,
            priority=priority,
            cache_salt=cache_salt,
            tenant=cache_salt if tenant is None else tenant,
            eos_token_ids=self.eos_token_ids,
            seed=self._seeds.getrandbits(63) if params.seed is None else params.seed,
        )
        self.scheduler.add(request)
        self._observe("added", request)
        return request

    def abort(self, request_id: str) -> bool:
        """End a request now and free what it holds. False when there is none by that id (any more)."""
        if not self.scheduler.abort(request_id):
            return False
        self._observe("aborted", request_id)
        return True

    def pin_prefix(
        self,
        token_ids: SequenceOf[int],
        *,
        ttl: float | None = None,
        cache_salt: str = "",
        priority: int = 0,
        on_end: OnEnd | None = None,
    ) -> str:
        """Keep a prefix cached until it is released or expires. What is not cached yet is computed first.

        Args:
            ttl: seconds after which it expires, from when it is computed; None: never.
            cache_salt: of the requests that are to share it.
            priority: of computing it; lower runs first.
            on_end: told once, when the pin holds (maybe before this returns) or has failed.

        Returns:
            The pin's id, for `unpin`.

        Raises:
            InvalidParameterError: the prefix is empty, a token id is outside the vocabulary, or ttl is not
                positive.
            PinRefusedError: all pins together would hold more than their share of the KV cache.
            RequestTooLargeError: no request could ever use so long a prefix.
            UnsupportedError: the engine keeps no prefix cache.
        """
        prefix = list(token_ids)
        if prefix:
            self._check_ids("prefix token id", min(prefix), max(prefix))
        return self.pins.pin(prefix, ttl=ttl, cache_salt=cache_salt, priority=priority, on_end=on_end)

    def unpin(self, pin_id: str) -> bool:
        """Make a pin's blocks ordinary cache. False when there is none by that id (any more)."""
        return self.pins.release(pin_id)

    @property
    def has_unfinished(self) -> bool:
        return self.scheduler.has_unfinished

    def _check_vocabulary(self, prompt: list[int], params: SamplingParams) -> None:
        if params.beam_width is not None and params.beam_width > self.vocab_size:
            limit = f"{self.vocab_size} tokens of the vocabulary"
            raise InvalidParameterError("beam_width is out of range", value=params.beam_width, limit=limit)
        for name, ids in (
            ("prompt token id", prompt),
            ("logit_bias token id", params.logit_bias),
            ("stop_token_ids", params.stop_token_ids),
            *(("bad_words_token_ids", ids) for ids in params.bad_words_token_ids),
        ):
            if ids:
                self._check_ids(name, min(ids), max(ids))

    def _check_ids(self, name: str, low: int, high: int) -> None:
        if low < 0 or high >= self.vocab_size:
            raise InvalidParameterError(
                f"{name} is outside the vocabulary",
                value=low if low < 0 else high,
                limit=f"0 to {self.vocab_size - 1}",
            )

    def _observe(self, event: str, *args: object) -> None:
        if self.observer is None:
            return
        try:
            getattr(self.observer, event)(*args)
        except Exception:
            self.num_observer_errors += 1


def _wrapped(error: Exception) -> ExecutorError:
    wrapped = ExecutorError(
        f"the executor raised {type(error).__name__}: {error}",
        remedy="the requests of this batch ended; the engine goes on",
    )
    wrapped.__cause__ = error
    return wrapped
