"""Architectures are found by name, and what none of them understands is refused by name."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leafage import models
from leafage.errors import ModelFileError, UnsupportedError
from leafage.formats.model_file import open_model
from leafage.kernels.program import Kind
from leafage.models import gemma3, qwen2, smollm3
from leafage.runtime.load import LoadedModel, load_model

from .tiny_models import Golden, Weights, golden_names, write_folder, write_gguf


def load(path: Path) -> LoadedModel:
    with open_model(path) as model_file:
        return load_model(model_file, compute="float32")


def llama_folder(tmp_path: Path, *, drop: str = "", add: Weights | None = None, **config: Any) -> Path:
    """The tiny llama with a weight less or more, or another config."""
    golden = Golden("llama")
    weights = {name: w for name, w in golden.weights().items() if name != drop}
    return write_folder(tmp_path / "llama", {**golden.config, **config}, {**weights, **(add or {})})


def test_known_architectures_have_what_a_model_needs() -> None:
    own = ["gemma3", "granite", "llama", "qwen2", "qwen3", "smollm3"]
    assert models.known() == sorted([*own, "gemma3_text", "mistral"])
    for module in (importlib.import_module(f"leafage.models.{name}") for name in own):
        assert (
            callable(module.build) and callable(module.Config.from_gguf) and callable(module.Config.from_hf)
        )


def test_unknown_architecture_lists_the_known(tmp_path: Path) -> None:
    path = llama_folder(tmp_path, model_type="mamba")
    with pytest.raises(UnsupportedError, match=r"'mamba'.*gemma3.*llama.*mistral"):
        load(path)


@pytest.mark.parametrize(
    "name", ["decoder", "fields", "tensors", "ropes", "__init__", "../llama", "os", "LLAMA"]
)
def test_helpers_are_no_architectures(name: str, tmp_path: Path) -> None:
    path = llama_folder(tmp_path, model_type=name)
    with pytest.raises(UnsupportedError, match="unknown model architecture"):
        load(path)


@pytest.mark.parametrize("name", golden_names())
def test_the_output_head_and_nothing_else_is_precise(name: str, tmp_path: Path) -> None:
    golden = Golden(name)
    program = load(write_folder(tmp_path / name, golden.config, golden.weights())).program
    precise = [op.params["precise"] for op in program.ops if op.kind is Kind.LINEAR]
    assert precise == [False] * (len(precise) - 1) + [True]


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
        ({"attention.value_length": 32}, UnsupportedError, "another length than keys; got 32; limit: 16"),
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


@pytest.mark.parametrize("name", ["qwen2moe", "qwen3moe", "qwen2_moe", "qwen3_moe", "granitemoe", "qwen2vl"])
def test_relatives_that_are_other_models_are_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=rf"unknown model architecture; got '{name}'.*qwen2, qwen3"):
        load(llama_folder(tmp_path, model_type=name))


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("qwen3", {"expert_count": 128}, r"qwen3\.expert_count \(mixture of experts\).*128"),
        ("qwen2", {"attention.sliding_window": 20}, r"qwen2\.attention\.sliding_window \(.*20"),
        ("qwen3", {"attention.sliding_window": 20}, r"qwen3\.attention\.sliding_window \(.*20"),
        ("smollm3", {"attention.sliding_window": 20}, r"smollm3\.attention\.sliding_window \(.*20"),
    ],
)
def test_gguf_variants_are_refused_by_name(
    name: str, change: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=match):
        load(write_gguf(tmp_path / "model.gguf", Golden(name), change))


def test_granite_without_its_logit_scale_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", Golden("granite"))
    with pytest.raises(ModelFileError, match=r"granite\.logit_scale is missing"):
        load(path)


@pytest.mark.parametrize(
    ("name", "change", "error", "match"),
    [
        ("qwen2_window", {"layer_types": ["full_attention"]}, ModelFileError, "layer_types; got 1; limit: 3"),
        ("qwen2_window", {"layer_types": ["chunked_attention"] * 3}, UnsupportedError, "'chunked_attention'"),
        ("qwen3_window", {"use_sliding_window": False}, ModelFileError, "there is no window"),
        ("qwen3", {"use_sliding_window": "yes"}, ModelFileError, "bad use_sliding_window; got 'yes'"),
        ("smollm3", {"no_rope_layers": [1, 0]}, ModelFileError, "no_rope_layers; got .1, 0.; limit: 5 times"),
        ("smollm3", {"no_rope_layers": 5}, ModelFileError, "no_rope_layers; got 5; limit: 5 times 0 or 1"),
        ("smollm3", {"no_rope_layers": "11101"}, ModelFileError, "no_rope_layers; got '11101'"),
        ("granite", {"residual_multiplier": 0}, ModelFileError, "bad residual_multiplier; got 0"),
    ],
)
def test_bad_configs_of_the_relatives_are_refused_by_name(
    name: str, change: dict[str, Any], error: type[Exception], match: str
) -> None:
    module = importlib.import_module(f"leafage.models.{name.partition('_')[0]}")
    with pytest.raises(error, match=match):
        module.Config.from_hf({**Golden(name).config, **change})


def test_windows_by_the_number_of_the_first_layer() -> None:
    """Files of transformers before 4.52 have no `layer_types`."""
    config = Golden("qwen2_window").config
    del config["layer_types"]
    assert qwen2.Config.from_hf(config) == qwen2.Config.from_hf(Golden("qwen2_window").config)
    assert qwen2.Config.from_hf({**config, "max_window_layers": 3}).layer_windows == (0, 0, 0)
    assert qwen2.Config.from_hf({**config, "use_sliding_window": False}).layer_windows == (0, 0, 0)


def test_nope_layers_by_their_interval() -> None:
    config = Golden("smollm3_window").config
    expected = smollm3.Config.from_hf(config)
    del config["no_rope_layers"], config["layer_types"]
    assert smollm3.Config.from_hf(config) == expected
    assert (expected.has_rope, expected.layer_windows) == ((True, False, True), (0, 20, 0))


def test_a_qwen2_without_its_biases_is_refused(tmp_path: Path) -> None:
    golden = Golden("qwen2")
    weights = {name: w for name, w in golden.weights().items() if not name.endswith("bias")}
    with pytest.raises(ModelFileError, match=r"layers\.0\.self_attn\.q_proj\.bias is missing"):
        load(write_folder(tmp_path / "qwen2", golden.config, weights))


@pytest.mark.parametrize("head_dim", [24, 272])
def test_heads_that_no_kernel_has_are_refused(head_dim: int, tmp_path: Path) -> None:
    golden = Golden("llama")
    for layer in range(3):
        for part, heads in (("q", 4), ("k", 2), ("v", 2)):
            golden.shapes[f"model.layers.{layer}.self_attn.{part}_proj.weight"] = [heads * head_dim, 64]
        golden.shapes[f"model.layers.{layer}.self_attn.o_proj.weight"] = [64, 4 * head_dim]
    path = write_folder(tmp_path / "llama", {**golden.config, "head_dim": head_dim}, golden.weights())
    load(path)
    with (
        open_model(path) as model_file,
        pytest.raises(UnsupportedError, match=rf"multiple of 16 up to 256, got {head_dim}.*float32"),
    ):
        load_model(model_file)


def test_gemma_without_a_window_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", Golden("gemma3"))
    with pytest.raises(ModelFileError, match=r"gemma3\.attention\.sliding_window is missing"):
        load(path)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"use_bidirectional_attention": True}, UnsupportedError, "use_bidirectional_attention"),
        ({"hidden_activation": "relu"}, UnsupportedError, "hidden_activation; got 'relu'"),
        ({"layer_types": ["full_attention"]}, ModelFileError, "layer_types; got 1; limit: 7"),
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
