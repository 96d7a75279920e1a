from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leafage.errors import InvalidParameterError
from leafage.hardware import Hardware

NUMBERS = {"ops": 1e11, "attention_flops": 2e11, "copy_bytes": 3e9, "file_bytes": 4e8}


@pytest.mark.parametrize("kernels", ["avx512", "avx2", "neon", "plain", "NumPy"])
def test_every_instruction_set_has_defaults(kernels: str) -> None:
    hardware = Hardware.load(kernels)
    assert min(hardware.ops, hardware.attention_flops, hardware.copy_bytes, hardware.file_bytes) > 0


def test_a_file_replaces_them(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(NUMBERS))
    assert Hardware.load("avx512", str(file)) == Hardware(**NUMBERS)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({**NUMBERS, "ops": 0}, "ops is out of range; got 0"),
        ({**NUMBERS, "ops": "fast"}, "ops is out of range"),
        ({**NUMBERS, "ops": True}, "ops is out of range"),
        ({**NUMBERS, "watts": 5}, "got 'ops, attention_flops, copy_bytes, file_bytes, watts'"),
        ({"ops": 1.0}, "limit: ops, attention_flops, copy_bytes, file_bytes"),
        ([1, 2], "got 'list'"),
    ],
)
def test_other_numbers_are_refused(numbers: Any, message: str, tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(numbers))
    with pytest.raises(InvalidParameterError, match=message):
        Hardware.load("avx512", str(file))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match="cannot be read"):
        Hardware.load("avx512", str(tmp_path / "missing.json"))
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(InvalidParameterError, match="cannot be read"):
        Hardware.load("avx512", str(broken))
