from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leafage.core.sampling_params import SamplingParams
from leafage.engine.engine_thread import EngineThread
from leafage.engine.output import RequestOutput
from leafage.errors import InvalidParameterError, RequestError

MakeRig = Callable[..., Any]
WAIT = 20.0


class Driven:
    """A rig with a thread. While `gate` is closed its executor waits inside the step."""

    def __init__(self, rig: Any) -> None:
        self.rig = rig
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        execute = rig.executor.execute

        def gated(batch: Any) -> Any:
            self.entered.set()
            assert self.gate.wait(WAIT)
            return execute(batch)

        rig.executor.execute = gated
        self.steps = 0
        self.thread = EngineThread(rig.engine, rig.outputs, after_step=self.count)

    def count(self) -> None:
        self.steps += 1

    def submit(self, *prompts: Any, stream: bool = False, ids: Any = None, **params: Any) -> Any:
        seen: queue.SimpleQueue[RequestOutput] = queue.SimpleQueue()
        own = SamplingParams(**{"max_tokens": 20, **params})
        new = [
            self.rig.inputs.request(request_id, prompt, own)
            for request_id, prompt in zip(ids or [f"r{i}" for i in range(len(prompts))], prompts, strict=True)
        ]
        return self.thread.submit(new, [seen.put] * len(new), stream=stream), seen


@pytest.fixture
def driven(make_rig: MakeRig) -> Iterator[Driven]:
    driven = Driven(make_rig("hello"))
    yield driven
    driven.gate.set()
    driven.thread.close()


def test_submit_and_wait(driven: Driven) -> None:
    accepted, seen = driven.submit("one", "two")
    accepted.result(WAIT)
    assert [seen.get(timeout=WAIT).outputs[0].text for _ in range(2)] == ["hello", "hello"]


def test_requests_of_one_call_enter_the_same_step(driven: Driven) -> None:
    accepted, seen = driven.submit("one", "two", "six")
    accepted.result(WAIT)
    for _ in range(3):
        seen.get(timeout=WAIT)
    assert driven.rig.executor.rows[:2] == [9, 3]


def test_one_refused_prompt_refuses_the_call(driven: Driven) -> None:
    accepted, seen = driven.submit("one", [3, 999])
    with pytest.raises(InvalidParameterError, match="999"):
        accepted.result(WAIT)
    accepted, seen = driven.submit("one")
    assert seen.get(timeout=WAIT).outputs[0].text == "hello"
    assert driven.rig.kv.num_active == 0


def test_abort_while_a_step_runs(driven: Driven) -> None:
    driven.gate.clear()
    _, seen = driven.submit("one")
    assert driven.entered.wait(WAIT)
    aborted = driven.thread.abort(["r0"])
    assert not aborted.done()
    driven.gate.set()
    aborted.result(WAIT)
    assert seen.get(timeout=WAIT).outputs[0].finish_reason == "abort"


def test_abort_right_behind_a_submit_that_was_not_seen_yet(driven: Driven) -> None:
    driven.gate.clear()
    driven.submit("one", ids=["first"])
    assert driven.entered.wait(WAIT)
    _, seen = driven.submit("two", ids=["second"])
    driven.thread.abort(["second"])
    driven.gate.set()
    assert seen.get(timeout=WAIT).outputs[0].finish_reason == "abort"


def test_abort_of_nothing_is_nothing(driven: Driven) -> None:
    assert driven.thread.abort(["none"]).result(WAIT) is None


def test_it_sleeps_when_idle(driven: Driven) -> None:
    _, seen = driven.submit("one")
    seen.get(timeout=WAIT)
    driven.thread.call(lambda: None).result(WAIT)
    steps = driven.rig.engine.scheduler.counters.steps
    for _ in range(5):
        driven.thread.call(lambda: None).result(WAIT)
    assert driven.rig.engine.scheduler.counters.steps == steps


def test_close_ends_running_requests_with_a_reason(driven: Driven) -> None:
    driven.gate.clear()
    _, seen = driven.submit("one")
    assert driven.entered.wait(WAIT)
    closer = threading.Thread(target=driven.thread.close)
    closer.start()
    driven.gate.set()
    closer.join(WAIT)
    output = seen.get(timeout=WAIT)
    assert output.finished and "closed" in str(output.error)
    assert not driven.thread.is_alive
    driven.thread.close()  # again: nothing happens


def test_after_close_calls_are_refused(driven: Driven) -> None:
    driven.thread.close()
    accepted, _ = driven.submit("one")
    with pytest.raises(RequestError, match="closed"):
        accepted.result(WAIT)


def test_a_bug_in_the_core_ends_all_requests_and_nobody_waits(driven: Driven) -> None:
    driven.gate.clear()
    _, seen = driven.submit("one", "two")
    assert driven.entered.wait(WAIT)

    def broken(*args: Any) -> Any:
        raise AssertionError("ref_count of block 3 is -1")

    driven.rig.engine.scheduler.update = broken
    waiting = driven.thread.call(lambda: None)
    driven.gate.set()
    for _ in range(2):
        output = seen.get(timeout=WAIT)
        assert output.finished and "ref_count of block 3" in str(output.error)
    with pytest.raises(RequestError, match="internal error"):
        waiting.result(WAIT)
    accepted, _ = driven.submit("late")
    with pytest.raises(RequestError, match="internal error"):
        accepted.result(WAIT)
    assert not driven.thread.is_alive


def test_an_error_in_a_call_goes_to_its_caller_only(driven: Driven) -> None:
    with pytest.raises(ZeroDivisionError):
        driven.thread.call(lambda: 1 // 0).result(WAIT)
    _, seen = driven.submit("one")
    assert seen.get(timeout=WAIT).outputs[0].text == "hello"


def test_many_threads_share_it(driven: Driven) -> None:
    texts: list[str] = []

    def client(number: int) -> None:
        for i in range(10):
            _, seen = driven.submit(f"prompt {number} {i}", ids=[f"{number}-{i}"], stream=i % 2 == 0)
            text = ""
            while True:
                output = seen.get(timeout=WAIT)
                text += output.outputs[0].text
                if output.finished:
                    break
            texts.append(text)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert texts == ["hello"] * 80
    assert driven.steps > 0


def test_the_age_of_a_step_grows_while_it_hangs_and_is_0_without_work(driven: Driven) -> None:
    driven.thread.call(lambda: None).result(WAIT)
    assert eventually(lambda: driven.thread.step_age == 0)
    driven.gate.clear()
    _, seen = driven.submit("one")
    assert driven.entered.wait(WAIT)
    assert eventually(lambda: driven.thread.step_age > 0.05)
    driven.gate.set()
    seen.get(timeout=WAIT)
    assert eventually(lambda: driven.thread.step_age == 0)


def test_the_age_of_a_step_covers_what_runs_between_steps(driven: Driven) -> None:
    gate = threading.Event()
    called = driven.thread.call(lambda: gate.wait(WAIT))
    assert eventually(lambda: driven.thread.step_age > 0.05)
    gate.set()
    assert called.result(WAIT)


def test_steps_that_go_on_are_never_old(driven: Driven) -> None:
    driven.rig.executor.pace = 0.05
    began = time.monotonic()
    _, seen = driven.submit("one", max_tokens=20)
    oldest = 0.0
    while seen.empty():
        oldest = max(oldest, driven.thread.step_age)
        time.sleep(0.001)
    assert 0.02 < oldest < 0.5 * (time.monotonic() - began), "that of one step, not of all six"


def eventually(claim: Callable[[], bool]) -> bool:
    """Whether it becomes true."""
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        if claim():
            return True
        time.sleep(0.002)
    return False
