"""A random world around the core: arrivals, aborts, failures and tiny pools, from one random generator."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, fields

from leafage.core.batch import Batch, StepOutput, Transfer
from leafage.core.pins import PrefixPin
from leafage.core.policy import POLICIES, Fair
from leafage.core.request import FinishKind, Request
from leafage.errors import (
    ExecutorError,
    InvalidParameterError,
    PinRefusedError,
    RequestError,
    RequestTooLargeError,
    UnsupportedError,
)
from tests.core.toy import Loop, num_answers


@dataclass
class Rates:
    """Chances per step."""

    arrive: float = 0.4
    abort: float = 0.03
    abort_in_flight: float = 0.01
    fail: float = 0.01
    row_error: float = 0.01
    reset: float = 0.01
    transfer: float = 0.02
    swap: float = 0.02
    pin: float = 0.05
    unpin: float = 0.05


class World:
    """Drives a Loop at random. Every request that is neither aborted nor failed must end undisturbed."""

    def __init__(self, rng: random.Random, rates: Rates | None = None, **options: object) -> None:
        self.rng = rng
        self.rates = rates if rates is not None else Rates()
        block_size = rng.choice([1, 2, 3, 4, 5, 8, 16, 32])
        num_tokens = rng.choice([rng.randint(20, 100), rng.randint(50, 200), rng.randint(100, 1500)])
        num_blocks = min(max(num_tokens // block_size, 3), 200)
        settings: dict[str, object] = {
            "max_num_seqs": rng.choice([1, 4, 8, 16]),
            "max_num_batched_tokens": rng.choice([1, 5, 16, 16, 64, 64, 300]),
            "max_model_len": rng.choice([60, 400]),
            "vocab_size": rng.choice([3, 50, 50]),
            "prefix_index": rng.choice(["radix", "radix", "radix-node", "hash_chain", "none"]),
            "watermark": rng.choice([0, 0, 1, 2]),
            "max_preemptions": rng.choice([1, 4, 1000]),
            "preemption": rng.choice(["auto", "swap", "recompute"]),
            "num_swap_slots": rng.choice([0, 3, num_blocks // 2, 4 * num_blocks]),
            "policy": rng.choice(list(POLICIES)),
            "max_passes": rng.choice([0, 1, 3, 48]),
            **options,
        }
        if "reservation" not in options and settings["prefix_index"] != "none":
            settings.setdefault("max_pinned_blocks", rng.choice([0, num_blocks // 4, num_blocks // 2]))
        if "reservation" in options:  # the pool must hold one
            settings["max_model_len"] = min(60, max(num_blocks * block_size // rng.choice([2, 3, 6]), 1))
        self.loop = Loop(num_blocks, block_size, **settings)  # type: ignore[arg-type]
        longest = min(num_blocks * block_size // rng.choice([1, 4]) + 1, 150)
        self.heads = [[rng.randint(0, 3) for _ in range(rng.randint(1, longest))] for _ in range(3)]
        self.block_size = block_size
        self.live: dict[str, bool] = {}  # id -> must end undisturbed
        self.num_done = 0
        self.passes: Counter[str] = Counter()
        self.pins: list[PrefixPin] = []
        self.num_pinned = 0

    def arrive(self) -> None:
        rng = self.rng
        head = rng.choice(self.heads)
        prompt = head[: rng.randint(0, len(head))]
        prompt += [rng.randint(0, 3) for _ in range(rng.randint(0, self.block_size * 2))]
        try:
            request_id = self.loop.add(
                prompt,
                max_tokens=rng.choice([None, 1, rng.randint(1, 60), rng.randint(10, 60)]),
                temperature=1.0,
                **self._width(),
                seed=rng.randint(0, 3),
                salt=rng.choice(["", "", "", "other"]),
                tenant=rng.choice("ab"),
                priority=rng.choice([0, 0, 0, 1, -1]),
                eos=rng.choice([(), (), (0,), (0, 7)]),
                min_tokens=rng.choice([0, 0, 0, 1]),
                stop_token_ids=rng.choice([(), (), (), (1,)]),
                ignore_eos=rng.random() < 0.1,
                prompt_logprobs=rng.choice([None] * 6 + [1]),
            )
        except (RequestTooLargeError, InvalidParameterError):
            return
        self.live[request_id] = True

    def _width(self) -> dict[str, object]:
        """How many sequences, drawn or searched."""
        rng = self.rng
        if rng.random() < 0.25:
            width = rng.choice([1, 2, 3, 4])
            return {
                "n": rng.randint(1, width) if self.loop.executor.vocab_size > 3 else 1,
                "beam_width": width,
                "length_penalty": rng.choice([1.0, 1.0, 0.0, -1.0, 2.0]),
                "early_stopping": rng.choice([False, True, "never"]),
            }
        n = rng.choice([1, 1, 1, 2, 3, 5])
        return {"n": n, "best_of": rng.choice([None, None, n + 1])}

    def pin(self) -> None:
        """The head of what others ask for."""
        head = self.rng.choice(self.heads)
        prefix = head[: self.rng.randint(1, len(head))]
        try:
            salt, priority = self.rng.choice(["", "", "other"]), self.rng.choice([0, 1])
            pin = self.loop.pin(prefix, salt=salt, priority=priority)
        except (RequestTooLargeError, InvalidParameterError, PinRefusedError, UnsupportedError):
            return
        self.pins.append(pin)

    def unpin(self) -> None:
        if self.pins:
            assert self.loop.unpin(self.pins.pop(self.rng.randrange(len(self.pins))))

    def check_pins(self) -> None:
        """Every pin either holds or is being computed; those that ended otherwise say why."""
        pins = self.loop.kv.pins
        for pin in pins.news:
            self.num_pinned += pin.held
            if pin.error is not None and pin in self.pins:  # its batch failed, or its row
                assert isinstance(pin.error, (ExecutorError, RequestError))
                self.pins.remove(pin)
        pins.news.clear()
        assert {pin.pin_id for pin in pins} == {pin.pin_id for pin in self.pins}
        for pin in self.pins:
            assert pin.held == (self.loop.scheduler.roster.get(pin.pin_id) is None), "a pin is neither"

    def abort(self) -> None:
        candidates = [request_id for request_id, undisturbed in self.live.items() if undisturbed]
        if candidates:
            request_id = self.rng.choice(candidates)
            self.live[request_id] = False
            assert self.loop.scheduler.abort(request_id)

    def step(self) -> None:
        rng, rates, loop = self.rng, self.rates, self.loop
        if rng.random() < rates.arrive and loop.scheduler.num_waiting < 8:
            self.arrive()
        if rng.random() < rates.abort:
            self.abort()
            loop.verify()
        if rng.random() < rates.reset:
            loop.kv.reset_prefix_cache()
            loop.verify()
        if rng.random() < rates.pin:
            self.pin()
        if rng.random() < rates.unpin:
            self.unpin()
        waiting = loop.scheduler.roster.waiting[:]
        batch = loop.scheduler.schedule()
        loop.verify()
        self._count_passes(waiting)
        if rng.random() < rates.abort_in_flight:
            self.abort()
        self._execute(batch)
        loop.verify()
        self.check_pins()
        for request in loop.scheduler.roster.requests():
            assert (request.num_cached or 0) < len(request.prompt_token_ids), "more is cached than was asked"
        self._settle()

    def _count_passes(self, waiting: list[Request]) -> None:
        """Nobody waits while more than `max_passes` later ones of the class get in."""
        roster = self.loop.scheduler.roster
        still = set(map(id, roster.waiting))
        bound = math.inf if isinstance(roster.policy, Fair) else roster.policy.max_passes
        for later in (request for request in waiting if id(request) not in still):
            for other in (request for request in waiting if id(request) in still):
                if other.priority == later.priority and other.arrival < later.arrival:
                    self.passes[other.request_id] += 1
                    assert self.passes[other.request_id] <= bound, f"{other.request_id} is passed too often"

    def _execute(self, batch: Batch) -> None:
        rng, loop = self.rng, self.loop
        executor = loop.executor
        if batch.has_work and rng.random() < self.rates.fail:
            self._doom({item.request_id for item in batch.items})
            executor.spoil(batch)
            loop.record(loop.scheduler.fail(batch, ExecutorError("the toy broke")))
            return
        if batch.items and rng.random() < self.rates.row_error:
            victim = rng.choice(batch.items).request_id
            self._doom({victim})
            executor.row_errors[victim] = "NaN"
        if batch.items and rng.random() < self.rates.transfer:
            item = rng.choice(batch.items)
            executor.failed_transfers.append(Transfer(item.seq_id, item.block_table[0], 0))
        for transfer in batch.swap_in + batch.swap_out:
            if rng.random() < self.rates.swap:
                executor.failed_transfers.append(transfer)
        output = executor.execute(batch) if batch.has_work else StepOutput()
        loop.record(loop.scheduler.update(batch, output))
        executor.row_errors.clear()
        executor.failed_transfers.clear()

    def _doom(self, request_ids: set[str]) -> None:
        for request_id in request_ids & self.live.keys():
            self.live[request_id] = False

    def _settle(self) -> None:
        """Compare the answers of what ended, and forget it."""
        loop = self.loop
        for request_id in [r for r in self.live if loop.scheduler.roster.get(r) is None]:
            undisturbed = self.live.pop(request_id)
            request = loop.requests.pop(request_id)
            answers = [loop.answers.pop((request_id, i), None) for i in range(num_answers(request))]
            if undisturbed:
                self.num_done += 1
                loop.requests[request_id] = request
                for i, answer in enumerate(answers):
                    assert answer is not None and answer.finish is not None, f"{request_id}/{i} never ended"
                    assert answer.finish.kind in (FinishKind.STOP, FinishKind.LENGTH), answer.finish
                    loop.answers[request_id, i] = answer
                loop.assert_undisturbed(request_id)
                if request.params.prompt_logprobs is not None:
                    rows = [int(token.logprob) for token in loop.answers[request_id, 0].prompt_logprobs]
                    assert rows == list(range(len(request.prompt_token_ids) - 1)), "prompt_logprobs rows"
                for i in range(num_answers(request)):
                    del loop.answers[request_id, i]
                del loop.requests[request_id]

    def run(self, num_steps: int) -> None:
        """Random steps, then calm ones until every accepted request has ended and nothing is held."""
        for _ in range(num_steps):
            self.step()
        self.finish()

    def finish(self) -> None:
        self.rates = Rates(*[0.0] * len(fields(Rates)))
        limit = 4_000_000 // self.loop.scheduler.max_num_batched_tokens + 10_000
        while self.loop.scheduler.has_unfinished:
            self.step()
            limit -= 1
            assert limit > 0, "requests never end"
        self._settle()
        assert not self.live, "a request was lost"
        while self.pins:
            self.unpin()
        assert self.loop.kv.num_active == 0, "blocks leaked"
        self.loop.kv.swap.check([])
        self.assert_counters()

    def assert_counters(self) -> None:
        counters = self.loop.scheduler.counters
        missed = sum(counters.prefix_cache_miss_tokens.values())
        assert counters.prefix_queries == counters.prefix_hits + missed
        assert min(counters.prefix_cache_miss_tokens.values(), default=0) >= 0
        assert counters.recomputed_tokens >= 0 and counters.recompute_hits >= 0
