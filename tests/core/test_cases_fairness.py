"""Cases F of the collected failures of other engines: who is served when, and who starves."""

from __future__ import annotations

import random

import pytest

from leafage.core.policy import OUTPUT_COST, PROMPT_COST, Fair
from leafage.core.request import RequestStatus
from tests.core.toy import Loop, numbers

# -- F1: cache-aware order starves cold requests -------------------------------------------------------


def hot_and_cold(bound: int, num_steps: int) -> Loop:
    """Two hot requests arrive in every step, one can be served; a cold one came after the first few."""
    loop = Loop(64, 4, policy="longest_prefix", max_num_seqs=1, max_passes=bound)
    for step in range(num_steps):
        for i in range(2):
            loop.add([*numbers(40), 100 + step, i], f"hot {step} {i}", max_tokens=1)
        if step == 3:
            loop.add(numbers(40, 5000), "cold", max_tokens=1)
        loop.step()
    return loop


@pytest.mark.parametrize("bound", [1, 5, 20, 48])
def test_f01_a_cold_request_is_passed_at_most_max_passes_times(bound: int) -> None:
    loop = hot_and_cold(bound, 150)
    assert loop.requests["cold"].passed <= bound
    assert ("cold", 0) in loop.answers
    before = [loop.requests[r] for r, _ in list(loop.answers)[: list(loop.answers).index(("cold", 0))]]
    passing = [request for request in before if request.arrival > loop.requests["cold"].arrival]
    assert len(passing) == bound, "and all of it is used"
    assert max(request.passed for request in loop.requests.values()) <= bound
    loop.run()


def test_f01_without_the_bound_it_starves() -> None:
    loop = hot_and_cold(10**9, 150)
    assert ("cold", 0) not in loop.answers and loop.requests["cold"].passed > 140
    loop.run()


def few_shot_hits(policy: str, bound: int) -> float:
    """Hit rate of a random mix of 8 tasks through a pool that holds little more than one of them."""
    rng = random.Random(7)
    loop = Loop(60, 4, policy=policy, max_passes=bound, max_num_seqs=1, check=False)
    for i in range(240):
        task = rng.randint(0, 7)
        loop.add([*numbers(20), *numbers(100, 1000 * (task + 1)), 9000 + i, i], max_tokens=1)
        if i > 30:
            loop.step()
    loop.run()
    counters = loop.scheduler.counters
    return counters.prefix_hits / counters.prefix_queries


def test_f01_what_the_bound_costs_in_hits() -> None:
    fcfs, bounded = few_shot_hits("fcfs", 48), few_shot_hits("longest_prefix", 48)
    unbounded = few_shot_hits("longest_prefix", 10**9)
    assert fcfs < 0.4 and unbounded > 0.7
    assert bounded > unbounded - 0.06


# -- F2: a long prompt blocks short ones ---------------------------------------------------------------


@pytest.mark.parametrize("policy", ["fcfs", "longest_prefix", "shortest_prompt"])
def test_f02_a_long_prompt_leaves_budget_for_short_ones(policy: str) -> None:
    """The time to first token of a short prompt behind one of 128k tokens: at most 3 chunks."""
    loop = Loop(9000, 16, max_num_batched_tokens=512, max_model_len=131_072, policy=policy, check=False)
    loop.add((i % 1000 for i in range(128_000)), "long", max_tokens=1)
    loop.step()
    loop.add(numbers(60, 5000), "short", max_tokens=2)
    for _ in range(3):
        loop.step()
    assert loop.tokens("short")
    assert loop.requests["long"].sequences[0].num_computed >= 512, "and the long one goes on"


# -- F4: a request of a higher class arrives at a full pool ----------------------------------------------


@pytest.mark.parametrize("full", ["blocks", "seats", "budget"])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("policy", ["fcfs", "longest_prefix", "fair"])
def test_f04_a_higher_class_runs_in_the_next_step_and_victims_resume(full: str, n: int, policy: str) -> None:
    options = {"blocks": {}, "seats": {"max_num_seqs": 8}, "budget": {"max_num_batched_tokens": 24}}[full]
    loop = Loop(64 if full == "blocks" else 400, 4, policy=policy, **options)  # type: ignore[arg-type]
    ids = [loop.add(numbers(20, 100 * i), priority=1, max_tokens=30) for i in range(20)]
    for _ in range(3):
        loop.step()
    urgent = loop.add(numbers(24, 7000), "urgent", priority=0, max_tokens=5, n=n, temperature=1.0, seed=1)
    batch = loop.scheduler.schedule()
    loop.verify()
    assert urgent in {item.request_id for item in batch.items}, "it runs in the next step"
    loop.record(loop.scheduler.update(batch, loop.executor.execute(batch)))
    if full != "budget":
        assert loop.scheduler.counters.preemptions > 0
    loop.run()
    for request_id in [urgent, *ids]:
        loop.assert_undisturbed(request_id)


def test_f04_the_victim_is_the_latest_of_the_lowest_class_and_resumes_first() -> None:
    loop = Loop(14, 4)
    for name, priority in (("middle", 1), ("first", 2), ("second", 2)):
        loop.add(numbers(15, ord(name[0]) * 100), name, priority=priority, max_tokens=30)
    loop.step()
    loop.add(numbers(15, 9000), "urgent", max_tokens=2)
    loop.add(numbers(15, 9900), "later", priority=2, max_tokens=2)
    loop.step()
    status = {r: loop.requests[r].status for r in loop.requests}
    assert status["second"] is RequestStatus.PREEMPTED and status["urgent"] is RequestStatus.RUNNING
    assert status["middle"] is status["first"] is RequestStatus.RUNNING
    while loop.requests["second"].status is not RequestStatus.RUNNING:
        assert loop.requests["later"].status is RequestStatus.WAITING
        loop.step()
    loop.run()


def test_f04_nobody_is_preempted_in_vain() -> None:
    """What runs of the same class leaves too little even without the lower ones: wait, and let them run."""
    loop = Loop(32, 4)
    loop.add(numbers(60), "same class", max_tokens=20)
    loop.add(numbers(20, 500), "lower", priority=1, max_tokens=20)
    loop.step()
    loop.add(numbers(80, 900), "urgent", max_tokens=2)
    for _ in range(10):
        loop.step()
    assert loop.scheduler.counters.preemptions == 0 and loop.requests["urgent"].num_cached is None
    loop.run()
    assert loop.requests["urgent"].num_cached == 0


def test_f04_shared_blocks_count_once() -> None:
    """A prefix that the victims hold is attached, so fewer of them go."""
    loop = Loop(30, 4)
    for i in range(4):
        loop.add([*numbers(64), 500 + i], priority=1, max_tokens=8)
    loop.step()
    loop.add([*numbers(64), *numbers(40, 900)], "urgent", max_tokens=2)
    loop.step()
    assert loop.requests["urgent"].status is RequestStatus.RUNNING
    assert loop.requests["urgent"].num_cached == 64
    assert loop.scheduler.num_running >= 2, "not all of them had to go"
    loop.run()


# -- F5: one tenant starves the others -------------------------------------------------------------------


def two_tenants(policy: str, prompt_of_a: int, prompt_of_b: int) -> tuple[Loop, dict[str, int], list[int]]:
    """Tenant a sends ten times as much as b, which sends more than its share. Service, and gaps by step."""
    loop = Loop(400, 4, policy=policy, max_num_seqs=4, max_num_batched_tokens=64, check=False)
    rng = random.Random(5)
    sent = {"a": 0, "b": 0}
    gaps = []
    service = {"a": 0, "b": 0}
    for step in range(300):
        for tenant, count, length in (("a", 10, prompt_of_a), ("b", 1, prompt_of_b)):
            for _ in range(count if step % 2 == 0 else 0):
                sent[tenant] += 1
                prompt = [rng.randint(0, 999) for _ in range(length)]
                loop.add(prompt, f"{tenant}{sent[tenant]}", tenant=tenant, max_tokens=8)
        loop.step()
        for tenant in service:
            requests = [r for r in loop.requests.values() if r.tenant == tenant and r.num_cached is not None]
            service[tenant] = sum(
                PROMPT_COST * (len(r.prompt_token_ids) - (r.num_cached or 0))
                + OUTPUT_COST * sum(seq.num_output_tokens for seq in r.sequences)
                for r in requests
            )
        gaps.append(abs(service["a"] - service["b"]))
    return loop, service, gaps


@pytest.mark.parametrize(("prompt_of_a", "prompt_of_b"), [(20, 20), (60, 20), (20, 60)])
def test_f05_ten_times_the_load_gets_no_more_service(prompt_of_a: int, prompt_of_b: int) -> None:
    loop, service, gaps = two_tenants("fair", prompt_of_a, prompt_of_b)
    waiting = [request.tenant for request in loop.scheduler.roster.waiting]
    assert waiting.count("a") > 10 and waiting.count("b") > 10, "both always wanted more"
    assert 1 / 2 < service["a"] / service["b"] < 2
    longest = max(prompt_of_a, prompt_of_b)
    most = 4 * (longest + 8)  # tokens of all that can run at once
    assert max(gaps) <= 2 * max(PROMPT_COST * longest, OUTPUT_COST * most), "the theorem's bound, always"


def test_f05_first_come_first_served_gives_it_ten_times_as_much() -> None:
    _, service, _ = two_tenants("fcfs", 20, 20)
    assert service["a"] > 5 * service["b"]


def test_f05_within_a_tenant_the_order_is_that_of_arrival() -> None:
    loop, _, _ = two_tenants("fair", 20, 20)
    assert isinstance(loop.scheduler.roster.policy, Fair)
    for tenant in "ab":
        started = [r for r, _ in loop.answers if r[0] == tenant]
        assert [int(r[1:]) for r in started] == sorted(int(r[1:]) for r in started)
