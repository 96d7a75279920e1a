"""The public traces from end to end through the simulator. Minutes each."""

from __future__ import annotations

import pytest

from leafage.build import build_simulation
from leafage.config import EngineConfig
from leafage.sim.hardware import Hardware
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.trace_file import TraceFile
from tests.sim.public_traces import TRACES, needs_traces

pytestmark = [pytest.mark.soak, needs_traces]


@pytest.mark.parametrize(
    ("name", "devices", "budget", "lowest_hit_rate"),
    [
        ("azure_llm_2023_code.csv", 1, 2048, 0.0),
        ("azure_llm_2023_conv.csv", 1, 2048, 0.0),
        ("mooncake_conversation.jsonl", 4, 8192, 0.05),
        ("mooncake_synthetic.jsonl", 4, 8192, 0.1),
    ],
)
def test_every_request_that_the_model_can_hold_is_answered(
    name: str, devices: int, budget: int, lowest_hit_rate: float
) -> None:
    workload, spec = TraceFile(TRACES / name), LLMSpec.load("llama-3.1-8b")
    simulation = build_simulation(
        EngineConfig(max_num_batched_tokens=budget),
        Hardware.load("h100"),
        spec,
        tensor_parallel=devices,
    )
    result = simulation.run(workload)
    fitting = [r for r in workload if len(r.prompt) + len(r.output) <= spec.context_length]
    assert result.records.num_requests == len(fitting)
    assert result.records.num_refused == len(workload) - len(fitting) < 0.01 * len(workload)
    assert sum(result.records.output_tokens) == sum(len(request.output) for request in fitting)
    hit_rate = result.counters.prefix_hits / result.counters.prefix_queries
    assert lowest_hit_rate <= hit_rate < 0.65, "no more than a cache that forgets nothing"
    assert (hit_rate == 0) == (lowest_hit_rate == 0)
