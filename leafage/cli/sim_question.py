"""What the commands of `leafage sim` ask about: the flags they share, and the scenario these describe."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from leafage.cli.flags import ENGINE_FLAGS, engine_settings, parse_bytes
from leafage.config import EngineConfig
from leafage.errors import InvalidParameterError

if TYPE_CHECKING:
    from leafage.sim.result import SLO
    from leafage.sim.scenario import Scenario

WITHOUT_EFFECT = ("kv_cache_dtype", "swap_path", "hardware", "threads", "compute", "quantize")
"""Settings of an engine that are about this machine and its files."""

SIM_FLAGS = tuple(name for name in ENGINE_FLAGS if name not in WITHOUT_EFFECT)

SCENARIO = Group("Scenario", sort_key=1)


@Parameter(name="*", group=SCENARIO)
@dataclass(kw_only=True)
class Question:
    """The device, the model and the workload."""

    hardware: str = "a100-40gb"
    """A known device, or a JSON file that describes one."""
    model: Annotated[str, Parameter(name=["--model", "-m"])] = "opt-13b"
    """A model's shape: a known name, a .gguf file, or a folder with a config.json."""
    tensor_parallel: int = 1
    """Devices that share the model."""
    workload: Annotated[str, Parameter(name=["--workload", "--trace", "-w"])] = "sharegpt"
    """A known workload, or a trace file."""
    rate: float | None = None
    """Requests a second; of a trace that keeps its recorded arrivals use --set rate_scale=2."""
    requests: int | None = None
    """How many requests; of a trace the first so many."""
    set: Annotated[list[str] | None, Parameter(negative="")] = None
    """NAME=VALUE: any other setting of workload, hardware or model, such as arrivals=gamma,
    hardware.bandwidth=2e12 or model.num_kv_heads=8; may be repeated."""
    slo: str = "ttft=2,tpot=0.1"
    """The service level: most seconds to the first token, and per token after it."""


def make_scenario(question: Question, flags: dict[str, Any], *, seed: int = 0) -> Scenario:
    """The scenario that a command line describes.

    Raises:
        InvalidParameterError, TraceFileError: a name or a value is wrong; the message says which.
    """
    from leafage.build import build_simulation
    from leafage.sim.hardware import Hardware
    from leafage.sim.llm_spec import LLMSpec
    from leafage.sim.scenario import Scenario

    scenario = Scenario(
        build=build_simulation,
        config=EngineConfig.from_kwargs(**engine_settings(flags)),
        hardware=Hardware.load(question.hardware),
        spec=LLMSpec.load(question.model),
        workload=question.workload,
        tensor_parallel=question.tensor_parallel,
    )
    if question.requests is not None:
        scenario = scenario.with_requests(question.requests)
    given: dict[str, Any] = {}
    for name, text in map(parse_assignment, question.set or ()):
        given[scenario.find_setting(name)] = parse_value(scenario, name, text)
    scenario = scenario.with_settings(given)
    if question.rate is not None:
        if scenario.load_setting == "rate_scale":
            raise InvalidParameterError(
                "--rate has no effect on the recorded arrivals of a trace",
                value=question.rate,
                remedy="--set rate_scale=2 doubles them; --set arrivals=poisson replaces them",
            )
        scenario = scenario.with_setting("rate", question.rate)
    if scenario.has_seed and "seed" not in given:
        scenario = scenario.with_seed(seed)
    scenario.make_workload()  # what is wrong with it is said now
    return scenario


def refuse_without_effect(words: list[str]) -> None:
    """Raise InvalidParameterError for a flag of the engine that means nothing in a simulation."""
    for word in words:
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        if word.startswith("--") and name in WITHOUT_EFFECT and name != "hardware":
            raise InvalidParameterError(
                f"--{name.replace('_', '-')} has no effect on a simulation",
                remedy="set model.kv_bytes_each instead, such as 1 for int8"
                if name == "kv_cache_dtype"
                else "it is about this machine, so leave it out",
            )


def parse_assignment(text: str) -> tuple[str, str]:
    """'NAME=VALUE' apart."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise InvalidParameterError("not a setting", value=text, remedy="write it as NAME=VALUE")
    return name.strip(), value.strip()


def parse_variant(scenario: Scenario, text: str) -> dict[str, Any]:
    """'kv=paged,block_size=32' -> the settings of a variant; commas inside values are left alone."""
    settings = {}
    for part in re.split(r",(?=[\w.-]+=)", text):
        name, value = parse_assignment(part)
        settings[scenario.find_setting(name)] = parse_value(scenario, name, value)
    return settings


def parse_values(scenario: Scenario, text: str) -> tuple[str, list[Any]]:
    """'rate=1,2,3', 'rate=1:3:0.5' or 'prompt_tokens=100;lognormal:150,1' -> a setting and its values."""
    name, values = parse_assignment(text)
    full = scenario.find_setting(name)
    span = re.fullmatch(r"([^:,;]+):([^:,;]+):([^:,;]+)", values)
    if span:
        try:
            first, last, step = (float(number) for number in span.groups())
        except ValueError:
            span = None
    if span:
        count = (last - first) / step if step else -1
        if not 0 <= count < 1000:
            raise InvalidParameterError("not a range", value=text, remedy="write it as NAME=FIRST:LAST:STEP")
        texts = [f"{first + step * index:.10g}" for index in range(int(count + 1e-9) + 1)]
    else:
        texts = [part for part in re.split(";" if ";" in values else ",", values) if part.strip()]
    return full, [parse_value(scenario, full, part.strip()) for part in texts]


def parse_value(scenario: Scenario, name: str, text: str) -> Any:
    """The value of a setting from what a user wrote, by the setting's type."""
    full = scenario.find_setting(name)
    kind = scenario.settings()[full]
    kind = kind if isinstance(kind, str) else kind.__name__
    if text.lower() == "none" and "None" in kind:
        return None
    try:
        if "bytes" in full.split("_"):
            return parse_bytes(text) if "int" in kind else float(text)
        if kind.startswith("int"):
            return int(text)
        if kind.startswith("float"):
            return float(text)
        if kind.startswith("bool"):
            return {"true": True, "false": False}[text.lower()]
    except (ValueError, KeyError):
        raise InvalidParameterError(f"{full} must be of type {kind}", value=text) from None
    return _number_or_text(text) if full not in ("hardware", "model") else text


def _number_or_text(text: str) -> Any:
    """A workload checks its settings itself."""
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            pass
    return text


def parse_slo(text: str) -> SLO:
    """'ttft=2,tpot=100ms' -> a service level."""
    from leafage.sim.result import SLO

    seconds = {}
    for part in text.split(","):
        name, value = parse_assignment(part)
        if name not in {field.name for field in fields(SLO)}:
            raise InvalidParameterError("unknown part of a service level", value=name, limit="ttft, tpot")
        found = re.fullmatch(r"([0-9.]+(?:e-?[0-9]+)?) ?(ms|s)?", value)
        try:
            seconds[name] = float(found[1] if found else "") * (1e-3 if found and found[2] == "ms" else 1)
        except ValueError:
            raise InvalidParameterError(
                f"not a time in the service level: {name}", value=value, remedy="write it as 2 or 100ms"
            ) from None
    return SLO(**{"ttft": float("inf"), "tpot": float("inf")} | seconds)


def parse_seeds(seeds: int) -> range:
    """Seeds 0, 1, ..."""
    if not 1 <= seeds <= 1000:
        raise InvalidParameterError("seeds is out of range", value=seeds, limit="1 to 1000")
    return range(seeds)
