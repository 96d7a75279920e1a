"""Workloads by name: what the command line and scripts ask for."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leafage.errors import InvalidParameterError
from leafage.sim.distributions import ALPACA_OUTPUT, ALPACA_PROMPT, SHAREGPT_OUTPUT, SHAREGPT_PROMPT
from leafage.sim.generated import Generated
from leafage.sim.independent import Independent
from leafage.sim.sessions import Agents, MultiTurn
from leafage.sim.shared_prompts import FewShot, Retrieval
from leafage.sim.trace_file import TraceFile


@dataclass(frozen=True, slots=True)
class WorkloadKind:
    """A workload by name.

    Attributes:
        help: what it is, in a line.
        make: its class.
        defaults: what it sets otherwise than the class.
    """

    help: str
    make: type[Generated]
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a workload. `default` is as a user would write it, None where nothing is set."""

    name: str
    default: str | None
    help: str


WORKLOADS: dict[str, WorkloadKind] = {
    "sharegpt": WorkloadKind(
        "independent chats with lengths like ShareGPT's (means 161 and 338 tokens)",
        Independent,
        {"prompt_tokens": SHAREGPT_PROMPT, "output_tokens": SHAREGPT_OUTPUT},
    ),
    "alpaca": WorkloadKind(
        "independent instructions with lengths like Alpaca's (means 19 and 58 tokens)",
        Independent,
        {"prompt_tokens": ALPACA_PROMPT, "output_tokens": ALPACA_OUTPUT},
    ),
    "parallel": WorkloadKind("four answers to each of ShareGPT's prompts", Independent, {"n": 4}),
    "beam": WorkloadKind(
        "beam search with four beams from each of ShareGPT's prompts", Independent, {"beam_width": 4}
    ),
    "few-shot": WorkloadKind(
        "questions of eight tasks, each after its task's examples, all at once", FewShot
    ),
    "rag": WorkloadKind("questions after retrieved documents, some of them popular", Retrieval),
    "multi-turn": WorkloadKind("conversations: each prompt is all that was said before", MultiTurn),
    "agents": WorkloadKind("agents that call tools, and try several continuations now and then", Agents),
}
TRACE = WorkloadKind("the requests of a file", TraceFile)


def make_workload(name: str | Path, **settings: Any) -> Generated:
    """A workload by its name in `WORKLOADS`, or the trace in a file.

    Args:
        settings: those of `workload_settings(name)`; their values may be text, as a user writes it.

    Raises:
        InvalidParameterError: there is no such workload or setting, or a value is out of range or of no use.
        TraceFileError: the file cannot be used; it says which line is wrong.
    """
    kind = _kind(name)
    fields = {field.name: field for field in _fields(kind)}
    for key in settings:
        if key not in fields:
            close = difflib.get_close_matches(key, fields, n=1)
            raise InvalidParameterError(
                f"the workload {name} has no setting {key}",
                limit=", ".join(fields),
                remedy=f"did you mean {close[0]}?" if close else None,
            )
    values = {key: _value(key, value, str(fields[key].type)) for key, value in settings.items()}
    if kind is TRACE:
        return TraceFile(Path(name), **values)
    return kind.make(**{**kind.defaults, **values})


def workload_settings(name: str | Path) -> list[Setting]:
    """What can be set about a workload.

    Raises:
        InvalidParameterError: there is none by that name, nor such a file.
    """
    kind = _kind(name)
    settings = []
    for field in _fields(kind):
        default = kind.defaults.get(field.name, field.default)
        settings.append(
            Setting(field.name, None if default is None else str(default), field.metadata["help"])
        )
    return settings


def _kind(name: str | Path) -> WorkloadKind:
    if name in WORKLOADS:
        return WORKLOADS[str(name)]
    if Path(name).expanduser().is_file():
        return TRACE
    if len(Path(name).parts) > 1 or Path(name).suffix:
        raise InvalidParameterError("there is no such trace file", value=str(name), remedy="check the path")
    raise InvalidParameterError(
        "unknown workload",
        value=str(name),
        limit=", ".join(WORKLOADS),
        remedy="name one of these, or a trace file",
    )


def _fields(kind: WorkloadKind) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(kind.make) if "help" in field.metadata]


def _value(name: str, value: Any, type_: str) -> Any:
    """A value from what a user wrote, by the type of the setting."""
    type_name = type_.split(" ")[0]
    convert = _CONVERSIONS.get(type_name)
    if convert is None:
        return value
    if value is None and type_.endswith("None"):
        return None
    try:
        if isinstance(value, str):
            return convert(value)
        if isinstance(value, bool) == (convert is _boolean) and convert(value) == value:
            return value
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidParameterError(f"{name} must be {_KIND_NAMES[type_name]}", value=value)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "yes", "1", "false", "no", "0"):
        return value.lower() in ("true", "yes", "1")
    raise ValueError(value)


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "bool": _boolean}
_KIND_NAMES = {"int": "a whole number", "float": "a number", "bool": "true or false"}
