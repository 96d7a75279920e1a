"""Random arrivals, aborts, failures, tiny pools: every accepted request ends with its undisturbed tokens."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from leafage.core.batch import Transfer
from leafage.core.kv_manager import INDEXES
from leafage.core.pins import PrefixPin
from leafage.core.policy import POLICIES
from leafage.core.request import FinishKind
from leafage.errors import (
    ExecutorError,
    InvalidParameterError,
    PinRefusedError,
    RequestError,
    RequestTooLargeError,
    UnsupportedError,
)
from tests.core.soak import soak
from tests.core.toy import Loop, num_answers
from tests.core.world import World


@pytest.mark.parametrize("seed", range(25))
def test_random_worlds_end_undisturbed(seed: int) -> None:
    World(random.Random(seed)).run(100)


@pytest.mark.parametrize("seed", range(6))
def test_random_worlds_that_evict_whole_leaves(seed: int) -> None:
    World(random.Random(seed), prefix_index="radix-node").run(150)


def test_soak_of_ten_thousand_steps() -> None:
    totals = soak(10_000, seed=1)
    assert totals["steps"] >= 10_000
    events = ("answers", "preemptions", "prefix_hits", "copies", "evictions", "reserved", "pins")
    for event in events:
        assert totals[event] > 20, f"the soak saw {totals[event]} {event}: too few to prove anything"


TOKENS = st.integers(0, 2)


class CoreMachine(RuleBasedStateMachine):
    """The scheduler driven rule by rule, so that hypothesis can shrink a failure to a few calls."""

    @initialize(
        num_blocks=st.integers(3, 24),
        block_size=st.sampled_from([1, 2, 3, 4, 8]),
        budget=st.sampled_from([1, 3, 8, 32]),
        max_num_seqs=st.integers(1, 6),
        prefix_index=st.sampled_from(sorted(INDEXES)),
        watermark=st.integers(0, 2),
        max_preemptions=st.integers(1, 3),
        preemption=st.sampled_from(["auto", "swap", "recompute"]),
        num_swap_slots=st.sampled_from([0, 5, 100]),
        policy=st.sampled_from(sorted(POLICIES)),
        max_passes=st.integers(0, 3),
        pinned=st.sampled_from([0, 0.3, 0.6]),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        budget: int,
        max_num_seqs: int,
        prefix_index: str,
        watermark: int,
        num_swap_slots: int,
        pinned: float,
        **options: object,
    ) -> None:
        self.loop = Loop(
            num_blocks,
            block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            prefix_index=prefix_index,
            watermark=watermark,
            **options,
            vocab_size=3,
            num_swap_slots=num_swap_slots,
            max_pinned_blocks=int(pinned * num_blocks),
        )
        self.pins: list[PrefixPin] = []
        self.disturbed: set[str] = set()

    @rule(
        prompt=st.lists(TOKENS, min_size=1, max_size=30),
        max_tokens=st.none() | st.integers(1, 20),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        wide=st.sampled_from(["n", "best_of", "beam_width"]),
        priority=st.integers(-1, 1),
        salt=st.sampled_from(["", "", "other"]),
        eos=st.sets(TOKENS, max_size=1),
        min_tokens=st.sampled_from([0, 1]),
        seed=st.integers(0, 2),
    )
    def add(self, prompt: list[int], max_tokens: int | None, n: int, wide: str, **params: int) -> None:
        params |= {"n": n} if wide == "n" else {"n": 1 + n // 3, wide: n}
        try:
            self.loop.add(prompt, max_tokens=max_tokens, **params)  # type: ignore[arg-type]
        except RequestTooLargeError:
            return

    @precondition(lambda self: self.loop.scheduler.has_unfinished)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        live = [request.request_id for request in self.loop.scheduler.roster.requests()]
        request_id = data.draw(st.sampled_from(live))
        assert self.loop.scheduler.abort(request_id)
        self.disturbed.add(request_id)
        self.loop.verify()

    @rule(prefix=st.lists(TOKENS, min_size=1, max_size=30), salt=st.sampled_from(["", "", "other"]))
    def pin(self, prefix: list[int], salt: str) -> None:
        try:
            self.pins.append(self.loop.pin(prefix, salt=salt))
        except (RequestTooLargeError, PinRefusedError, UnsupportedError, InvalidParameterError):
            return

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        pin = data.draw(st.sampled_from(self.pins))
        self.pins.remove(pin)
        assert self.loop.unpin(pin) or pin.error is not None

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.loop.step()

    @rule(fault=st.sampled_from(["fail", "row", "transfer", "abort"]), data=st.data())
    def faulty_step(self, fault: str, data: st.DataObject) -> None:
        loop = self.loop
        batch = loop.scheduler.schedule()
        loop.verify()
        if not batch.items:
            loop.scheduler.update(batch, loop.executor.execute(batch))
            return
        item = data.draw(st.sampled_from(batch.items))
        if fault == "fail":
            self.disturbed |= {i.request_id for i in batch.items}
            loop.executor.spoil(batch)
            loop.record(loop.scheduler.fail(batch, ExecutorError("broken")))
        else:
            if fault == "row":
                self.disturbed.add(item.request_id)
                loop.executor.row_errors = {item.request_id: "NaN"}
            elif fault == "transfer":
                loop.executor.failed_transfers = [Transfer(item.seq_id, item.block_table[0], 0)]
            else:
                self.disturbed.add(item.request_id)
                loop.scheduler.abort(item.request_id)
            loop.record(loop.scheduler.update(batch, loop.executor.execute(batch)))
            loop.executor.row_errors = {}
            loop.executor.failed_transfers = []
        loop.verify()

    @rule()
    def reset(self) -> None:
        self.loop.kv.reset_prefix_cache()
        self.loop.verify()

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.loop.run(20_000)
        for pin in self.pins:
            assert pin.held or isinstance(pin.error, (ExecutorError, RequestError))
            self.loop.unpin(pin)
        assert self.loop.kv.num_active == 0
        for request_id, request in self.loop.requests.items():
            if request_id in self.disturbed:
                continue
            for index in range(num_answers(request)):
                finish = self.loop.answers[request_id, index].finish
                assert finish is not None and finish.kind in (FinishKind.STOP, FinishKind.LENGTH)
            self.loop.assert_undisturbed(request_id)


TestCoreMachine = CoreMachine.TestCase
TestCoreMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
