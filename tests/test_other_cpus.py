"""C1, C2: the kernels, and the whole engine, on this CPU and on emulated ones with other instructions.

All of it is part of scripts/soak: emulation needs the packages qemu-user and g++-aarch64-linux-gnu (Debian's
names), and building the kernel driver takes longer than CI has. CI compares each variant with the oracles
through the extension (tests/kernels).
Tests whose programs are missing are skipped, but fail under LEAFAGE_REQUIRE_PROGRAMS=1 (scripts/soak).
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

# The emulator's CPU, OpenBLAS's kernels that run on it, and the variant that must be chosen there.
MACHINES = [("Haswell", "Haswell", "avx2"), ("Nehalem", "Nehalem", "plain")]

# Architecture, emulated CPU (None: this one), the variant that must be chosen and all that run there.
DRIVERS = [
    ("x86_64", "Haswell", ["avx2", "plain"]),
    ("x86_64", "Nehalem", ["plain"]),
    ("aarch64", "max", ["neon", "plain"]),
    ("aarch64", "neoverse-n1", ["neon", "plain"]),
    ("aarch64", "cortex-a72", ["plain"]),  # no dot products
]
REPOSITORY = Path(__file__).parents[1]
# Where children run: not in the checkout, whose package hides an installed one.
ELSEWHERE = tempfile.gettempdir()


def program(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        why = f"{name} is missing: install the package {package}"
        if os.environ.get("LEAFAGE_REQUIRE_PROGRAMS") == "1":
            pytest.fail(why)
        pytest.skip(why)
    return found


def emulated(cpu: str, blas: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OPENBLAS_CORETYPE": blas}
    environment.pop("LEAFAGE_KERNELS", None)
    return subprocess.run(
        [program("qemu-x86_64", "qemu-user"), "-cpu", cpu, sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=1800,
        env=environment,
        cwd=ELSEWHERE,
        check=False,
    )


@pytest.mark.soak
@pytest.mark.parametrize(("cpu", "blas", "variant"), MACHINES)
def test_c01_chooses_what_the_cpu_has(cpu: str, blas: str, variant: str) -> None:
    code = "from leafage.kernels import _native; print(_native.variant())"
    done = emulated(cpu, blas, "-c", code)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == variant


@pytest.mark.soak
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
        cwd=ELSEWHERE,
        check=True,
    )
    assert done.stdout == native.stdout and done.stdout.strip()
    assert f"kernels: {variant}" in done.stderr
    assert ("warning: the kernels are plain C++" in done.stderr) == (variant == "plain")
    inspect = emulated(cpu, blas, "-m", "leafage", "inspect", str(smollm2_path))
    assert inspect.returncode == 0 and variant in inspect.stdout


@pytest.fixture(scope="session")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs and expected outputs of every op, from the NumPy oracles."""
    path = tmp_path_factory.mktemp("vectors") / "vectors.bin"
    dump = [sys.executable, "-m", "tests.kernels.driver.dump", str(path)]
    subprocess.run(dump, cwd=REPOSITORY, check=True, timeout=900)
    return path


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Builds the kernel driver, a static program, for an architecture."""

    @cache
    def build(architecture: str) -> Path:
        package = "g++" if architecture == platform.machine() else f"g++-{architecture}-linux-gnu"
        compiler = program("g++" if package == "g++" else f"{architecture}-linux-gnu-g++", package)
        folder = tmp_path_factory.mktemp(architecture)
        options = ["-DLEAFAGE_DRIVER=ON", "-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_CXX_COMPILER={compiler}"]
        options.append(f"-DCMAKE_SYSTEM_PROCESSOR={architecture}")
        cmake = program("cmake", "cmake")
        for command in (
            [cmake, "-S", str(REPOSITORY), "-B", str(folder), *options],
            [cmake, "--build", str(folder), "-j", str(os.cpu_count())],
        ):
            done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
            assert "warning:" not in done.stdout + done.stderr
        return folder / "kernel_driver"

    return build


def drive(command: list[str], vectors: Path) -> tuple[str, dict[tuple[str, str], str]]:
    """Run the driver: (the chosen variant, {(variant, op): the bits of its results})."""
    done = subprocess.run([*command, str(vectors)], capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert re.search(r"^total: \d{4,} checks, 0 failed$", done.stdout, re.M), done.stdout[-1000:]
    lines = re.findall(r"^(\w+) +(\w+) +\d+ checks, 0 failed, bits (\w+)$", done.stdout, re.M)
    return done.stdout.split()[1].rstrip(";"), {(variant, op): bits for variant, op, bits in lines}


@pytest.fixture(scope="session")
def here(vectors: Path, driver: Callable[[str], Path]) -> dict[tuple[str, str], str]:
    """Every variant of this CPU against the oracles."""
    return drive([str(driver(platform.machine()))], vectors)[1]


@pytest.mark.timeout(900)
@pytest.mark.soak
def test_c02_all_variants_of_this_cpu_agree_with_the_oracles(here: dict[tuple[str, str], str]) -> None:
    assert {variant for variant, _ in here} >= {"plain"} and len({op for _, op in here}) == 13


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("architecture", "cpu", "variants"), DRIVERS)
def test_c01_every_op_agrees_with_the_oracles_on(
    architecture: str,
    cpu: str,
    variants: list[str],
    vectors: Path,
    driver: Callable[[str], Path],
    here: dict[tuple[str, str], str],
) -> None:
    """A variant's bits are the same on every machine, and NEON's are those of AVX2."""
    emulator = program(f"qemu-{architecture}", "qemu-user")
    chosen, bits = drive([emulator, "-cpu", cpu, str(driver(architecture))], vectors)
    assert chosen == variants[0]
    assert {variant for variant, _ in bits} == set(variants)
    for (variant, op), value in bits.items():
        twin = "avx2" if variant == "neon" else variant
        if twin not in {name for name, _ in here}:
            pytest.skip(f"this CPU has no {twin} to compare with")
        assert value == here[twin, op], f"{variant} {op}: other bits than on this CPU"
