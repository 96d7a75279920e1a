"""Speeds of a machine, as plain numbers from a file: what decisions by cost compare, the same in every run.

Nothing is measured at start-up. `hardware.json` holds defaults for each instruction set, as `leafage bench
--calibrate` measured them on two Zen 4 cores (NEON's are AVX2's: no ARM machine was at hand); a file of the
same fields for this machine replaces them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from leafage.errors import InvalidParameterError


@dataclass(frozen=True, slots=True)
class Hardware:
    """Per second. The first two are of one thread.

    Attributes:
        ops: multiplications and additions of matrix products in a prompt, everything around them included.
        attention_flops: the same of a prompt's attention.
        copy_bytes: bytes that move between the KV pool and swap space in memory, checksum included.
        file_bytes: the same for swap space in a file, as long as the page cache holds it.
    """

    ops: float
    attention_flops: float
    copy_bytes: float
    file_bytes: float

    @classmethod
    def load(cls, kernels: str, file: str | None = None) -> Hardware:
        """The defaults of an instruction set (avx512, avx2, neon, plain, or NumPy), or a file's numbers.

        Raises:
            InvalidParameterError: the file cannot be read, or a number is missing, unknown or not positive.
        """
        if file is None:
            shipped = Path(__file__).with_name("hardware.json")
            return cls(**json.loads(shipped.read_text(encoding="utf-8"))[kernels])
        try:
            numbers = json.loads(Path(file).expanduser().read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidParameterError(f"the hardware file cannot be read: {error}", value=file) from error
        names = [field.name for field in fields(cls)]
        if not isinstance(numbers, dict) or set(numbers) != set(names):
            found = ", ".join(map(str, numbers)) if isinstance(numbers, dict) else type(numbers).__name__
            raise InvalidParameterError(
                "the hardware file does not hold the expected numbers", value=found, limit=", ".join(names)
            )
        for name, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:
                raise InvalidParameterError(
                    f"hardware file: {name} is out of range", value=value, limit="a positive number"
                )
        return cls(**numbers)

    def save(self, file: Path) -> None:
        """Write what `load` reads."""
        file.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
