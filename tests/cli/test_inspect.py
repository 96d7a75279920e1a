from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


def test_machine_alone(leafage: Callable) -> None:
    done = leafage("inspect")
    assert done.returncode == 0
    for label in ("CPU features", "kernels", "threads", "memory left"):
        assert label in done.stdout


@pytest.mark.real_model
def test_model(leafage: Callable, smollm2_path: Path) -> None:
    done = leafage("inspect", str(smollm2_path), "--kv-cache-tokens", "1600", "--tensors", "--metadata")
    assert done.returncode == 0, done.stderr
    for text in (
        "architecture       llama",
        "134.5 M",
        "1,600 tokens",
        "100 blocks",
        "for pinned prefixes",
        "Q4_1",
        "pre-tokenizer      smollm",
        "49,152 ids",
        "<|im_end|>",
        "blk.0.attn_q.weight",
        "general.architecture",
    ):
        assert text in done.stdout


@pytest.mark.real_model
def test_the_plan_knows_the_type_of_the_kv_cache(leafage: Callable, smollm2_path: Path) -> None:
    for flags, text in (
        ([], "23,040 bytes, bfloat16"),
        (["--kv-cache-dtype", "int8"], "12,240 bytes, int8"),
        (["--compute", "float32"], "46,080 bytes, float32"),
        (["--kv-cache-dtype", "int4"], "unknown kv_cache_dtype; got 'int4'"),
    ):
        assert text in leafage("inspect", str(smollm2_path), *flags).stdout


@pytest.mark.real_model
def test_base_model_says_that_it_has_no_template(leafage: Callable, gemma3_path: Path) -> None:
    done = leafage("inspect", str(gemma3_path))
    assert done.returncode == 0, done.stderr
    assert "none: a base model" in done.stdout and "gemma3" in done.stdout
