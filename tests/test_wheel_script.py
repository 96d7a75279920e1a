"""The pure parts of scripts/wheel; the whole of it is the stage "wheel" of scripts/soak."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "wheel"


@pytest.fixture(scope="module")
def wheel() -> ModuleType:
    loader = SourceFileLoader("wheel_script", str(SCRIPT))
    spec = importlib.util.spec_from_loader("wheel_script", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["wheel_script"] = module  # where dataclasses look their annotations up
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "glibc"),
    [
        ("leafage-0.1.0-cp311-cp311-manylinux_2_27_x86_64.whl", (2, 27)),
        ("leafage-0.1.0-cp312-abi3-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl", (2, 27)),
        ("leafage-0.1.0-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", (2, 17)),
    ],
)
def test_glibc_of_a_wheel(wheel: ModuleType, name: str, glibc: tuple[int, int]) -> None:
    assert wheel.glibc_of(name) == glibc


@pytest.mark.parametrize("tag", ["linux_x86_64", "macosx_11_0_arm64", "manylinux_2_28_aarch64"])
def test_other_wheels_are_refused(wheel: ModuleType, tag: str) -> None:
    with pytest.raises(ValueError, match=tag):
        wheel.glibc_of(f"leafage-0.1.0-cp311-cp311-{tag}.whl")


def test_wanted_variants_follow_the_cpu(wheel: ModuleType) -> None:
    haswell = {"avx2", "fma", "bmi2", "f16c"}
    ice_lake = haswell | {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}
    assert wheel.wanted_variants({"sse4_2"}) == ["plain"]
    assert wheel.wanted_variants(haswell) == ["avx2", "plain"]
    assert wheel.wanted_variants(ice_lake - {"avx512_vnni"}) == ["avx2", "plain"]
    assert wheel.wanted_variants(ice_lake) == ["avx512", "avx2", "plain"]


def test_wanted_variants_are_those_that_the_extension_offers_here(wheel: ModuleType) -> None:
    from leafage.kernels import _native

    assert wheel.wanted_variants(wheel.cpu_flags()) == _native.variants()


def test_compilers_on_a_path(wheel: ModuleType, tmp_path: Path) -> None:
    assert wheel.compilers_on(str(tmp_path)) == []
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    assert wheel.compilers_on(f"/nowhere:{tmp_path}") == ["g++"]


def test_a_limit_says_whether_it_is_kept(wheel: ModuleType) -> None:
    kept, missed = wheel.Limit("wheel", 15.0, 15.0, "MB"), wheel.Limit("wheel", 15.1, 15.0, "MB")
    assert kept.kept and str(kept).endswith("ok")
    assert not missed.kept and "TOO MUCH" in str(missed) and "15.1" in str(missed)
