"""A plan in sentences: what to run, why, and what paging buys there."""

from __future__ import annotations

from leafage.sim.bound import Bound
from leafage.sim.plan import WORTH, Gain, Plan, Size, Tuning

LITTLE = 0.05
"""Gains of throughput and of attainment below which paging is said to buy little."""


def answer(plan: Plan) -> str:
    """The answer in a line."""
    hardware = plan.scenario.hardware.name
    if plan.best is None:
        closest = max(
            (size for size in plan.sizes if size.run is not None),
            key=lambda size: size.run.metrics["slo_attainment"] if size.run else 0.0,
        )
        assert closest.run is not None
        attained = 100 * closest.run.metrics["slo_attainment"]
        return (
            f"No number of {hardware} that was tried meets the level: {describe_size(closest)} comes "
            f"closest, with {attained:.1f} % of the requests. {_why_not(plan, closest)}"
        )
    if plan.fewer is None:
        return f"{plan.best.num_devices} x {hardware}: {_describe_met(plan.best)} within the level."
    settings = ", ".join(f"{name} = {value}" for name, value in plan.changes.items())
    return (
        f"{plan.fewer.num_devices} x {hardware} with {settings}: {_describe_met(plan.fewer)} within the "
        f"level. With the settings asked for, {plan.best.num_devices}: {_describe_met(plan.best)}."
    )


def _describe_met(size: Size) -> str:
    """'2 replicas, with 96.2 % of the requests'."""
    assert size.run is not None
    return f"{describe_size(size)}, with {100 * size.run.metrics['slo_attainment']:.1f} % of the requests"


def describe_size(size: Size) -> str:
    """'2 replicas of 4 devices each'."""
    replicas = f"{size.replicas} replica{'s' if size.replicas != 1 else ''}"
    return replicas + (f" of {size.tensor_parallel} devices each" if size.tensor_parallel > 1 else "")


def describe_tuning(tuning: Tuning) -> str:
    """What one setting should be, and what it does."""
    attained = {value: 100 * run.metrics["slo_attainment"] for value, run in tuning.runs.items()}
    if tuning.chosen != tuning.default:
        return (
            f"{tuning.name} = {tuning.chosen}: {attained[tuning.chosen]:.1f} % within the level instead "
            f"of {attained[tuning.default]:.1f} % with {tuning.default}"
        )
    spread = max(attained.values()) - min(attained.values())
    if spread < 100 * WORTH:
        return f"{tuning.name} = {tuning.default}, the default: it makes no difference here"
    worst = min(attained, key=lambda value: attained[value])
    lost = attained[tuning.default] - attained[worst]
    return (
        f"{tuning.name} = {tuning.default}, the default: none is better by {100 * WORTH:g} points or more"
        + (f", and {worst} loses {lost:.1f}" if lost >= 100 * WORTH else "")
    )


def describe_stress(plan: Plan) -> str:
    """Under which load settings and memory were compared."""
    if plan.best is None or plan.stress is None:
        return ""
    said = "with one replica fewer" if plan.best.replicas > 1 else "with more load"
    if plan.best.hardest and plan.stress.num_requests != plan.scenario.num_requests:
        start = float(plan.stress.setting("start"))
        said += (
            f", on the {plan.stress.num_requests:,} requests from second {start:,.0f} of the trace on, where "
            "the level is hardest to meet"
        )
    return said


def describe_settings(plan: Plan) -> list[str]:
    """What all settings should be, and what those that are changed do together."""
    said = [describe_tuning(tuning) for tuning in plan.tunings]
    if plan.together is not None:
        attained = 100 * plan.together.metrics["slo_attainment"]
        said.append(f"together: {attained:.1f} % within the level")
    return said


def describe_bound(bound: Bound) -> str:
    """What bounds the run, with the numbers that say so."""
    if bound.kind == "memory":
        return (
            f"The KV cache bounds it: it was full and requests waited {100 * bound.full:.0f} % of the time. "
            f"It holds {bound.capacity:.0f} requests of {bound.tokens_per_request:,.0f} tokens, the mean."
        )
    reading = bound.weights + bound.context
    numbers = (
        f"computing alone would take {100 * bound.compute:.0f} % of the time, reading weights "
        f"{100 * bound.weights:.0f} % and K and V {100 * bound.context:.0f} %"
    )
    if bound.kind == "load":
        return f"The load bounds it: the engine is busy {100 * bound.busy:.0f} % of the time; {numbers}."
    if bound.kind == "compute":
        return f"Computing bounds it: {numbers}."
    what = "K and V" if bound.context > bound.weights else "weights"
    return (
        f"The memory's bandwidth bounds it, most of all for {what}: {numbers} ({100 * reading:.0f} % in all)."
    )


def describe_paging(plan: Plan) -> list[str]:
    """What paging buys, and why, in sentences."""
    if not plan.gains or plan.bound is None:
        return []
    first, *others = plan.gains
    if first.error:
        return [f"Paged and reserved memory cannot be compared: {first.error}"]
    gain, points = first.throughput, 100 * first.attainment
    numbers = (
        f"{_percent(gain)} throughput and {points:+.1f} points of attainment over memory reserved for each "
        "answer's exact length, which no real system knows"
    )
    little = abs(gain) < LITTLE and abs(first.attainment) < LITTLE
    said = [f"Paging buys {'little here: ' if little else ''}{numbers}."]
    said.append(describe_bound(plan.bound))
    if little and plan.bound.kind != "memory":
        bound = plan.bound
        said.append(
            f"Memory is not what is short: the KV cache holds {bound.capacity:.0f} requests of mean length "
            f"({bound.tokens_per_request:,.0f} tokens), and {bound.mean_batch:.1f} ran at once."
        )
    said += [_other(each) for each in others]
    return said


def _other(gain: Gain) -> str:
    if gain.error:
        return f"It would matter more {gain.label}, where: {gain.error}"
    return (
        f"{gain.label[0].upper()}{gain.label[1:]} it would be {_percent(gain.throughput)} throughput and "
        f"{100 * gain.attainment:+.1f} points."
    )


def _why_not(plan: Plan, size: Size) -> str:
    assert size.run is not None
    metrics = size.run.metrics
    if metrics["tpot_p50"] > plan.slo.tpot:
        return (
            f"Half of the requests take more than {1e3 * metrics['tpot_p50']:.0f} ms per token: more devices "
            "per replica, faster ones or a smaller model would help; more replicas would not."
        )
    if metrics["num_refused"]:
        return f"{metrics['num_refused']:,.0f} requests were refused because they never fit."
    return "Allow more devices, or a looser level."


def _percent(gain: float) -> str:
    return f"{100 * gain:+.1f} %"
