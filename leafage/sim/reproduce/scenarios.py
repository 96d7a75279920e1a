"""The two scenarios of the lecture: device, model, frozen requests, and how the engine is set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leafage.sim.distributions import LogNormal
from leafage.sim.hardware import Hardware
from leafage.sim.independent import Independent
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.reproduce.demo import Tools
from leafage.sim.result import SLO, SimResult
from leafage.sim.scenario import Scenario as Experiment
from leafage.sim.simulation import Simulation
from leafage.sim.trace_file import TraceFile

TRACES = Path(__file__).parent.parent / "traces"


@dataclass(frozen=True)
class Scenario:
    """A load on a device, with requests that are frozen in a file.

    The lecture's engine computes whole prompts at once, shares no prefixes and keeps about 1 % of the blocks
    free at admission; so do these settings.

    Attributes:
        file: of the requests, in `leafage/sim/traces`; on average one arrives a second.
        drawn: the generator that made it.
        max_model_len: the longest that a request may become, which reserving systems reserve.
        slo: the service level.
    """

    name: str
    hardware: str
    model: str
    file: str
    drawn: Independent
    max_model_len: int
    slo: SLO

    def trace(self, rate: float) -> TraceFile:
        """The frozen requests, at `rate` a second."""
        return TraceFile(TRACES / self.file, rate_scale=rate)

    def redrawn(self, rate: float, seed: int) -> Independent:
        """Other requests from the same generator."""
        return replace(self.drawn, rate=rate, seed=seed)

    @property
    def spec(self) -> LLMSpec:
        return LLMSpec.load(self.model)

    def settings(self, **changed: Any) -> dict[str, Any]:
        """Of the engine."""
        return {
            "max_model_len": self.max_model_len,
            "prefix_index": "none",
            "max_num_batched_tokens": 1 << 20,
            "max_num_seqs": 4096,
            "watermark": 0.01,
            "preemption": "recompute",
            **changed,
        }

    def simulation(self, tools: Tools, **changed: Any) -> Simulation:
        """An engine of it that waits for requests."""
        return tools.simulation(self.settings(**changed), Hardware.load(self.hardware), self.spec)

    def drawn_for(self, tools: Tools, rate: float, **changed: Any) -> Experiment:
        """The same for the simulator's experiments, with requests that are drawn: other seeds draw others."""
        drawn = self.drawn
        return tools.scenario(
            self.settings(**changed),
            Hardware.load(self.hardware),
            self.spec,
            "sharegpt",  # independent requests; their lengths are set
            {
                "rate": rate,
                "seed": drawn.seed,
                "num_requests": drawn.num_requests,
                "prompt_tokens": str(drawn.prompt_tokens),
                "output_tokens": str(drawn.output_tokens),
                "max_total_tokens": drawn.max_total_tokens,
            },
        )

    def at(self, rate: float, **changed: Any) -> Simulated:
        """The part of a demo that simulates it.

        Args:
            rate: requests a second.
            changed: settings of the engine.
        """
        return Simulated(self, rate, tuple(sorted(changed.items())))


@dataclass(frozen=True, slots=True)
class Simulated:
    """A scenario at a rate, with some settings of the engine changed."""

    scenario: Scenario
    rate: float
    changed: tuple[tuple[str, Any], ...]

    def __call__(self, tools: Tools) -> SimResult:
        simulation = self.scenario.simulation(tools, **dict(self.changed))
        return simulation.run(self.scenario.trace(self.rate))


SCENARIO_A = Scenario(
    name="scenario A: OPT-13B on an A100 of 40 GB",
    hardware="a100-40gb",
    model="opt-13b",
    file="scenario_a.csv",
    drawn=Independent(
        rate=1.0,
        seed=16,
        num_requests=600,
        prompt_tokens=LogNormal(150, 1.0, 1, 2040),
        output_tokens=LogNormal(220, 0.8, 1, 2040),
        max_total_tokens=2048,
    ),
    max_model_len=2048,
    slo=SLO(ttft=2.0, tpot=0.1),
)
SCENARIO_B = Scenario(
    name="scenario B: Llama-3-8B on an H100",
    hardware="h100",
    model="llama-3-8b",
    file="scenario_b.csv",
    drawn=Independent(
        rate=1.0,
        seed=23,
        num_requests=1200,
        prompt_tokens=LogNormal(1500, 0.8, 1, 6000),
        output_tokens=LogNormal(400, 0.7, 1, 2000),
        max_total_tokens=8192,
    ),
    max_model_len=8192,
    slo=SLO(ttft=2.0, tpot=0.1),
)
KINDS = {
    "Max": "reserved-max-scattered",
    "Pow2": "reserved-pow2-scattered",
    "Oracle": "reserved-oracle-scattered",
    "paged": "paged",
}
"""The lecture's systems, as `EngineConfig.kv`. Its reservations are counted and never fall into pieces."""


def write_traces(folder: Path) -> None:
    """Make the frozen files again."""
    for scenario in (SCENARIO_A, SCENARIO_B):
        lines = ["arrival_s,input_tokens,output_tokens"]
        for request in scenario.drawn:
            lines.append(f"{request.arrival:.3f},{len(request.prompt)},{len(request.output)}")
        (folder / scenario.file).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_traces(TRACES)
