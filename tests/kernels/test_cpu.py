"""The variant that is chosen, on this CPU and on smaller ones (LEAFAGE_CPU_WITHOUT)."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import numpy as np
import pytest

from leafage.kernels import _native, native_attention
from tests.kernels.attention_cases import Sequences

FACTS = """
from leafage.kernels import _native
print(_native.variant(), *_native.variants())
print(*_native.attention_variants())
print(*_native.cpu_features())
"""

needs_avx512 = pytest.mark.skipif("avx512" not in _native.variants(), reason="this CPU has no AVX-512")


def facts(**environment: str) -> list[list[str]]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("LEAFAGE_")}
    done = subprocess.run(
        [sys.executable, "-c", FACTS],
        env={**clean, **environment},
        cwd=tempfile.gettempdir(),  # not the checkout: the package that is tested may be the installed one
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.split() for line in done.stdout.splitlines()]


def test_the_best_variant_is_chosen_unless_another_is_named() -> None:
    (chosen, *variants), _, features = facts()
    assert chosen == variants[0] and variants[-1] == "plain"
    for variant in variants:
        assert facts(LEAFAGE_KERNELS=variant)[0][0] == variant
    assert facts(LEAFAGE_CPU_WITHOUT=",".join(features)) == [["plain", "plain"], ["plain"], []]


def test_kernels_that_do_not_run_here_are_refused_at_import() -> None:
    with pytest.raises(subprocess.CalledProcessError) as error:
        facts(LEAFAGE_KERNELS="mmx")
    expected = f"LEAFAGE_KERNELS is mmx, but the kernels that run here are {', '.join(_native.variants())}"
    assert expected in error.value.stderr


@needs_avx512
def test_avx512_does_without_bf16() -> None:
    """Cascade Lake and Ice Lake: AVX-512 with VNNI, attention by float FMA."""
    (chosen, *_), ways, features = facts(LEAFAGE_CPU_WITHOUT="avx512bf16,amx-bf16")
    assert chosen == "avx512" and "avx512bf16" not in features
    assert [way for way in ways if way.startswith("avx512")] == ["avx512-fma"]


@needs_avx512
@pytest.mark.parametrize("feature", ["avx512vnni", "avx512bw", "avx512vl", "avx512dq", "avx512f"])
def test_avx512_needs_the_rest(feature: str) -> None:
    assert facts(LEAFAGE_CPU_WITHOUT=feature)[0][0] == "avx2"
    assert facts(LEAFAGE_CPU_WITHOUT=f"fma,{feature}")[0][0] == "plain"


@needs_avx512
def test_attention_has_the_bits_of_the_way_that_the_cpu_prefers() -> None:
    sequences = Sequences.random(np.random.default_rng(1), [300], num_kv_heads=2, num_heads=6, head_dim=64)
    layer, tables = sequences.paged(16)
    q, inputs = sequences.step(tables, [(0, 260, 300)])
    got = {
        way: native_attention.attention(q, layer, inputs, scale=0.125, variant=way).tobytes()
        for way in ["avx512", *_native.attention_variants()]
    }
    assert got["avx512"] in {bits for way, bits in got.items() if way.startswith("avx512-")}
