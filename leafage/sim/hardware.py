"""What a device can do, as plain numbers: the data of `hardware.json`, or of a file that was calibrated."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from leafage.errors import InvalidParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One device, and its links to the host and to its peers.

    Attributes:
        name: how it is called.
        flops: peak of dense 16-bit matrix products, in operations per second.
        bandwidth: peak of its memory, in bytes per second.
        memory_bytes: its memory; makers count in powers of ten.
        host_bandwidth: to and from the host's memory, in bytes per second each way.
        copy_seconds: overhead of moving one block.
        compute_efficiency, memory_efficiency: shares of both peaks that a step reaches.
        step_seconds: fixed time of a step.
        memory_share: of the memory, what weights and KV cache may take together.
        link_bandwidth: between devices that share a model, in bytes per second each way; 0: not linked.
        link_seconds: latency of one all-reduce.
    """

    name: str
    flops: float
    bandwidth: float
    memory_bytes: float
    host_bandwidth: float
    copy_seconds: float = 10e-6
    compute_efficiency: float = 0.7
    memory_efficiency: float = 0.8
    step_seconds: float = 0.5e-3
    memory_share: float = 0.9
    link_bandwidth: float = 0.0
    link_seconds: float = 10e-6

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name != "name":
                _check(field.name, getattr(self, field.name))

    @classmethod
    def load(cls, name: str) -> Hardware:
        """A device by the name it has in `hardware.json`, or one that a JSON file describes.

        Raises:
            InvalidParameterError: there is no such device or file, or a number is missing, unknown or out of
                range.
        """
        known = _shipped()
        if name in known:
            return cls(name=name, **known[name])
        path = Path(name).expanduser()
        if not path.is_file():
            close = [each for each in known if name and each.startswith(name.lower())]
            close = close or difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {' or '.join(close)}?"
            raise InvalidParameterError(
                "unknown hardware",
                value=name,
                limit=", ".join(known),
                remedy=meant if close else "name one of these, or a JSON file",
            )
        try:
            numbers = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidParameterError(f"the hardware file cannot be read: {error}", value=name) from error
        names = {field.name for field in fields(cls)}
        if not isinstance(numbers, dict):
            raise InvalidParameterError("the hardware file holds no object", value=type(numbers).__name__)
        if unknown := sorted(set(numbers) - names):
            raise InvalidParameterError(
                "the hardware file holds unknown numbers",
                value=", ".join(unknown),
                limit=", ".join(sorted(names)),
            )
        try:
            return cls(**{"name": path.stem, **numbers})
        except TypeError as error:
            raise InvalidParameterError(f"the hardware file lacks a number: {error}", value=name) from error


_MAY_BE_ZERO = ("copy_seconds", "step_seconds", "link_bandwidth", "link_seconds")
_SHARES = ("compute_efficiency", "memory_efficiency", "memory_share")


def _check(name: str, value: Any) -> None:
    highest = 1 if name in _SHARES else 1e30
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and (0 < value <= highest or (value == 0 and name in _MAY_BE_ZERO)):
        return
    limit = "above 0 to 1" if name in _SHARES else "a number from 0" if name in _MAY_BE_ZERO else "above 0"
    raise InvalidParameterError(f"hardware: {name} is out of range", value=value, limit=limit)


def known_hardware() -> list[str]:
    """The names in `hardware.json`."""
    return list(_shipped())


@cache
def _shipped() -> dict[str, dict[str, float]]:
    text = Path(__file__).with_name("hardware.json").read_text(encoding="utf-8")
    devices: dict[str, dict[str, float]] = json.loads(text)
    return devices
