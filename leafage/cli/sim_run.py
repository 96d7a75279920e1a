"""`leafage sim run`: one configuration, one workload."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from leafage.cli import terminal
from leafage.cli.flags import engine_settings, with_flags
from leafage.config import EngineConfig

SIM_FLAGS = (
    "max_model_len",
    "block_size",
    "kv_cache_bytes",
    "kv_cache_tokens",
    "max_num_seqs",
    "max_num_batched_tokens",
    "policy",
    "prefix_index",
    "kv",
    "watermark",
    "preemption",
    "swap_bytes",
    "pinned_share",
)
"""Settings that a simulation depends on."""


@with_flags(SIM_FLAGS)
def run(
    *,
    hardware: str = "a100-40gb",
    model: Annotated[str, Parameter(name=["--model", "-m"])] = "opt-13b",
    tensor_parallel: int = 1,
    rate: float = 1.0,
    requests: int = 500,
    seed: int = 0,
    **flags: Any,
) -> None:
    """Simulate one configuration with one workload.

    Parameters
    ----------
    hardware
        A known device, or a JSON file that describes one.
    model
        The model's shape, by name.
    tensor_parallel
        Devices that share the model.
    rate
        Mean arrivals a second.
    requests
        How many.
    seed
        Of the workload.
    """
    from leafage.build import build_simulation
    from leafage.sim.hardware import Hardware
    from leafage.sim.llm_spec import LLMSpec

    config = EngineConfig.from_kwargs(**engine_settings(flags))
    simulation = build_simulation(
        config, Hardware.load(hardware), LLMSpec.load(model), tensor_parallel=tensor_parallel
    )
    result = simulation.run(_workload(rate, requests, seed))
    console = terminal.print_console()
    console.print(f"{result.records.num_requests} requests in {result.seconds:.1f} s")
    console.print(f"throughput {result.throughput:.1f} tok/s, mean TTFT {result.ttft.mean():.3f} s")


def _workload(rate: float, requests: int, seed: int) -> Any:
    """Poisson arrivals, log-normal lengths: until the workloads of `leafage.sim` are here."""
    import numpy as np

    from leafage.sim.workload import SimRequest, Trace

    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, requests))
    prompts = np.clip(rng.lognormal(np.log(150), 1.0, requests), 4, 1024).astype(int)
    outputs = np.clip(rng.lognormal(np.log(220), 0.8, requests), 4, 1024).astype(int)
    made = []
    for number in range(requests):
        start = number << 20
        end = start + int(prompts[number])
        made.append(
            SimRequest(
                str(number),
                float(arrivals[number]),
                range(start, end),
                range(end, end + int(outputs[number])),
            )
        )
    return Trace(made)
