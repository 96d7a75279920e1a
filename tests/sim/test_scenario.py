from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from leafage.errors import InvalidParameterError
from leafage.sim.summary import summarize
from tests.sim.scenarios import small_scenario


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("block_size", 32),
        ("kv", "reserved-max"),
        ("hardware", "h100"),
        ("model", "qwen3-0.6b"),
        ("tensor_parallel", 3),
        ("replicas", 2),
        ("router", "least_loaded"),
        ("rate", 7.0),
        ("seed", 5),
        ("hardware.bandwidth", 1e12),
        ("model.kv_bytes_each", 1.0),
        ("num_kv_heads", 9),
        ("block-size", 64),
    ],
)
def test_every_kind_of_setting_changes_and_leaves_the_first_alone(name: str, value: object) -> None:
    scenario = small_scenario()
    before = scenario.setting(name)
    changed = scenario.with_setting(name, value)
    assert changed.setting(name) == value != before
    assert scenario.setting(name) == before


def test_a_setting_changes_what_is_simulated() -> None:
    scenario = small_scenario()
    slower = scenario.with_setting("hardware.bandwidth", scenario.hardware.bandwidth / 4)
    assert summarize(slower.run())["tpot_mean"] > 2 * summarize(scenario.run())["tpot_mean"]
    assert scenario.with_setting("seed", 1).run().seconds != scenario.run().seconds


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("blok_size", "Did you mean block_size"),
        ("threads", "has no effect on a simulation"),
        ("hardware.bandwith", "Did you mean hardware.bandwidth"),
        ("bandwith_total", "unknown setting"),
    ],
)
def test_unknown_settings_are_refused_with_the_nearest(name: str, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        small_scenario().with_setting(name, 1)


def test_wrong_values_are_refused() -> None:
    wrong = (("block_size", 17), ("replicas", 0), ("router", "random"), ("hardware.bandwidth", -1.0))
    for name, value in wrong:
        with pytest.raises(InvalidParameterError):
            small_scenario().with_setting(name, value)
    with pytest.raises(InvalidParameterError, match="no setting rat"):
        small_scenario(rat=3).make_workload()


def test_it_pickles_and_gives_the_same_numbers_again() -> None:
    scenario = small_scenario(rate=20)
    again = pickle.loads(pickle.dumps(scenario))
    assert again == scenario
    assert summarize(again.run()) == summarize(scenario.run())


def test_two_replicas_are_counted_together() -> None:
    one = small_scenario(rate=1000, config={"kv_cache_tokens": 512, "max_model_len": 512})
    two = one.with_setting("replicas", 2)
    assert two.num_devices == 2
    ended: list[int] = []
    first, second = one.run(), two.run(on_progress=lambda done, _: ended.append(done))
    assert ended == sorted(ended) and ended[-1] == 30
    assert second.records.num_requests == first.records.num_requests == 30
    assert sum(second.records.output_tokens) == sum(first.records.output_tokens)
    assert second.counters.generated_tokens == first.counters.generated_tokens
    assert second.throughput > 1.1 * first.throughput
    assert second.mean_batch < first.mean_batch, "of one replica"
    kinds = ("stored", "reservation", "internal", "cached", "free", "external", "pinned")
    assert sum(map(second.share, kinds)) == pytest.approx(1)


def test_the_load_of_a_trace_is_its_scale(tmp_path: Path) -> None:
    assert small_scenario().load_setting == "rate" and small_scenario().has_seed
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival,prompt_tokens,output_tokens\n0,10,5\n1,10,5\n")
    recorded = replace(small_scenario(), workload=str(trace), workload_settings={})
    assert recorded.load_setting == "rate_scale" and not recorded.has_seed
    assert recorded.with_seed(3) == recorded
    with pytest.raises(InvalidParameterError, match="at once have no rate"):
        small_scenario("few-shot").load_setting  # noqa: B018
    assert small_scenario("few-shot").has_seed
    drawn = recorded.with_setting("arrivals", "poisson")
    assert drawn.load_setting == "rate" and drawn.with_seed(3) != drawn
    with pytest.raises(InvalidParameterError, match="at once have no rate"):
        recorded.with_setting("arrivals", "at-once").load_setting  # noqa: B018


def test_a_stretch_of_a_trace_begins_at_a_second_of_the_replay(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    lines = [f"{second},{second + 1},5" for second in range(40)]
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + "\n".join(lines) + "\n")
    settings = {"start": 10.0, "rate_scale": 2.0}
    recorded = replace(small_scenario(), workload=str(trace), workload_settings=settings)
    whole, stretch = (list(each.make_workload()) for each in (recorded, recorded.stretch(5.0, 3)))
    assert [len(request.prompt) for request in stretch] == [21, 22, 23]
    assert [request.arrival for request in stretch] == [0.0, 0.5, 1.0]
    assert [len(request.prompt) for request in whole if request.arrival >= 5.0][:3] == [21, 22, 23]
    drawn = small_scenario(rate=3)
    assert drawn.stretch(5.0, 3) == drawn.with_requests(3)


def test_everything_it_depends_on_is_told() -> None:
    told = small_scenario(rate=3).as_dict()
    assert told["workload"] == {"name": "alpaca", "num_requests": 30, "rate": 3}
    assert told["hardware"]["name"] == "l4" and told["model"]["num_layers"] == 30
    assert told["engine"]["kv_cache_tokens"] == 2048 and "threads" not in told["engine"]
