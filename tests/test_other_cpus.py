"""C1: the extension on CPUs with fewer instructions, emulated. Part of scripts/soak: needs qemu-user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.soak

# The emulator's CPU, OpenBLAS's kernels that run on it, and the variant that must be chosen there.
MACHINES = [("Haswell", "Haswell", "avx2"), ("Nehalem", "Nehalem", "plain")]


def emulated(cpu: str, blas: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    qemu = shutil.which("qemu-x86_64")
    if qemu is None:
        pytest.fail("qemu-x86_64 is missing: install the package qemu-user")
    environment = {**os.environ, "OPENBLAS_CORETYPE": blas}
    environment.pop("LEAFAGE_KERNELS", None)
    return subprocess.run(
        [qemu, "-cpu", cpu, sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=1800,
        env=environment,
        check=False,
    )


@pytest.mark.parametrize(("cpu", "blas", "variant"), MACHINES)
def test_c01_chooses_what_the_cpu_has(cpu: str, blas: str, variant: str) -> None:
    code = "from leafage.kernels import _native; print(_native.variant())"
    done = emulated(cpu, blas, "-c", code)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == variant


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("cpu", "blas", "variant"), MACHINES)
def test_c01_answers_and_names_the_variant(cpu: str, blas: str, variant: str, smollm2_path: Path) -> None:
    """The answer is that of the same variant on the real CPU: no illegal instruction, same bits."""
    run = ["-m", "leafage", "run", "The capital of France is", "--model", str(smollm2_path)]
    run += ["--max-tokens", "6", "--temperature", "0", "--kv-cache-tokens", "256"]
    done = emulated(cpu, blas, *run)
    assert done.returncode == 0, done.stderr[-2000:]
    native = subprocess.run(
        [sys.executable, *run],
        capture_output=True,
        text=True,
        env={**os.environ, "LEAFAGE_KERNELS": variant},
        check=True,
    )
    assert done.stdout == native.stdout and done.stdout.strip()
    inspect = emulated(cpu, blas, "-m", "leafage", "inspect", str(smollm2_path))
    assert inspect.returncode == 0 and variant in inspect.stdout
