"""The thread that owns an engine. Everyone else hands it work and gets outputs through sinks."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from leafage.core.pins import PrefixPin
from leafage.core.request import FinishKind, FinishReason
from leafage.engine.engine import Engine
from leafage.engine.inputs import NewRequest
from leafage.engine.output import OutputProcessor, Sink
from leafage.engine.pins import Pin
from leafage.errors import LeafageError, RequestError

T = TypeVar("T")


class EngineThread:
    """Runs `Engine.step` while there are requests and sleeps while there are none.

    All methods may be called from any thread. A signal (Ctrl-C) reaches the main thread, never this one, so
    no step is ever cut in half.

    Args:
        after_step: called on this thread after the outputs of a step have gone to their sinks.
    """

    def __init__(
        self,
        engine: Engine,
        outputs: OutputProcessor,
        *,
        after_step: Callable[[], None] | None = None,
    ) -> None:
        self._engine = engine
        self._outputs = outputs
        self._after_step = after_step
        self._wake = threading.Condition()
        self._commands: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._times = engine.times
        self._closing = False
        self._dead: Exception | None = None
        self._busy_since: float | None = None
        self._num_submitted = self._num_taken = 0
        self._thread = threading.Thread(target=self._run, name="leafage-engine", daemon=True)
        self._thread.start()

    def submit(self, requests: list[NewRequest], sinks: list[Sink], *, stream: bool) -> Future[None]:
        """Add requests together: the next step sees all of them, or, when one is refused, none.

        The future is done when they are accepted; else it has the error of the first that was refused.
        """
        with self._wake:
            self._num_submitted += len(requests)
        return self.call(lambda: self._add(requests, sinks, stream))

    def abort(self, request_ids: list[str]) -> Future[None]:
        """End these requests, those that still run, with finish reason 'abort'."""
        return self.call(lambda: self._abort(request_ids))

    def abandon(self, accepted: Future[None], request_ids: list[str]) -> None:
        """Nobody waits for these requests any more: abort them, if `submit` accepted or will accept them."""
        accepted.add_done_callback(lambda done: None if done.exception() else self.abort(request_ids))

    def pin(self, prefix: NewRequest, ttl: float | None) -> tuple[Future[str], Future[Pin]]:
        """Keep a prefix cached, see `Engine.pin_prefix`.

        Returns:
            A future that is done when the pin is accepted, with its id, or the error of the refusal; and, for
            an accepted one, a future that is done when its prefix is computed.
        """
        held: Future[Pin] = Future()

        def ended(pin: PrefixPin) -> None:
            if not held.set_running_or_notify_cancel():
                return
            if pin.error is not None:
                held.set_exception(pin.error)
            else:
                held.set_result(self._engine.pins.describe(pin, self.unpin))

        def start() -> str:
            return self._engine.pin_prefix(
                prefix.prompt_token_ids,
                ttl=ttl,
                cache_salt=prefix.cache_salt,
                priority=prefix.priority,
                on_end=ended,
            )

        return self.call(start), held

    def abandon_pin(self, accepted: Future[str]) -> None:
        """Nobody waits for this pin any more: release it, if `pin` accepted or will accept it."""
        accepted.add_done_callback(lambda done: None if done.exception() else self.unpin(done.result()))

    def unpin(self, pin_id: str) -> Future[bool]:
        """Release a pin; False when there is none by that id (any more)."""
        return self.call(lambda: self._engine.unpin(pin_id))

    def pins(self) -> Future[list[Pin]]:
        """All pins."""
        return self.call(lambda: self._engine.pins.list(self.unpin))

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run a function between two steps."""
        future: Future[T] = Future()
        with self._wake:
            if self._closing or self._dead is not None:
                future.set_exception(self._gone())
                return future
            self._commands.append((function, future))
            self._wake.notify()
        return future

    def close(self) -> None:
        """Stop after the current step; running requests end with an error. Returns when the thread ended."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._closing and self._dead is None

    @property
    def why_gone(self) -> LeafageError | None:
        """Why it takes no more requests; None while it does."""
        return None if self.is_alive else self._gone()

    @property
    def step_age(self) -> float:
        """Seconds since the last step ended, or since work came after an idle while; 0 while there is none.

        It grows without end when a step, or a function that was to run between two steps, does not return.
        """
        since = self._busy_since
        return 0.0 if since is None else max(time.monotonic() - since, 0.0)

    @property
    def num_submitted(self) -> int:
        """Requests that were submitted and that the engine has yet to see."""
        return self._num_submitted - self._num_taken

    def _run(self) -> None:
        self._times.start()
        try:
            while self._next_commands():
                if not self._engine.has_unfinished:
                    continue
                deltas = self._engine.step()
                failed = self._outputs.process(deltas)
                self._times.lap("detokenize")
                for request_id in failed + self._outputs.deliver():
                    self._engine.abort(request_id)
                if self._after_step is not None:
                    self._after_step()
                self._times.lap("deliver")
        except Exception as error:
            self._dead = error
        finally:
            self._end_all()
            del self._engine, self._outputs  # whoever still holds this object holds no model

    def _next_commands(self) -> bool:
        """Run what was asked for, sleeping while there is nothing to do. False when it is time to stop."""
        self._busy_since = time.monotonic()
        if not (self._commands or self._closing) and self._engine.has_unfinished:
            return True  # without the lock: who comes now is seen before the next step
        with self._wake:
            while not (self._commands or self._closing or self._engine.has_unfinished):
                self._busy_since = None
                self._wake.wait()
                self._busy_since = time.monotonic()
                self._times.start()
            if self._closing:
                return False
            commands, self._commands = self._commands, deque()
        for function, future in commands:
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)
        self._times.lap("accept")
        return True

    def _add(self, requests: list[NewRequest], sinks: list[Sink], stream: bool) -> None:
        added: list[str] = []
        accepted = []
        try:
            for new in requests:
                request = self._engine.add_request(
                    new.request_id,
                    new.prompt_token_ids,
                    new.params,
                    priority=new.priority,
                    cache_salt=new.cache_salt,
                    tenant=new.tenant,
                )
                added.append(new.request_id)
                accepted.append(request)
        except Exception:
            for request_id in added:
                self._engine.abort(request_id)
            raise
        finally:
            self._num_taken += len(requests)
        for new, request, sink in zip(requests, accepted, sinks, strict=True):
            self._outputs.add(request, new.prompt, sink, stream=stream)

    def _abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._engine.abort(request_id)
            self._outputs.end(request_id, FinishReason(FinishKind.ABORT))
        if self._after_step is not None:
            self._after_step()

    def _end_all(self) -> None:
        """Nobody waits for ever: end all requests and calls with the reason."""
        with self._wake:
            self._closing = True
            commands, self._commands = self._commands, deque()
        for _, future in commands:
            if future.set_running_or_notify_cancel():
                future.set_exception(self._gone())
        self._outputs.deliver()  # what a step made before something broke
        self._engine.pins.give_up(self._gone())
        for request_id in self._outputs.request_ids:
            self._outputs.end(request_id, FinishReason(FinishKind.ERROR, error=self._gone()))
        if self._after_step is not None:
            self._after_step()

    def _gone(self) -> LeafageError:
        if self._dead is None:
            return RequestError("the engine is closed", remedy="create a new one")
        error = RequestError(
            f"the engine stopped after an internal error ({type(self._dead).__name__}: {self._dead})",
            remedy="create a new one, and please report this as a bug of Leafage",
        )
        error.__cause__ = self._dead
        return error
