from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leafage.server.http_counters import CountRequests, HttpCounters


def run(app: Any, path: str = "/v1/models", kind: str = "http") -> tuple[HttpCounters, list[Any]]:
    counters = HttpCounters()
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    asyncio.run(CountRequests(app, counters)({"type": kind, "path": path}, receive, send))
    return counters, sent


async def not_found(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 404})
    await send({"type": "http.response.body", "body": b""})


def test_responses_are_counted_by_class_and_pass() -> None:
    counters, sent = run(not_found)
    assert counters.responses == {"1xx": 0, "2xx": 0, "3xx": 0, "4xx": 1, "5xx": 0}
    assert len(sent) == 2 and counters.num_in_flight == 0


@pytest.mark.parametrize(
    ("path", "kind"), [("/metrics", "http"), ("/health/live", "http"), ("/", "lifespan")]
)
def test_what_machines_ask_is_not_counted(path: str, kind: str) -> None:
    counters, _ = run(not_found, path, kind)
    assert sum(counters.responses.values()) == 0


def test_requests_are_in_flight_until_their_answer_is_out() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(counters.num_in_flight)

    counters = HttpCounters()

    async def nothing(*_: Any) -> Any:
        return None

    asyncio.run(CountRequests(app, counters)({"type": "http", "path": "/"}, nothing, nothing))
    assert seen == [1] and counters.num_in_flight == 0


@pytest.mark.parametrize("began", [False, True])
def test_a_fault_counts_once_and_goes_on(began: bool) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        if began:
            await send({"type": "http.response.start", "status": 200})
        raise RuntimeError("oh")

    counters = HttpCounters()

    async def nothing(*_: Any) -> Any:
        return None

    with pytest.raises(RuntimeError):
        asyncio.run(CountRequests(broken, counters)({"type": "http", "path": "/"}, nothing, nothing))
    assert (counters.responses["5xx"], counters.responses["2xx"]) == (int(not began), int(began))
    assert counters.num_in_flight == 0
