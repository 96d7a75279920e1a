from __future__ import annotations

import numpy as np
import pytest
from comparison import llama1b

from leafage.formats import open_model
from leafage.formats.dequantize import dequantize
from leafage.llm import LLM

SMALL = {"layers": 2, "hidden": 256, "ffn": 512, "vocabulary": 600}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    pytest.importorskip("gguf")
    path = tmp_path_factory.mktemp("llama1b") / "small.gguf"
    llama1b.write(path, **SMALL)
    return path


def test_the_same_file_every_time(path, tmp_path) -> None:
    llama1b.write(tmp_path / "again.gguf", **SMALL)
    assert path.read_bytes() == (tmp_path / "again.gguf").read_bytes()


def test_weights_are_of_a_sane_size(path) -> None:
    with open_model(path) as model:
        for name, dtype in (("token_embd", "Q6_K"), ("blk.0.attn_q", "Q4_0"), ("blk.1.ffn_down", "Q4_0")):
            tensor = model.tensors[f"{name}.weight"]
            assert tensor.dtype == dtype
            weights = dequantize(dtype, tensor.data, tensor.shape)
            assert np.sqrt(np.mean(weights**2)) == pytest.approx(llama1b.WEIGHT_RMS, rel=0.1)
        assert model.tensors["blk.0.attn_k.weight"].shape == (64, 256)


def test_it_answers(path) -> None:
    with LLM(str(path), kv_cache_tokens=256) as llm:
        output = llm.generate([[300, 301, 302]])[0].outputs[0]
    assert output.token_ids and output.finish_reason in ("stop", "length")
