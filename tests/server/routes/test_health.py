from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from leafage.server.app import create_app
from tests.server.conftest import context_over, serving, tiny_build

if TYPE_CHECKING:
    from leafage.build import Assets
    from leafage.server.context import Context

STALL_LIMIT = 0.6
WAIT = 20.0


class Frozen:
    """A server whose executor waits inside a step until it is let go."""

    def __init__(self, context: Context, url: str) -> None:
        self.context = context
        self.url = url
        self.entered, self.gate = threading.Event(), threading.Event()
        self._execute = context.core.executor.execute

    def freeze(self) -> None:
        def execute(batch: Any) -> Any:
            self.entered.set()
            assert self.gate.wait(WAIT)
            return self._execute(batch)

        self.context.core.executor.execute = execute  # type: ignore[method-assign]

    def ask(self) -> httpx.Response:
        body = {"prompt": "hello", "max_tokens": 4}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=WAIT)

    def health(self, kind: str = "/live") -> httpx.Response:
        return httpx.get(f"{self.url}/health{kind}", timeout=WAIT)


@pytest.fixture
def frozen(tiny_assets: Assets) -> Iterator[Frozen]:
    build = tiny_build(tiny_assets)
    with context_over(build, stall_limit=STALL_LIMIT) as context, serving(create_app(context)) as url:
        server = Frozen(context, url)
        try:
            yield server
        finally:
            server.gate.set()


def test_s08_a_frozen_engine_is_told_within_the_limit_and_an_idle_one_is_well(frozen: Frozen) -> None:
    assert frozen.ask().status_code == 200
    time.sleep(2 * STALL_LIMIT)
    for kind in ("", "/live", "/ready"):
        answer = frozen.health(kind)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"}), (
            "idle for longer than the limit"
        )
    frozen.freeze()
    asking = threading.Thread(target=frozen.ask)
    asking.start()
    assert frozen.entered.wait(WAIT)
    began = time.monotonic()
    while frozen.health().status_code == 200:
        time.sleep(0.01)
    assert STALL_LIMIT * 0.5 < time.monotonic() - began < STALL_LIMIT + 2.0
    for kind in ("", "/live", "/ready"):
        answer = frozen.health(kind)
        assert answer.status_code == 503 and answer.json()["status"] == "stalled"
        assert "at one step for" in answer.json()["reason"] and "limit: 0.6 s" in answer.json()["reason"]
        assert answer.json()["last_step_age_seconds"] > STALL_LIMIT
    text = httpx.get(f"{frozen.url}/metrics", timeout=WAIT).text
    (line,) = [line for line in text.splitlines() if line.startswith("leafage:last_step_age_seconds{")]
    assert float(line.split()[-1]) > STALL_LIMIT
    frozen.gate.set()
    asking.join(WAIT)
    assert frozen.health().status_code == 200, "it goes on"


def test_s08_busy_for_longer_than_the_limit_is_well(frozen: Frozen) -> None:
    """As long as steps end."""
    execute = frozen.context.core.executor.execute

    def slow(batch: Any) -> Any:
        time.sleep(STALL_LIMIT / 10)
        return execute(batch)

    frozen.context.core.executor.execute = slow  # type: ignore[method-assign]
    done = threading.Event()

    def ask() -> None:
        body = {"prompt": "hello", "max_tokens": 25, "ignore_eos": True}
        httpx.post(f"{frozen.url}/v1/completions", json=body, timeout=WAIT)
        done.set()

    threading.Thread(target=ask).start()
    began, statuses = time.monotonic(), set()
    while not done.is_set():
        statuses.add(frozen.health().status_code)
        time.sleep(0.02)
    assert time.monotonic() - began > 2 * STALL_LIMIT and statuses == {200}


def test_s08_an_engine_that_stopped_is_dead(frozen: Frozen) -> None:
    def broken() -> None:
        raise RuntimeError("the scheduler lost a block")

    frozen.context.core.step = broken  # type: ignore[assignment,method-assign]
    assert frozen.ask().status_code == 500
    answer = frozen.health()
    assert answer.status_code == 503 and answer.json()["status"] == "dead"
    assert "the scheduler lost a block" in answer.json()["reason"]


def test_s09_a_draining_server_is_alive_and_not_ready(frozen: Frozen) -> None:
    frozen.context.lifecycle.draining = True
    assert frozen.health("/live").status_code == 200
    answer = frozen.health("/ready")
    assert answer.status_code == 503 and answer.json()["status"] == "draining"
