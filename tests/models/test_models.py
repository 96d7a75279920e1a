"""Architectures are found by name, and what none of them understands is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leafage import models
from leafage.errors import ModelFileError, UnsupportedError
from leafage.formats.model_file import open_model
from leafage.models import gemma3, llama
from leafage.runtime.load import LoadedModel, load_model

from .tiny_models import Golden, Weights, write_folder, write_gguf


def load(path: Path) -> LoadedModel:
    with open_model(path) as model_file:
        return load_model(model_file, compute="float32")


def llama_folder(tmp_path: Path, *, drop: str = "", add: Weights | None = None, **config: Any) -> Path:
    """The tiny llama with a weight less or more, or another config."""
    golden = Golden("llama")
    weights = {name: w for name, w in golden.weights().items() if name != drop}
    return write_folder(tmp_path / "llama", {**golden.config, **config}, {**weights, **(add or {})})


def test_known_architectures_have_what_a_model_needs() -> None:
    assert models.known() == ["gemma3", "gemma3_text", "llama", "mistral"]
    for module in (llama, gemma3):
        assert (
            callable(module.build) and callable(module.Config.from_gguf) and callable(module.Config.from_hf)
        )


def test_unknown_architecture_lists_the_known(tmp_path: Path) -> None:
    path = llama_folder(tmp_path, model_type="mamba")
    with pytest.raises(UnsupportedError, match=r"'mamba'.*gemma3.*llama.*mistral"):
        load(path)


@pytest.mark.parametrize("name", ["fields", "tensors", "ropes", "__init__", "../llama", "os", "LLAMA"])
def test_helpers_are_no_architectures(name: str, tmp_path: Path) -> None:
    path = llama_folder(tmp_path, model_type=name)
    with pytest.raises(UnsupportedError, match="unknown model architecture"):
        load(path)


def test_a_missing_tensor_is_named_as_the_file_would_name_it(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(ModelFileError, match=rf"{name} is missing"):
        load(llama_folder(tmp_path, drop=name))


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    wrong = {"model.layers.2.self_attn.k_proj.weight": np.zeros((31, 64), np.float32)}
    with pytest.raises(ModelFileError, match=r"layers\.2\.self_attn\.k_proj.*\(31, 64\).*\(32, 64\)"):
        load(llama_folder(tmp_path, add=wrong))


def test_a_tensor_that_nothing_uses_is_refused(tmp_path: Path) -> None:
    more = {f"model.layers.{i}.self_attn.q_norm.weight": np.ones(16, np.float32) for i in range(3)}
    with pytest.raises(UnsupportedError, match=r"does not use.*q_norm"):
        load(llama_folder(tmp_path, add=more))


def test_stored_frequencies_and_a_second_table_are_no_strangers(tmp_path: Path) -> None:
    stored = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}
    load(llama_folder(tmp_path, add=stored))
    tied = load(llama_folder(tmp_path, tie_word_embeddings=True))
    assert "output.weight" not in tied.weights


def test_an_output_matrix_that_is_declared_must_be_there(tmp_path: Path) -> None:
    path = llama_folder(tmp_path, drop="lm_head.weight")
    with pytest.raises(ModelFileError, match=r"lm_head\.weight is missing"):
        load(path)


def test_tied_as_the_file_has_it_when_nothing_says(tmp_path: Path) -> None:
    path = llama_folder(tmp_path, drop="lm_head.weight", tie_word_embeddings=None)
    assert "output.weight" not in load(path).weights


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"hidden_size": None}, ModelFileError, "hidden_size is missing"),
        ({"num_hidden_layers": 0}, ModelFileError, "bad num_hidden_layers; got 0"),
        ({"num_hidden_layers": 1e30}, ModelFileError, "bad num_hidden_layers"),
        ({"num_hidden_layers": True}, ModelFileError, "bad num_hidden_layers; got True"),
        ({"rms_norm_eps": "small"}, ModelFileError, "bad rms_norm_eps; got 'small'"),
        ({"num_key_value_heads": 3}, ModelFileError, "not a multiple.*4 and 3"),
        ({"hidden_act": "gelu"}, UnsupportedError, "hidden_act; got 'gelu'; limit: silu"),
        ({"rope_parameters": {"rope_type": "longrope"}}, UnsupportedError, "rope_type.*'longrope'.*yarn"),
        ({"rope_parameters": {"rope_type": "linear"}}, ModelFileError, "factor is missing"),
        ({"rope_parameters": {"rope_theta": 0.5}}, ModelFileError, "base of the rotary.*0.5"),
        ({"rope_parameters": [1]}, ModelFileError, "bad rope_parameters"),
        ({"head_dim": 15}, UnsupportedError, "rotary dimension; got 15"),
    ],
)
def test_bad_configs_are_refused_by_name(
    change: dict[str, Any], error: type[Exception], match: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=match):
        load(llama_folder(tmp_path, **change))


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"expert_count": 8}, UnsupportedError, r"llama\.expert_count \(mixture of experts\).*8"),
        ({"attention.value_length": 32}, UnsupportedError, "different length; got 32"),
        ({"attention.head_count_kv": [1, 2, 2]}, ModelFileError, r"bad llama\.attention\.head_count_kv"),
        ({"rope.scaling.type": "longrope", "rope.scaling.factor": 4.0}, UnsupportedError, "'longrope'"),
        ({"rope.freq_base": float("nan")}, ModelFileError, r"bad llama\.rope\.freq_base; got nan"),
        ({"vocab_size": 90}, ModelFileError, r"token_embd\.weight; got \(80, 64\); limit: \(90, 64\)"),
    ],
)
def test_bad_gguf_metadata_is_refused_by_name(
    change: dict[str, Any], error: type[Exception], match: str, tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "model.gguf", Golden("llama"), change)
    with pytest.raises(error, match=match):
        load(path)


def test_gemma_without_a_window_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", Golden("gemma3"))
    with pytest.raises(ModelFileError, match=r"gemma3\.attention\.sliding_window is missing"):
        load(path)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"use_bidirectional_attention": True}, UnsupportedError, "use_bidirectional_attention"),
        ({"hidden_activation": "relu"}, UnsupportedError, "hidden_activation; got 'relu'"),
        ({"layer_types": ["full_attention"]}, ModelFileError, "with and without a window; got 1; limit: 7"),
    ],
)
def test_bad_gemma_configs_are_refused_by_name(
    change: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        gemma3.Config.from_hf({**Golden("gemma3").config, **change})


def test_gemma_27b_scales_its_queries_by_its_width() -> None:
    """The GGUF file does not say so: google/gemma-3-27b-pt, query_pre_attn_scalar 168 = 5376 / 32."""
    metadata: dict[str, Any] = {
        "block_count": 62,
        "embedding_length": 5376,
        "feed_forward_length": 21504,
        "context_length": 131072,
        "attention.head_count": 32,
        "attention.head_count_kv": 16,
        "attention.key_length": 128,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": 1024,
        "rope.freq_base": 1e6,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
        "vocab_size": 262208,
    }
    config = gemma3.Config.from_gguf({f"gemma3.{k}": v for k, v in metadata.items()})
    assert config.attention_scale == pytest.approx(168**-0.5)
    assert config.layer_windows[:7] == (1024, 1024, 1024, 1024, 1024, 0, 1024)
    assert config.local_rope.base == 10_000 and config.local_rope.scaling == "none"
    metadata["block_count"] = 48
    config = gemma3.Config.from_gguf({f"gemma3.{k}": v for k, v in metadata.items()})
    assert config.attention_scale == pytest.approx(128**-0.5)
