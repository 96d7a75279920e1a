from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from leafage.build import Assets
from leafage.engine.inputs import NewRequest
from leafage.errors import InvalidParameterError
from leafage.server import admission
from leafage.server.admission import Admission
from leafage.server.config import ServerConfig
from leafage.server.context import Context
from leafage.server.errors import ApiError
from tests.server.conftest import tiny_server, until
from tests.server.process import Answer, ask, connected, get, read_answer, request_bytes

PATH = "/v1/completions"
LONG = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True}


class Engine:
    """Numbers that an admission looks at: 4 places."""

    def __init__(self, num_waiting: int, num_seqs: int, num_left_waiting: int) -> None:
        roster = SimpleNamespace(num_seqs=num_seqs)
        self.scheduler = SimpleNamespace(num_waiting=num_waiting, roster=roster, max_num_seqs=4)
        self.metrics = SimpleNamespace(num_left_waiting=num_left_waiting)
        self.num_submitted = 0

    def admission(self, max_queue: int, **settings: Any) -> Admission:
        config = ServerConfig(max_queue=max_queue, **settings)
        rejections = {"queue_full": 0}
        return Admission(config, self, self.metrics, lambda: self.num_submitted, rejections)  # type: ignore


def new(count: int) -> list[NewRequest]:
    return [NewRequest(str(number), [1, 2, 3], None) for number in range(count)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("engine", "max_queue", "most"),
    [
        (Engine(0, 0, 0), 2, 6),  # idle: 4 run in the next step, 2 wait
        (Engine(0, 0, 0), 0, 4),
        (Engine(3, 0, 0), 2, 3),  # 3 have just come
        (Engine(0, 3, 0), 2, 3),
        (Engine(1, 3, 1), 2, 1),  # a place is free, but memory is not: the last step left one waiting
        (Engine(2, 1, 2), 2, 0),
        (Engine(0, 2, 5), 0, 2),  # those that waited have left since
        (Engine(9, 4, 9), 2, 0),
    ],
)
def test_what_can_run_at_once_does_not_count(engine: Engine, max_queue: int, most: int) -> None:
    for count in range(1, 9):
        allowed = True
        try:
            engine.admission(max_queue).check_queue(count)
        except ApiError as error:
            allowed = False
            assert (error.status, error.code) == (429, "queue_full")
        assert allowed == (count <= most), count


def test_those_on_their_way_to_the_engine_count() -> None:
    engine = Engine(0, 4, 0)
    bound = engine.admission(3)
    bound.check_queue(3)
    engine.num_submitted = 2
    bound.check_queue(1)
    with pytest.raises(ApiError):
        bound.check_queue(2)


def test_more_than_could_ever_wait_are_refused_for_good() -> None:
    bound = Engine(0, 0, 0).admission(2)
    with pytest.raises(InvalidParameterError, match=r"got 7; limit: 6 \(max_num_seqs \+ max_queue\)"):
        bound.check(new(7))
    bound.check(new(6))


def test_when_to_come_again_follows_from_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(admission.time, "monotonic", lambda: now)
    bound = Engine(40, 4, 40).admission(40)

    def retry_after() -> int:
        with pytest.raises(ApiError) as caught:
            bound.check_queue()
        return int(caught.value.headers["Retry-After"])

    assert retry_after() == admission.UNKNOWN_RETRY
    for _ in range(5):
        now += 1.0
        bound.ended(2)
    now += 1.0
    assert retry_after() == 10  # 2 a second: half of 40 take 10 s
    for _ in range(100):
        bound.ended(1)
    assert retry_after() == 1
    now += 50
    bound.ended(1)
    assert 1 <= retry_after() <= admission.LONGEST_RETRY
    now += 100
    assert retry_after() == admission.UNKNOWN_RETRY


# -- the same over HTTP ------------------------------------------------------------------------------


@contextmanager
def busy(assets: Assets, count: int, **settings: Any) -> Iterator[tuple[Context, int, list[socket.socket]]]:
    """A server with one place and `count` long requests: one runs, the others wait."""
    engine = {"max_num_seqs": 1, "kv_cache_tokens": 8192}
    with tiny_server(assets, engine, **settings) as (context, port):
        clients = [connected(port) for _ in range(count)]
        for number, client in enumerate(clients, start=1):
            client.sendall(request_bytes(PATH, LONG))
            until(lambda: context.core.scheduler.roster.num_seqs == 1)
            until(lambda number=number: len(context.core.scheduler.roster) == number)  # type: ignore[misc]
        yield context, port, clients
        for client in clients:
            client.close()


def assert_full(answer: Answer) -> None:
    assert answer.status == 429 and answer.error["code"] == "queue_full"
    assert answer.error["type"] == "rate_limit_error" and "--max-queue" in answer.error["message"]
    assert 1 <= int(answer.headers["retry-after"]) <= 60


def test_a_full_queue_is_told_at_once(tiny_assets: Assets) -> None:
    with busy(tiny_assets, 3, max_queue=2) as (context, port, clients):
        began = time.monotonic()
        for path, body in ((PATH, LONG), (PATH, {**LONG, "stream": True})):
            assert_full(ask(port, path, body))
        assert_full(ask(port, "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}))
        assert time.monotonic() - began < 2
        assert context.rejections["queue_full"] == 3
        assert get(port, "/v1/models").status == 200
        clients[-1].close()  # one that waited leaves
        until(lambda: context.core.scheduler.num_waiting == 1)
        with connected(port) as client:
            client.sendall(request_bytes(PATH, {**LONG, "max_tokens": 1}))
            until(lambda: context.core.scheduler.num_waiting == 2)
            clients[0].close()
            clients[1].close()
            assert read_answer(client).status == 200


def test_a_request_with_many_prompts_counts_as_many(tiny_assets: Assets) -> None:
    with busy(tiny_assets, 1, max_queue=2) as (_, port, _):
        assert_full(ask(port, PATH, {"prompt": ["a", "b", "c"], "max_tokens": 1}))
        answer = ask(port, PATH, {"prompt": ["a", "b", "c", "d"], "max_tokens": 1})
        assert answer.status == 400 and "send them in parts" in answer.error["message"].lower()


def test_a_burst_that_fits_is_taken_whole(tiny_assets: Assets) -> None:
    """64 at the same time, no queue: an idle engine runs them all."""
    with tiny_server(tiny_assets, {"max_num_seqs": 64}, max_queue=0) as (_, port):
        clients = [connected(port) for _ in range(64)]
        for client in clients:
            client.sendall(request_bytes(PATH, {"prompt": "ab", "max_tokens": 2}))
        assert {read_answer(client).status for client in clients} == {200}
        for client in clients:
            client.close()
