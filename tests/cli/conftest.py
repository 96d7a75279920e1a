from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.conftest import tiny_folder  # noqa: F401 (a fixture)

Result = subprocess.CompletedProcess[str]


@pytest.fixture
def leafage(tmp_path: Path) -> Callable[..., Result]:
    """Run the command line as a user does, in a folder and with a model cache of its own."""

    def run(*words: str, input: str | bytes | None = None, **environment: str) -> Result:
        env = os.environ | {"LEAFAGE_HOME": str(tmp_path / "home"), "NO_COLOR": "1"} | environment
        done = subprocess.run(
            [sys.executable, "-m", "leafage", *words],
            input=input.encode() if isinstance(input, str) else input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            cwd=tmp_path,
            env=env,
            timeout=120,
        )
        return Result(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return run
