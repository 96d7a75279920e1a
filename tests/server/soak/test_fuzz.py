"""Requests made from the OpenAPI document, valid and not, for minutes: no 5xx but those it declares, no hang.

Needs the package schemathesis (extra `soak`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from leafage.tiny_model import write_tiny_model
from tests.server.soak.rig import serve

pytestmark = pytest.mark.soak
SECONDS = float(os.environ.get("SOAK_FUZZ_SECONDS", "600"))


@pytest.mark.timeout(SECONDS * 2 + 600)
def test_schemathesis_finds_no_fault(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("schemathesis")
    if not program.exists():
        pytest.fail("schemathesis is not installed: pip install '.[soak]'")
    model = write_tiny_model(tmp_path / "tiny")
    with serve(str(model), tmp_path, "--kv-cache-tokens", "4096", "--request-timeout", "20") as server:
        command = [
            str(program),
            "run",
            f"{server.url}/openapi.json",
            "--checks=not_a_server_error",
            "--mode=all",
            "--phases=fuzzing",
            "--continue-on-failure",
            "--request-timeout=60",
            "--workers=4",
            f"--max-time={SECONDS:.0f}",
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS + 300)
        print(done.stdout[-6000:])
        print("==", done.stdout.strip().splitlines()[-1].strip(" ="))
        assert done.returncode == 0, done.stdout[-8000:]
        server.settle()
        answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": "still here?"}, timeout=30)
        assert answer.status_code == 200, json.dumps(answer.json())
