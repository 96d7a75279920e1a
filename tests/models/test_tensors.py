"""Names, shapes and biases of a model file's tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from leafage.errors import ModelFileError
from leafage.formats.model_file import open_model
from leafage.models.tensors import Tensors

from .tiny_models import Golden, write_folder, write_gguf


@pytest.fixture(params=["folder", "gguf"])
def tensors(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tensors]:
    """The tiny llama with biases, without that of the first layer's K."""
    golden = Golden("llama_bias_tied")
    del golden.shapes["model.layers.0.self_attn.k_proj.bias"]
    if request.param == "folder":
        path = write_folder(tmp_path / "llama", golden.config, golden.weights())
    else:
        path = write_gguf(tmp_path / "llama.gguf", golden)
    with open_model(path) as model_file:
        yield Tensors(model_file)


def test_one_name_for_both_formats(tensors: Tensors) -> None:
    assert tensors.has("blk.2.ffn_down.weight") and not tensors.has("blk.3.ffn_down.weight")
    assert not tensors.has("output.weight") and not tensors.has("no such thing.weight")
    weight = tensors.weight("blk.2.ffn_down.weight", 64, 96)
    assert (weight.name, weight.rows, weight.cols) == ("blk.2.ffn_down.weight", 64, 96)
    assert tensors.raw("blk.2.ffn_down.weight").shape == (64, 96)


def test_vectors_are_float32_of_the_size_asked_for(tensors: Tensors) -> None:
    vector = tensors.vector("blk.1.attn_norm.weight", 64)
    expected = Golden("llama_bias_tied").weights()["model.layers.1.input_layernorm.weight"]
    np.testing.assert_array_equal(vector, expected)
    with pytest.raises(ModelFileError, match=r"\(64,\).*\(65,\)"):
        tensors.vector("blk.1.attn_norm.weight", 65)


def test_biases_stand_side_by_side_with_zeros_for_those_missing(tensors: Tensors) -> None:
    names = [f"blk.0.attn_{part}.bias" for part in "qkv"]
    bias = tensors.bias(*names, sizes=(128, 64, 64))
    assert bias is not None and bias.shape == (256,)
    assert bias[:128].any() and not bias[128:192].any() and bias[192:].any()
    assert tensors.bias("blk.0.nothing.bias", "output.bias", sizes=(1, 2)) is None
