"""Requests made from the OpenAPI document, valid and not, for minutes: no 5xx but those it declares, no hang.

Needs the package schemathesis (extra `soak`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from leafage.tiny_model import write_tiny_model
from tests.server.process import ask
from tests.server.soak.rig import serving, settle

pytestmark = pytest.mark.soak
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
FAULT_OF_PYTHON = "SystemError: AST constructor recursion depth mismatch"
"""In CPython 3.11, now and then, when threads of the client parse their own source; no answer matters."""
SECONDS = float(os.environ.get("SOAK_FUZZ_SECONDS", "600"))


@pytest.mark.timeout(SECONDS * 2 + 600)
def test_schemathesis_finds_no_fault(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("schemathesis")
    if not program.exists():
        pytest.fail("schemathesis is not installed: pip install '.[soak]'")
    model = write_tiny_model(tmp_path / "tiny")
    with serving(str(model), "--kv-cache-tokens", "4096", "--request-timeout", "20") as server:
        command = [
            str(program),
            "run",
            f"http://127.0.0.1:{server.port}/openapi.json",
            f"--checks={','.join(CHECKS)}",
            "--mode=all",
            "--phases=coverage,fuzzing,stateful",
            "--continue-on-failure",
            "--request-timeout=60",
            "--workers=4",
            f"--max-time={SECONDS:.0f}",
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS + 300)
        print(done.stdout[-6000:])
        print("==", re.findall(r"\d+ generated, .*", done.stdout)[-1], f"in {SECONDS:.0f} s")
        assert _is_good(done.stdout, done.returncode), done.stdout[-8000:]
        settle(server)
        assert ask(server.port, "/v1/completions", {"prompt": "still here?"}).status == 200


def _is_good(report: str, code: int) -> bool:
    """Whether every request passed, and nothing went wrong in the client that is not Python's own fault."""
    generated, passed = map(int, re.findall(r"(\d+) generated, (\d+) passed$", report, re.MULTILINE)[-1])
    num_errors = sum(map(int, re.findall(r"= .*?(\d+) errors?\b.* =", report)))
    return generated == passed and (code == 0 or 0 < num_errors == report.count(FAULT_OF_PYTHON))
