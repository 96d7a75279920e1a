from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest

from leafage.errors import InvalidParameterError
from leafage.sim.bound import bound_of
from leafage.sim.cost_model import CostModel, Load
from leafage.sim.experiments import run_of
from leafage.sim.hardware import Hardware
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.plan import WORTH, Plan, Tuning, plan
from leafage.sim.plan_words import answer, describe_bound, describe_paging, describe_stress, describe_tuning
from leafage.sim.report import plan_page
from leafage.sim.result import SLO
from leafage.sim.results_json import plan_as_dict
from leafage.sim.scenario import Scenario
from leafage.sim.step_costs import StepCosts
from tests.sim.scenarios import small_scenario
from tests.sim.test_step_costs import COSTS

FLAT = replace(COSTS, tokens=((0, 20e-3), (1, 20e-3), (100, 21e-3)), rows=((0, 0.0), (1, 0.0)), per_item=0.0)
"""Steps that take the same however many tokens they compute."""
TIGHT = SLO(ttft=0.05, tpot=0.01)
SMALL = Hardware(
    name="small",
    flops=20e12,
    bandwidth=200e9,
    memory_bytes=0.34e9,
    host_bandwidth=10e9,
    link_bandwidth=50e9,
)
"""Leaves 1,600 tokens beside a small model."""


def asked(rate: float, hardware: Hardware = SMALL) -> Scenario:
    scenario = small_scenario(
        num_requests=60, rate=rate, config={"kv_cache_tokens": None, "max_model_len": 512}
    )
    return replace(scenario, hardware=hardware)


@pytest.fixture(scope="module")
def told() -> list[str]:
    return []


@pytest.fixture(scope="module")
def found(told: list[str]) -> Plan:
    return plan(asked(300), slo=TIGHT, max_devices=8, on_progress=told.append)


def test_progress_tells_what_is_done(found: Plan, told: list[str]) -> None:
    done = [f"counting devices: {done} of 4 tensor parallel degrees" for done in range(5)]
    assert told[:6] == [*done, "trying token budgets, block sizes, watermarks and policies"]
    assert told[-1] == "comparing paged with reserved memory"


def test_fewer_devices_do_not_meet_the_level(found: Plan) -> None:
    assert found.best is not None and found.best.meets
    assert found.size is not None and found.scenario.num_devices == found.size.num_devices
    for size in found.sizes:
        for replicas, run in size.tried.items():
            met = run.metrics["slo_attainment"] >= 0.9
            assert met == (size.meets and replicas >= size.replicas)
        if size.meets:
            assert size.num_devices >= found.best.num_devices
    alone = found.sizes[0]
    assert alone.replicas > 1, "one device is not enough, so the search had something to find"


def test_degrees_that_cannot_be_used_say_why(found: Plan) -> None:
    reasons = {size.tensor_parallel: size.error for size in found.sizes}
    assert reasons[1] is None
    for degree in (2, 4, 8):  # 9 heads
        assert "does not divide the heads" in str(reasons[degree])


def test_settings_are_compared_under_stress(found: Plan) -> None:
    assert found.stress is not None and found.best is not None
    assert found.stress.replicas == found.best.replicas - 1
    names = ["max_num_batched_tokens", "block_size", "watermark", "policy"]
    names += ["router"] if found.stress.replicas > 1 else []
    assert [tuning.name for tuning in found.tunings] == names
    assert "longest_prefix" not in found.tunings[3].runs, "nothing is cached"
    for tuning in found.tunings:
        attained = {value: run.metrics["slo_attainment"] for value, run in tuning.runs.items()}
        if tuning.chosen == tuning.default:
            assert max(attained.values()) < attained[tuning.default] + WORTH
        else:
            assert attained[tuning.chosen] >= attained[tuning.default] + WORTH
        if found.together is not None:
            assert found.together.metrics["slo_attainment"] >= attained[tuning.chosen]
        assert found.scenario.setting(tuning.name) == tuning.chosen
        assert tuning.name in describe_tuning(tuning) and str(tuning.chosen) in describe_tuning(tuning)


def test_paging_is_weighed_where_memory_is_short(found: Plan) -> None:
    first, *others = found.gains
    assert first.label == "as planned" and first.throughput > 0
    assert [gain.label.split(" (")[0] for gain in others] == [
        "without grouped-query attention",
        "with half of the memory",
    ]
    assert others[1].error is not None, "the weights do not fit into half of it"
    assert found.bound is not None and found.bound.kind == "memory"
    said = describe_paging(found)
    assert said[0].startswith("Paging buys ") and "little" not in said[0]
    assert said[1].startswith("The KV cache bounds it")
    assert "does not fit" in said[-1]


def test_paging_buys_little_where_memory_is_ample() -> None:
    ample = replace(SMALL, memory_bytes=24e9)
    found = plan(asked(40, ample), slo=TIGHT, max_devices=4)
    assert found.best is not None and found.best.num_devices == 1
    assert found.stress is not None and found.stress.setting("rate") == pytest.approx(52)
    said = describe_paging(found)
    assert said[0].startswith("Paging buys little here")
    assert found.bound is not None and found.bound.kind != "memory"
    assert any("Memory is not what is short" in sentence for sentence in said)
    assert any(sentence.startswith("Without grouped-query attention (9 KV heads)") for sentence in said)


def test_settings_may_save_devices() -> None:
    """Prompts that take seven steps each, where a larger token budget would need two."""
    config = {"kv_cache_tokens": None, "max_model_len": 512, "max_num_batched_tokens": 64, "max_num_seqs": 32}
    lengths = {"prompt_tokens": "400", "output_tokens": "20"}
    scenario = small_scenario(num_requests=60, rate=120, config=config, **lengths)
    scenario = replace(scenario, hardware=replace(SMALL, memory_bytes=2e9))
    found = plan(scenario, slo=SLO(ttft=0.2, tpot=0.05), max_devices=8)
    assert found.best is not None and found.best.num_devices == 2
    assert found.fewer is found.size and found.fewer is not None and found.fewer.num_devices == 1
    assert found.changes["max_num_batched_tokens"] == 256
    assert found.scenario.num_devices == 1 and found.scenario.config.max_num_batched_tokens == 256
    assert run_of(found.scenario.run(), found.slo).metrics["slo_attainment"] >= 0.9
    assert answer(found).startswith("1 x small with max_num_batched_tokens = 256")
    assert "With the settings asked for, 2: 2 replicas" in answer(found)
    told = plan_as_dict(found)
    assert told["devices"] == 1 and told["fewer"]["replicas"] == 1
    assert "With the settings chosen below" in plan_page(found)


def test_a_level_that_nothing_meets() -> None:
    found = plan(asked(5), slo=SLO(ttft=1.0, tpot=1e-4), max_devices=2)
    assert found.best is None and not found.tunings and describe_paging(found) == []
    assert "more replicas would not" in answer(found)
    assert plan_as_dict(found)["devices"] is None
    assert "No number of small" in plan_page(found)


def test_a_model_that_fits_nowhere_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="cannot be served by small"):
        plan(replace(asked(5), spec=LLMSpec.load("opt-66b")))
    with pytest.raises(InvalidParameterError, match="share is out of range"):
        plan(asked(5), share=0)


def test_answer_json_and_page_agree(found: Plan) -> None:
    assert found.best is not None and found.size is not None
    told = plan_as_dict(found)
    assert told["devices"] == found.size.num_devices and told["answer"] == answer(found)
    unchanged = replace(found, fewer=None)
    assert answer(unchanged).startswith(
        f"{found.best.num_devices} x small: {found.best.replicas} replicas, with "
    )
    page = plan_page(found)
    assert answer(found) in page and page.count("<svg") == 9
    assert "http" not in page.replace("http://www.w3.org", ""), "nothing is fetched"


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        ({"flops": 0.02e12}, "compute"),
        ({"bandwidth": 2e9}, "bandwidth"),
        ({}, "load"),
    ],
)
def test_what_bounds_a_run(numbers: dict[str, float], kind: str) -> None:
    hardware = replace(SMALL, memory_bytes=24e9, **numbers)
    scenario = asked(5 if kind == "load" else 100, hardware)
    bound = bound_of(scenario.run(), CostModel(hardware, scenario.spec))
    assert bound.kind == kind
    assert 0 < bound.busy <= 1 + 1e-9
    sides = {"compute": bound.compute, "bandwidth": bound.weights + bound.context}
    if kind in sides:
        other = sides["bandwidth" if kind == "compute" else "compute"]
        assert sides[kind] > other and 0.7 < sides[kind] + bound.overhead <= 1.05
    assert describe_bound(bound).startswith(
        {"compute": "Computing", "bandwidth": "The memory's bandwidth", "load": "The load"}[kind]
    )


def test_parts_of_a_step_are_those_of_its_time() -> None:
    cost = CostModel(Hardware.load("a100-40gb"), LLMSpec.load("opt-13b"))
    for load in (
        Load(tokens=1, rows=1, pairs=500, context=500),
        Load(tokens=4096, rows=1, pairs=4096**2 // 2),
    ):
        parts = cost.parts_of(load, 1, cost.seconds_of(load))
        seconds = max(parts.compute, parts.weights + parts.context) + parts.overhead
        assert seconds == pytest.approx(cost.seconds_of(load))


@pytest.mark.parametrize(
    ("rate", "costs", "kind"), [(2000, COSTS, "compute"), (5, COSTS, "load"), (100, FLAT, "bandwidth")]
)
def test_what_bounds_measured_steps_is_told_by_them(rate: float, costs: StepCosts, kind: str) -> None:
    """The roofline of the same file would say that nothing takes any time."""
    hardware = replace(SMALL, memory_bytes=24e9, flops=1e20, bandwidth=1e18, step_seconds=1e-4, steps=costs)
    scenario = asked(rate, hardware)
    bound = bound_of(scenario.run(), CostModel(hardware, scenario.spec))
    assert bound.kind == kind
    parts = bound.compute + bound.weights + bound.context + bound.overhead
    assert parts == pytest.approx(bound.busy, rel=1e-3), "measured steps are a sum"
    assert bound.weights > 0 and bound.context > 0


@pytest.fixture(scope="module")
def busy_hour(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    """A trace that is quiet, then busy for 60 requests, then quiet again."""
    gaps = [0.2] * 50 + [0.01] * 60 + [0.2] * 50
    lines = [f"{time:.3f},60,{20 + 7 * (number % 9)}" for number, time in enumerate(accumulate(gaps))]
    path = tmp_path_factory.mktemp("traces") / "busy_hour.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n" + "\n".join(lines) + "\n")
    config = {"kv_cache_tokens": None, "max_model_len": 512, "max_num_seqs": 8}
    scenario = replace(small_scenario(config=config), hardware=replace(SMALL, memory_bytes=2e9))
    return replace(scenario, workload=str(path), workload_settings={"start": 1.0})


@pytest.fixture(scope="module")
def long(busy_hour: Scenario) -> Plan:
    return plan(busy_hour, slo=TIGHT, max_devices=8, max_requests=60)


def test_long_workloads_get_the_same_answer_from_runs_that_stop(busy_hour: Scenario, long: Plan) -> None:
    whole = plan(busy_hour, slo=TIGHT, max_devices=8, max_requests=1000)
    for one, other in zip(long.sizes, whole.sizes, strict=True):
        assert (one.replicas, one.meets, one.error) == (other.replicas, other.meets, other.error)
        for replicas, run in one.tried.items():
            attained = other.tried[replicas].metrics["slo_attainment"]
            assert run.stopped == (attained < 0.9)
            if not run.stopped:
                assert run.metrics == other.tried[replicas].metrics
    assert any(run.stopped for run in long.sizes[0].tried.values())
    assert not any(run.stopped for run in whole.sizes[0].tried.values())
    assert "below 90 %" in plan_page(long) and "below 90 %" not in plan_page(whole)
    assert [run["stopped"] for run in plan_as_dict(long)["sizes"][0]["tried"]].count(True) >= 1


def test_settings_of_a_long_trace_are_compared_where_the_level_is_hardest_to_meet(long: Plan) -> None:
    assert long.stress is not None and long.stress.num_requests == 60
    start = long.stress.setting("start")
    assert 9.5 < start < 10.5, "its own start counts, too"
    assert f"on the 60 requests from second {start:.0f} of the trace on" in describe_stress(long)
    assert describe_stress(long) in plan_page(long)


def test_a_level_that_a_long_workload_misses_says_by_how_much(busy_hour: Scenario) -> None:
    long, whole = (plan(busy_hour, slo=TIGHT, max_devices=1, max_requests=count) for count in (60, 1000))
    assert long.best is None and long.sizes[0].run is not None
    assert 0.1 < long.sizes[0].run.metrics["slo_attainment"] < 0.9
    assert answer(long) == answer(whole)


def test_fewer_than_the_most_are_not_tried_when_those_do_not_do(busy_hour: Scenario) -> None:
    found = plan(busy_hour, slo=SLO(ttft=1.0, tpot=1e-4), max_devices=4, max_requests=60)
    assert found.best is None and sorted(found.sizes[0].tried) == [1, 2, 4]


def test_one_replica_needs_no_router(found: Plan) -> None:
    found = replace(found, tunings=[Tuning("router", "round_robin", "least_loaded", {})])
    found.scenario = replace(found.scenario, replicas=2)
    assert found.changes == {"router": "least_loaded"}
    found.scenario = replace(found.scenario, replicas=1)
    assert found.changes == {}
