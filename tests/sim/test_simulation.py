"""The loop of a simulation: who arrives when, and whom it refuses."""

from __future__ import annotations

from collections.abc import Iterable

from leafage.build import build_simulation
from leafage.config import EngineConfig
from leafage.sim.hardware import Hardware
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.simulation import Simulation
from leafage.sim.workload import SimRequest, Trace


def simulation(**settings: int) -> Simulation:
    config = EngineConfig(kv_cache_tokens=1024, max_model_len=512, **settings)
    return build_simulation(config, Hardware.load("h100"), LLMSpec.load("llama-3-8b"))


def request(request_id: str, arrival: float, num_prompt: int = 20, num_output: int = 10) -> SimRequest:
    first = 1000 * int(arrival * 100)
    return SimRequest(request_id, arrival, range(first, first + num_prompt), range(num_output))


class Chain(Trace):
    """Each of three requests is followed by the next, `pause` after its end."""

    pause = 0.5

    def finished(self, request: SimRequest, time: float) -> Iterable[SimRequest]:
        number = int(request.request_id) + 1
        return [SimRequest(str(number), time + self.pause, range(number * 50, number * 50 + 20), range(5))][
            : number < 3
        ]


def test_an_id_in_use_is_refused_and_harms_nobody() -> None:
    result = simulation().run(Trace([request("a", 0.0), request("a", 0.001), request("b", 0.002)]))
    assert (result.records.num_requests, result.records.num_refused) == (2, 1)


def test_what_never_fits_is_refused_and_the_rest_goes_on() -> None:
    result = simulation().run(Trace([request("a", 0.0, num_prompt=600), request("b", 0.0)]))
    assert (result.records.num_requests, result.records.num_refused) == (1, 1)


def test_idle_time_passes_until_the_next_arrival() -> None:
    result = simulation().run(Trace([request("a", 0.0), request("b", 7.0)]))
    assert list(result.records.arrival) == [0.0, 7.0]
    assert 7.0 < result.seconds < 7.5
    assert result.usage.seconds < 0.5, "only steps count"


def test_what_follows_arrives_after_its_cause() -> None:
    result = simulation().run(Chain([request("0", 0.0)]))
    arrivals, ends = list(result.records.arrival), list(result.records.last_token)
    assert arrivals[1:] == [end + Chain.pause for end in ends[:-1]]
    assert len(arrivals) == 3


def test_a_simulation_that_is_cut_short() -> None:
    result = simulation().run(Trace([request("a", 0.0), request("b", 7.0)]), until=5.0)
    assert result.records.num_requests == 1
    assert result.seconds == 5.0, "what arrives later is none of its business"
