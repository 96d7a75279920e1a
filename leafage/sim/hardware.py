"""What a device can do, as plain numbers: the data of `hardware.json`, or of a file that was calibrated.

Both the simulator and the engine read them: the engine to weigh swapping against computing again (`--hardware
FILE`; nothing is measured at start-up). `leafage sim calibrate` writes such a file for this machine.

GPUs have their makers' peaks and the efficiencies of the lecture behind this project. CPUs have what was
measured: peaks as `leafage bench` finds them, efficiencies as SmolLM2 135M (Q4_1) reached them.
"""

from __future__ import annotations

import difflib
import json
import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from leafage.errors import InvalidParameterError
from leafage.sim.step_costs import StepCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One device, and its links to the host and to its peers.

    Attributes:
        name: how it is called.
        flops: peak of dense matrix products in the format that it computes in (16 bits on GPUs, 8 on CPUs),
            in operations per second.
        bandwidth: peak of its memory, in bytes per second.
        memory_bytes: its memory; makers count in powers of ten.
        host_bandwidth: to and from the host's memory, or a CPU's swap space in memory, in bytes per second
            each way.
        copy_seconds: overhead of moving one block.
        file_bandwidth: the same for a CPU's swap space in a file, as long as the page cache holds it; 0: not
            known, then it is `host_bandwidth`.
        compute_efficiency, memory_efficiency: shares of both peaks that a step reaches.
        attention_efficiency: share of `flops` that attention reaches; 0: as `compute_efficiency`.
        step_seconds: fixed time of a step.
        memory_share: of the memory, what weights and KV cache may take together.
        link_bandwidth: between devices that share a model, in bytes per second each way; 0: not linked.
        link_seconds: latency of one all-reduce.
        threads: of a CPU, whose `flops` they reach together; 0: not a CPU.
        block_efficiency: (tokens of a block, share of its speed that attention of decode rows keeps, the same
            of prompts), by size; between two sizes by the logarithm. Empty: all of it.
        steps: what steps of one model take, where they were measured; None: a roofline.
    """

    name: str
    flops: float
    bandwidth: float
    memory_bytes: float
    host_bandwidth: float
    copy_seconds: float = 10e-6
    file_bandwidth: float = 0.0
    compute_efficiency: float = 0.7
    memory_efficiency: float = 0.8
    attention_efficiency: float = 0.0
    step_seconds: float = 0.5e-3
    memory_share: float = 0.9
    link_bandwidth: float = 0.0
    link_seconds: float = 10e-6
    threads: int = 0
    block_efficiency: tuple[tuple[int, float, float], ...] = ()
    steps: StepCosts | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name not in ("name", "block_efficiency", "steps"):
                _check(field.name, getattr(self, field.name))
        sizes = [size for size, *_ in self.block_efficiency]
        if sorted(set(sizes)) != sizes or (sizes and sizes[0] < 1):
            raise InvalidParameterError(
                "hardware: block_efficiency is no curve", value=sizes, limit="block sizes from 1 upwards"
            )
        for _, *shares in self.block_efficiency:
            for share in shares:
                _check("block_efficiency", share)

    @property
    def product_flops(self) -> float:
        """What matrix products reach, in operations per second."""
        return self.flops * self.compute_efficiency

    @property
    def attention_flops(self) -> float:
        """What attention reaches, in operations per second."""
        return self.flops * (self.attention_efficiency or self.compute_efficiency)

    def attention_slowdown(self, block_size: int) -> tuple[float, float]:
        """By what attention takes longer with blocks of this size than with contiguous K and V: of decode
        rows, and of prompts."""
        if not self.block_efficiency:
            return 1.0, 1.0
        sizes, *curves = zip(*self.block_efficiency, strict=True)
        after = bisect_right(sizes, block_size)
        if after in (0, len(sizes)):
            decode, prompt = (shares[max(after - 1, 0)] for shares in curves)
            return 1 / decode, 1 / prompt
        low, high = sizes[after - 1], sizes[after]
        part = math.log(block_size / low) / math.log(high / low)
        decode, prompt = (shares[after - 1] + part * (shares[after] - shares[after - 1]) for shares in curves)
        return 1 / decode, 1 / prompt

    def with_threads(self, threads: int) -> Hardware:
        """A CPU of so many threads like these: operations grow with them, the memory stays what it is."""
        if not self.threads or threads == self.threads:
            return self
        return replace(self, flops=self.flops * threads / self.threads, threads=threads, steps=None)

    @classmethod
    def load(cls, name: str) -> Hardware:
        """A device by the name it has in `hardware.json`, or one that a JSON file describes.

        Raises:
            InvalidParameterError: there is no such device or file, or a number is missing, unknown or out of
                range.
        """
        known = _shipped()
        if name in known:
            return cls._of({"name": name, **known[name]})
        path = Path(name).expanduser()
        if not path.is_file():
            close = [each for each in known if name and each.startswith(name.lower())]
            close = close or difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {' or '.join(close)}?"
            raise InvalidParameterError(
                "unknown hardware",
                value=name,
                limit=", ".join(known),
                remedy=meant if close else "name one of these, or a file that `leafage sim calibrate` wrote",
            )
        try:
            numbers = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidParameterError(
                f"the hardware file cannot be read: {error}", value=name, remedy="give a JSON file"
            ) from error
        names = {field.name for field in fields(cls)}
        if not isinstance(numbers, dict):
            raise InvalidParameterError(
                "the hardware file holds no object",
                value=type(numbers).__name__,
                limit="an object with " + ", ".join(sorted(names)),
            )
        if unknown := sorted(set(numbers) - names):
            raise InvalidParameterError(
                "the hardware file holds unknown numbers",
                value=", ".join(unknown),
                limit=", ".join(sorted(names)),
            )
        numbers = {"name": path.stem, **numbers}
        required = [field.name for field in fields(cls) if field.default is MISSING]
        if lacking := [each for each in required if each not in numbers]:
            raise InvalidParameterError(
                f"the hardware file lacks {', '.join(lacking)}", value=name, remedy="add what is missing"
            )
        try:
            return cls._of(numbers)
        except InvalidParameterError:
            raise
        except (TypeError, ValueError) as error:
            raise InvalidParameterError(
                "the hardware file holds a value of the wrong kind",
                value=f"{name}: {error}",
                remedy="block_efficiency is a list of [block size, share, share], and steps an object",
            ) from error

    @classmethod
    def _of(cls, numbers: dict[str, Any]) -> Hardware:
        numbers = dict(numbers)
        if curve := numbers.get("block_efficiency"):
            numbers["block_efficiency"] = tuple((int(size), *shares) for size, *shares in curve)
        if numbers.get("steps") is not None:
            numbers["steps"] = StepCosts.from_dict(numbers["steps"])
        return cls(**numbers)

    @classmethod
    def of_cpu(cls, kernels: str) -> Hardware:
        """The machine in `hardware.json` that stands for an instruction set of the kernels.

        ARM's stands in for itself with AVX2's numbers: no such machine was at hand.
        """
        return cls.load(_CPUS[kernels])

    def save(self, file: Path) -> None:
        """Write what `load` reads."""
        numbers = asdict(self)
        for name in ("block_efficiency", "steps"):
            if not numbers[name]:
                del numbers[name]
        file.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")


_CPUS = {
    "avx512": "zen4-2-threads-avx512",
    "avx2": "zen4-2-threads-avx2",
    "neon": "zen4-2-threads-avx2",
    "plain": "zen4-2-threads-plain",
    "NumPy": "zen4-2-threads-numpy",
}
_MAY_BE_ZERO = (
    "copy_seconds",
    "step_seconds",
    "file_bandwidth",
    "attention_efficiency",
    "link_bandwidth",
    "link_seconds",
    "threads",
)
_SHARES = (
    "compute_efficiency",
    "memory_efficiency",
    "attention_efficiency",
    "memory_share",
    "block_efficiency",
)


def _check(name: str, value: Any) -> None:
    highest = 1 if name in _SHARES else 1e30
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and (0 < value <= highest or (value == 0 and name in _MAY_BE_ZERO)):
        return
    low = "0" if name in _MAY_BE_ZERO else "above 0"
    limit = f"{low} to 1" if name in _SHARES else f"a number, {low} or more" if low == "0" else low
    raise InvalidParameterError(f"hardware: {name} is out of range", value=value, limit=limit)


def known_hardware() -> list[str]:
    """The names in `hardware.json`."""
    return list(_shipped())


@cache
def _shipped() -> Mapping[str, dict[str, Any]]:
    text = Path(__file__).with_name("hardware.json").read_text(encoding="utf-8")
    devices: dict[str, dict[str, Any]] = json.loads(text)
    return devices
