"""A scenario: all that a simulation depends on, as one value that can be varied and sent elsewhere."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from leafage.errors import InvalidParameterError
from leafage.sim.hardware import Hardware
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.replicas import Router, check_router, serve
from leafage.sim.result import SimResult, merged
from leafage.sim.simulation import Simulation
from leafage.sim.verdict import Verdict
from leafage.sim.workload import Workload
from leafage.sim.workloads import make_workload, workload_settings


class BuildSimulation(Protocol):
    """`leafage.build.build_simulation`."""

    def __call__(
        self, config: Any, hardware: Hardware, spec: LLMSpec, *, tensor_parallel: int = 1
    ) -> Simulation: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """An engine's configuration, a device, a model and a workload.

    Attributes:
        build: makes the simulation; `leafage.build.build_simulation`.
        config: the engine's, an `EngineConfig`.
        workload: a name in `WORKLOADS`, or a trace file.
        workload_settings: of `make_workload`.
        tensor_parallel: devices that share the model.
        replicas: engines, each with so many devices.
        router: which of them a request goes to (`replicas.Router`).
    """

    build: BuildSimulation
    config: Any
    hardware: Hardware
    spec: LLMSpec
    workload: str
    workload_settings: Mapping[str, Any] = field(default_factory=dict)
    tensor_parallel: int = 1
    replicas: int = 1
    router: Router = "round_robin"

    def make_workload(self) -> Workload:
        """Its requests, from the start.

        Raises:
            InvalidParameterError, TraceFileError: as `make_workload` raises them.
        """
        return cast(Workload, make_workload(self.workload, **self.workload_settings))

    def run(
        self,
        on_progress: Callable[[int, float], None] | None = None,
        *,
        verdict: Verdict | None = None,
    ) -> SimResult:
        """Simulate it. Of several replicas the result is that of all together; its timeline is the first's.

        Args:
            on_progress: told (requests ended, simulated seconds) now and then.
            verdict: stop once it is missed; the result is that of the requests that have ended.

        Raises:
            InvalidParameterError: the model does not fit, or a setting is wrong.
        """
        replicas = [
            self.build(self.config, self.hardware, self.spec, tensor_parallel=self.tensor_parallel)
            for _ in range(self.replicas)
        ]
        workload = self.make_workload()
        if len(replicas) == 1:
            return replicas[0].run(workload, on_progress=on_progress, verdict=verdict)
        return merged(serve(replicas, workload, self.router, on_progress, verdict))

    @property
    def num_devices(self) -> int:
        return self.replicas * self.tensor_parallel

    def as_dict(self) -> dict[str, Any]:
        """All of it in plain values, for JSON."""
        config = dataclasses.asdict(self.config)
        return {
            "model": dataclasses.asdict(self.spec),
            "hardware": dataclasses.asdict(self.hardware),
            "tensor_parallel": self.tensor_parallel,
            "replicas": self.replicas,
            "router": self.router,
            "engine": {name: config[name] for name in config if name in _names(self.config)},
            "workload": {"name": str(self.workload), **self.workload_settings},
        }

    # -- settings --------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """The type of every setting by name: of the engine, of the workload, `hardware`, `model`,
        `tensor_parallel`, `replicas`, `router`, and the numbers of hardware and model as
        `hardware.bandwidth` or `model.num_kv_heads`."""
        found: dict[str, Any] = {
            "hardware": str,
            "model": str,
            "tensor_parallel": int,
            "replicas": int,
            "router": str,
        }
        found |= {f.name: f.type for f in dataclasses.fields(self.config) if f.name not in _NOT_SIMULATED}
        found |= {setting.name: str for setting in workload_settings(self.workload)}
        found |= {
            f"hardware.{f.name}": f.type for f in dataclasses.fields(Hardware) if f.type in ("str", "float")
        }
        found |= {f"model.{f.name}": f.type for f in dataclasses.fields(LLMSpec)}
        return found

    def setting(self, name: str) -> Any:
        """The value of a setting; None where the workload's own default holds."""
        name = self.find_setting(name)
        part, _, inner = name.partition(".")
        if inner:
            return getattr(self.hardware if part == "hardware" else self.spec, inner)
        if name == "model":
            return self.spec.name
        if name == "hardware":
            return self.hardware.name
        if name in ("tensor_parallel", "replicas", "router"):
            return getattr(self, name)
        if name in _names(self.config):
            return getattr(self.config, name)
        return self.workload_settings.get(name)

    def with_setting(self, name: str, value: Any) -> Scenario:
        """The same with another value of one setting.

        Raises:
            InvalidParameterError: there is no such setting, or the value is wrong.
        """
        name = self.find_setting(name)
        part, _, inner = name.partition(".")
        if name == "hardware":
            return replace(self, hardware=value if isinstance(value, Hardware) else Hardware.load(value))
        if name == "model":
            return replace(self, spec=value if isinstance(value, LLMSpec) else LLMSpec.load(value))
        if name in ("tensor_parallel", "replicas"):
            if not isinstance(value, int) or value < 1:
                raise InvalidParameterError(f"{name} is out of range", value=value, limit="at least 1")
            return replace(self, **{name: value})  # type: ignore[arg-type]
        if name == "router":
            return replace(self, router=check_router(value))
        if inner and part == "hardware":
            return replace(self, hardware=replace(self.hardware, **{inner: value}))
        if inner:
            return replace(self, spec=replace(self.spec, **{inner: value}))
        if name in _names(self.config):
            return replace(self, config=replace(self.config, **{name: value}))
        return replace(self, workload_settings={**self.workload_settings, name: value})

    def with_settings(self, settings: Mapping[str, Any]) -> Scenario:
        """`with_setting` for several."""
        changed = self
        for name, value in settings.items():
            changed = changed.with_setting(name, value)
        return changed

    def find_setting(self, name: str) -> str:
        """The full name of a setting; dashes count as underscores.

        Raises:
            InvalidParameterError: there is none; the nearest is named.
        """
        known = self.settings()
        wanted = name.strip().replace("-", "_")
        if wanted in known:
            return wanted
        if wanted in _NOT_SIMULATED:
            raise InvalidParameterError(
                f"{wanted} has no effect on a simulation", remedy="it is about this machine, so leave it out"
            )
        part = wanted.partition(".")[0]
        tails = [full for full in known if full.endswith(f".{wanted}")]
        if len(tails) == 1:
            return tails[0]
        close = tails or difflib.get_close_matches(wanted, known, n=1)
        raise InvalidParameterError(
            "unknown setting",
            value=name,
            limit=", ".join(full for full in known if full.partition(".")[0] == part or "." not in full),
            remedy=f"did you mean {close[0]}?" if close else None,
        )

    def with_requests(self, num_requests: int) -> Scenario:
        """The same with the first so many requests of the workload.

        Raises:
            InvalidParameterError: the workload counts in something else, such as conversations.
        """
        names = [setting.name for setting in workload_settings(self.workload)]
        known = [name for name in ("num_requests", "max_requests") if name in names]
        if not known:
            raise InvalidParameterError(
                f"the workload {self.workload} does not count requests",
                remedy=f"set one of {', '.join(name for name in names if name.startswith('num_'))}",
            )
        return self.with_setting(known[0], num_requests)

    def stretch(self, first_arrival: float, num_requests: int) -> Scenario:
        """The same with so many requests, of a trace those that arrive from this second on; workloads that
        are drawn are alike everywhere.

        Raises:
            InvalidParameterError: as `with_requests` raises it.
        """
        found = self.with_requests(num_requests)
        if not self._is_recorded or not first_arrival:
            return found
        scale = float(self.workload_settings.get("rate_scale") or 1.0)
        skipped = float(self.workload_settings.get("start") or 0.0)
        return found.with_setting("start", skipped + first_arrival * scale)

    @property
    def num_requests(self) -> int | None:
        """Requests of the workload; None where it does not count them."""
        workload = self.make_workload()
        return len(workload) if isinstance(workload, Sized) else None

    # -- load ------------------------------------------------------------------------------------

    @property
    def load_setting(self) -> str:
        """By which setting the workload's load is changed: `rate`, in requests a second, or `rate_scale` of
        a trace whose recorded arrivals are kept.

        Raises:
            InvalidParameterError: all arrive at once, so there is no rate.
        """
        if self._is_recorded:
            return "rate_scale"
        if self._arrivals == "at-once":
            raise InvalidParameterError(
                "requests that arrive at once have no rate", remedy="set other arrivals, such as poisson"
            )
        return "rate"

    @property
    def has_seed(self) -> bool:
        """Whether the workload draws anything; a recorded trace does not."""
        return not self._is_recorded

    @property
    def _is_recorded(self) -> bool:
        return self._arrivals == "trace"

    @property
    def _arrivals(self) -> str:
        defaults = {each.name: each.default for each in workload_settings(self.workload)}
        return str(self.workload_settings.get("arrivals") or defaults["arrivals"])

    def with_seed(self, seed: int) -> Scenario:
        """The same workload drawn anew; itself when nothing is drawn."""
        return self.with_setting("seed", seed) if self.has_seed else self


_NOT_SIMULATED = frozenset(
    ("threads", "compute", "quantize", "chat_template", "swap_path", "kv_cache_dtype", "seed")
)
"""Settings of an engine that are about this machine and its files. `hardware` and `model` are the scenario's
own, and `seed` is the workload's."""


def _names(config: Any) -> set[str]:
    return {f.name for f in dataclasses.fields(config)} - _NOT_SIMULATED - {"hardware", "model"}
