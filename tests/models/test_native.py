"""The same tiny models through the native program: 8-bit activations and a 16-bit KV cache leave small
errors, and every setting must reach the kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from leafage.formats.model_file import open_model
from leafage.kernels.native import NativeProgram
from leafage.runtime.load import load_model

from .paged import BLOCK_SIZE, PagedSequence
from .test_golden import FOLDERS_ONLY, GGUF_EXTRA, TINY
from .tiny_models import Golden, write_folder, write_gguf


def native_logits(path: Path, golden: Golden, chunks: list[int]) -> np.ndarray:
    with open_model(path) as model_file:
        model = load_model(model_file, compute="fast")
    length = len(golden.tokens)
    num_blocks = -(-length // BLOCK_SIZE)
    program = NativeProgram(
        model.program,
        model.weights,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_rows=length,
        max_position=length,
        num_threads=2,
    )
    return PagedSequence(program, num_blocks).extend_in(chunks, golden.tokens)


@pytest.mark.parametrize("name", TINY)
def test_native_is_close_to_transformers(name: str, tmp_path: Path) -> None:
    golden = Golden(name)
    path = write_folder(tmp_path / name, golden.config, golden.weights())
    logits = native_logits(path, golden, [])
    assert (logits - golden.logits).std() < 0.01 * golden.logits.std()
    np.testing.assert_array_equal(native_logits(path, golden, [1, 2, 40, 17]), logits)
    if name in FOLDERS_ONLY:
        return
    gguf_path = write_gguf(tmp_path / "model.gguf", golden, GGUF_EXTRA[name])
    # Q and K in another order add in another order.
    np.testing.assert_allclose(native_logits(gguf_path, golden, [30]), logits, atol=0.002)
