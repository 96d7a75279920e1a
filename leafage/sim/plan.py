"""How many devices a workload needs, how they should be set up, and what paging buys there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, get_args

import numpy as np

from leafage.errors import InvalidParameterError, LeafageError
from leafage.sim.bound import Bound, bound_of
from leafage.sim.cost_model import CostModel
from leafage.sim.experiments import Run, run_of, simulate
from leafage.sim.parallel import in_parallel
from leafage.sim.replicas import Router
from leafage.sim.result import SLO, SimResult
from leafage.sim.scenario import Scenario
from leafage.sim.summary import DEFAULT_SLO
from leafage.sim.verdict import Verdict

DEGREES = (1, 2, 4, 8)
"""Tensor parallel degrees that are tried."""
TUNED: dict[str, Sequence[Any]] = {
    "max_num_batched_tokens": (256, 512, 1024, 2048, 4096),
    "block_size": (8, 16, 32, 64, 128),
    "watermark": (0.0, 0.01, 0.02, 0.05, 0.1),
    "policy": ("fcfs", "first_fit", "longest_prefix", "shortest_prompt"),
    "router": get_args(Router),
}
"""Settings and their values that are tried; a router where there are several replicas."""
STRESS = 1.3
"""Times the load of the plan at which settings are compared when there is one replica only."""
WORTH = 0.02
"""Share of requests that a setting must bring within the level to be chosen instead of the default."""


@dataclass(slots=True)
class Size:
    """So many replicas, each of so many devices.

    Attributes:
        run: of the smallest number of replicas that meets the level, or of the largest that was tried.
        bound: what bounds it.
        hardest: when the requests arrived, one after the other, that came closest to the level or missed it
            most often; the second of the first of them.
        tried: runs by number of replicas.
        error: why this degree cannot be used.
    """

    tensor_parallel: int
    replicas: int = 0
    run: Run | None = None
    bound: Bound | None = None
    hardest: float = 0.0
    meets: bool = False
    tried: dict[int, Run] = field(default_factory=dict)
    error: str | None = None

    @property
    def num_devices(self) -> int:
        return self.tensor_parallel * self.replicas


@dataclass(slots=True)
class Tuning:
    """One setting's values under stress, and the one that is best."""

    name: str
    default: Any
    chosen: Any
    runs: dict[Any, Run]


@dataclass(slots=True)
class Gain:
    """What paging buys: the same requests with blocks on demand, and with each exact length reserved.

    Attributes:
        label: under which circumstances.
        error: why they cannot be simulated.
    """

    label: str
    paged: Run | None = None
    reserved: Run | None = None
    error: str | None = None

    @property
    def throughput(self) -> float:
        """Relative gain of output tokens a second."""
        assert self.paged is not None and self.reserved is not None
        return self.paged.metrics["throughput"] / self.reserved.metrics["throughput"] - 1

    @property
    def attainment(self) -> float:
        """Gain of the share of requests within the level."""
        assert self.paged is not None and self.reserved is not None
        return self.paged.metrics["slo_attainment"] - self.reserved.metrics["slo_attainment"]


@dataclass(slots=True)
class Plan:
    """An answer.

    Attributes:
        scenario: what to run: replicas, degree and settings; what was asked where nothing meets the level.
        sizes: what was tried with the settings asked for, by degree.
        best: the one of them with the fewest devices; None where nothing meets the level.
        fewer: fewer devices that meet it with the settings chosen; None where none do.
        stress: under which the rest was measured: one replica fewer, or a higher load.
        tunings: settings under stress, one at a time.
        together: all that were chosen, where there are several.
        gains: what paging buys under stress; the first as planned, the others in other circumstances.
        bound: what bounds the run under stress.
    """

    scenario: Scenario
    slo: SLO
    share: float
    sizes: list[Size]
    best: Size | None
    fewer: Size | None = None
    stress: Scenario | None = None
    tunings: list[Tuning] = field(default_factory=list)
    together: Run | None = None
    gains: list[Gain] = field(default_factory=list)
    bound: Bound | None = None

    @property
    def size(self) -> Size | None:
        """What to buy."""
        return self.fewer or self.best

    @property
    def changes(self) -> dict[str, Any]:
        """Settings that were chosen instead of those asked for."""
        return {
            each.name: each.chosen
            for each in self.tunings
            if each.chosen != each.default and (each.name != "router" or self.scenario.replicas > 1)
        }


def plan(
    scenario: Scenario,
    *,
    slo: SLO = DEFAULT_SLO,
    share: float = 0.9,
    max_devices: int = 64,
    max_requests: int = 1000,
    processes: int = 1,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Find the fewest devices under which `share` of the requests meet the level, the settings that help
    where one replica is missing, whether fewer devices do with them, what paging buys, and what bounds it.

    Args:
        max_requests: of the runs that compare settings, where the level is hardest to meet. Devices are
            counted on the whole workload; if that is longer, a run is stopped once too many have missed it.
        on_progress: told what is being done.

    Raises:
        InvalidParameterError: `share` is out of range, or no degree can be used.
    """
    if not 0 < share <= 1:
        raise InvalidParameterError("share is out of range", value=share, limit="above 0 to 1")
    size = partial(
        _size, scenario=scenario, slo=slo, share=share, max_devices=max_devices, max_requests=max_requests
    )
    counted = _counted("counting devices", on_progress)
    sizes = in_parallel(size, DEGREES, processes=processes, on_progress=counted)
    if all(each.error for each in sizes):
        raise InvalidParameterError(
            f"{scenario.spec.name} cannot be served by {scenario.hardware.name}",
            value="; ".join(f"{each.tensor_parallel} devices: {each.error}" for each in sizes),
        )
    best = _smallest(sizes)
    if best is None:
        sizes = in_parallel(partial(_completed, scenario=scenario, slo=slo), sizes, processes=processes)
        return Plan(scenario, slo, share, sizes, None)
    planned = replace(scenario, replicas=best.replicas, tensor_parallel=best.tensor_parallel)
    stress = _stressed(planned)
    if (stress.num_requests or 0) > max_requests:
        stress = stress.stretch(best.hardest, max_requests)
    found = Plan(planned, slo, share, sizes, best, stress=stress)
    _tune(found, processes, on_progress)
    if found.changes and best.num_devices > 1:
        _count_again(found, max_requests, processes, on_progress)
    _weigh_paging(found, processes, on_progress)
    return found


def _smallest(sizes: Sequence[Size]) -> Size | None:
    """The one that meets the level with the fewest devices."""
    met = [each for each in sizes if each.meets]
    return min(met, key=lambda each: (each.num_devices, each.tensor_parallel), default=None)


def _counted(what: str, on_progress: Callable[[str], None]) -> Callable[[int, int], None]:
    """Tells of each tensor parallel degree that is done: a long trace takes minutes."""
    return lambda done, total: on_progress(f"{what}: {done} of {total} tensor parallel degrees")


def _count_again(found: Plan, max_requests: int, processes: int, on_progress: Callable[[str], None]) -> None:
    """Whether fewer devices do with the settings that were chosen."""
    assert found.best is not None
    size = partial(
        _size,
        scenario=found.scenario,
        slo=found.slo,
        share=found.share,
        max_devices=found.best.num_devices - 1,
        max_requests=max_requests,
    )
    counted = _counted("counting devices with these settings", on_progress)
    found.fewer = _smallest(in_parallel(size, DEGREES, processes=processes, on_progress=counted))
    if found.fewer is not None:
        found.scenario = replace(
            found.scenario,
            replicas=found.fewer.replicas,
            tensor_parallel=found.fewer.tensor_parallel,
        )


def _size(
    tensor_parallel: int,
    *,
    scenario: Scenario,
    slo: SLO,
    share: float,
    max_devices: int,
    max_requests: int,
) -> Size:
    """The fewest replicas of one degree."""
    size = Size(tensor_parallel)
    sharded = replace(scenario, tensor_parallel=tensor_parallel)
    try:
        cost = cost_of(sharded)
        cost.kv_pool_bytes  # noqa: B018 (raises when the model does not fit)
    except InvalidParameterError as error:
        size.error = str(error)
        return size
    most = max_devices // tensor_parallel
    if most < 1:
        size.error = f"more than {max_devices} devices"
        return size

    num_requests = sharded.num_requests
    is_long = num_requests is not None and num_requests > max_requests
    bounds: dict[int, Bound] = {}
    hardest: dict[int, float] = {}

    def meets(replicas: int) -> bool:
        verdict = Verdict(slo, share, num_requests) if is_long and num_requests else None
        result = replace(sharded, replicas=replicas).run(verdict=verdict)
        size.tried[replicas] = run_of(result, slo)
        if verdict is not None and verdict.is_missed:
            size.tried[replicas].stopped = True
            return False
        bounds[replicas] = bound_of(result, cost, replicas=replicas)
        hardest[replicas] = _hardest(result, slo, max_requests)
        return size.tried[replicas].metrics["slo_attainment"] >= share

    try:
        low, high = 0, min(most, _first_guess(sharded, cost))
        while not (met := meets(high)) and high < most:
            low, high = high, min(2 * high, most)
        while met and high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if meets(middle) else (middle, high)
    except LeafageError as error:
        size.error = str(error)
        return size
    size.replicas, size.run, size.bound = high, size.tried[high], bounds.get(high)
    size.hardest = hardest.get(high, 0.0)
    size.meets = met
    return size


def _completed(size: Size, *, scenario: Scenario, slo: SLO) -> Size:
    """With the whole of its largest run, which tells how far off it is."""
    if size.run is not None and size.run.stopped:
        largest = replace(scenario, tensor_parallel=size.tensor_parallel, replicas=size.replicas)
        result = largest.run()
        size.run = size.tried[size.replicas] = run_of(result, slo)
        size.bound = bound_of(result, cost_of(largest), replicas=size.replicas)
    return size


def _hardest(result: SimResult, slo: SLO, count: int) -> float:
    """When the first of `count` requests arrived that came closest to the level; 0 if there are no more."""
    arrival = np.array(result.records.arrival)
    if len(arrival) <= count:
        return 0.0
    order = np.argsort(arrival, kind="stable")
    closeness = np.minimum(1.0, np.maximum(result.ttft / slo.ttft, result.tpot / slo.tpot))[order]
    sums = np.concatenate([[0.0], np.cumsum(closeness)])
    first = int(np.argmax(sums[count:] - sums[:-count]))
    return float(arrival[order[first]]) if first else 0.0


def _first_guess(scenario: Scenario, cost: CostModel) -> int:
    """About half of the replicas that could compute all tokens while requests arrive: overload is slow to
    simulate."""
    prompts = outputs = 0
    last = 0.0
    for request in scenario.make_workload():
        prompts += len(request.prompt)
        outputs += len(request.output) * request.n
        last = request.arrival
    seconds = cost.compute_seconds(prompts + outputs, outputs)
    return max(1, int(0.5 * seconds / last)) if last else 1


def _stressed(planned: Scenario) -> Scenario:
    """One replica fewer, or more load: where settings matter."""
    if planned.replicas > 1:
        return replace(planned, replicas=planned.replicas - 1)
    try:
        name = planned.load_setting
    except InvalidParameterError:  # all arrive at once: there is no more load than that
        return planned
    return planned.with_setting(name, STRESS * float(planned.workload_settings.get(name) or 1.0))


def _tune(found: Plan, processes: int, on_progress: Callable[[str], None]) -> None:
    """Vary one setting at a time; choose what brings more requests within the level."""
    on_progress("trying token budgets, block sizes, watermarks and policies")
    assert found.stress is not None
    names = [name for name in TUNED if name != "router" or found.stress.replicas > 1]
    varied = {name: _varied(found.stress, name) for name in names}
    tasks = [each for scenarios in varied.values() for each in scenarios.values()]
    runs = iter(_run_once_each(tasks, found.slo, processes))
    changes = {}
    for name, scenarios in varied.items():
        default = found.stress.setting(name)
        results = {value: next(runs) for value in scenarios}
        best = max(results, key=lambda value: results[value].metrics["slo_attainment"])
        gain = results[best].metrics["slo_attainment"] - results[default].metrics["slo_attainment"]
        value = best if gain >= WORTH else default
        found.tunings.append(Tuning(name, default, value, results))
        if value != default:
            changes[name] = value
    if len(changes) > 1:
        found.together = simulate(found.stress.with_settings(changes), found.slo)
        single = max(found.tunings, key=lambda each: each.runs[each.chosen].metrics["slo_attainment"])
        best = single.runs[single.chosen].metrics["slo_attainment"]
        if found.together.metrics["slo_attainment"] < best:  # they get into each other's way
            for tuning in found.tunings:
                tuning.chosen = tuning.chosen if tuning is single else tuning.default
            changes, found.together = {single.name: single.chosen}, None
    found.scenario = found.scenario.with_settings(changes)


def _varied(scenario: Scenario, name: str) -> dict[Any, Scenario]:
    """The scenario with every value of a setting that means something there, its own among them."""
    own = scenario.setting(name)
    varied = {}
    for value in TUNED[name] if own in TUNED[name] else (own, *TUNED[name]):
        try:
            varied[value] = scenario.with_setting(name, value)
        except InvalidParameterError:  # such as a policy by cached prefixes where nothing is cached
            continue
    return varied


def _weigh_paging(found: Plan, processes: int, on_progress: Callable[[str], None]) -> None:
    """Run paged and reserved memory, neither with shared prefixes, as planned and where memory is scarcer."""
    on_progress("comparing paged with reserved memory")
    assert found.stress is not None
    spec, hardware = found.stress.spec, found.stress.hardware
    cases = {"as planned": found.stress}
    if spec.num_kv_heads < spec.num_heads:
        label = f"without grouped-query attention ({spec.num_heads} KV heads)"
        cases[label] = replace(found.stress, spec=replace(spec, num_kv_heads=spec.num_heads))
    half = f"with half of the memory ({hardware.memory_bytes / 2e9:.0f} GB)"
    cases[half] = replace(found.stress, hardware=replace(hardware, memory_bytes=hardware.memory_bytes / 2))
    config = found.stress.config
    policy = "fcfs" if config.policy == "longest_prefix" else config.policy
    alike = {"prefix_index": "none", "policy": policy, "pinned_share": None}
    paged = replace(config, kv="paged", **alike)
    reserved = replace(config, kv="reserved-oracle", preemption="auto", swap_bytes=None, **alike)
    tasks = [replace(case, config=kv) for case in cases.values() for kv in (paged, reserved)]
    runs = in_parallel(partial(_try, slo=found.slo), tasks, processes=processes)
    for index, label in enumerate(cases):
        of_paged, of_reserved = (run for run, _ in runs[2 * index : 2 * index + 2])
        error = of_paged.error or of_reserved.error
        found.gains.append(Gain(label, error=error) if error else Gain(label, of_paged, of_reserved))
    found.bound = runs[0][1]


def _run_once_each(scenarios: Sequence[Scenario], slo: SLO, processes: int) -> list[Run]:
    """Runs in their order; scenarios that are equal, such as the defaults of several settings, run once."""
    different: list[Scenario] = []
    for scenario in scenarios:
        if scenario not in different:
            different.append(scenario)
    runs = in_parallel(partial(simulate, slo=slo), different, processes=processes)
    return [runs[different.index(scenario)] for scenario in scenarios]


def _try(scenario: Scenario, slo: SLO) -> tuple[Run, Bound | None]:
    """A run and what bounds it, or why there is none."""
    try:
        result = scenario.run()
    except LeafageError as error:
        return Run(error=str(error)), None
    return run_of(result, slo), bound_of(result, cost_of(scenario), replicas=scenario.replicas)


def cost_of(scenario: Scenario) -> CostModel:
    """The cost model of a scenario's steps."""
    return CostModel(
        scenario.hardware,
        scenario.spec,
        tensor_parallel=scenario.tensor_parallel,
        block_size=scenario.config.block_size,
    )
