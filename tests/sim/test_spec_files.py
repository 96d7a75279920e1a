from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leafage.errors import InvalidParameterError, LeafageError, ModelFileError, UnsupportedError
from leafage.sim.llm_spec import KNOWN_SPECS, LLMSpec

LLAMA_3_8B: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def folder(path: Path, config: dict[str, Any]) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_a_config_gives_the_known_shape(tmp_path: Path) -> None:
    path = folder(tmp_path / "llama-3-8b", LLAMA_3_8B)
    assert LLMSpec.load(str(path)) == KNOWN_SPECS["llama-3-8b"]
    assert LLMSpec.load(str(path / "config.json")) == KNOWN_SPECS["llama-3-8b"]


def test_opt_has_mlps_of_two_matrices(tmp_path: Path) -> None:
    config = {
        "model_type": "opt",
        "num_hidden_layers": 40,
        "hidden_size": 5120,
        "num_attention_heads": 40,
        "ffn_dim": 20480,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
    }
    spec = LLMSpec.load(str(folder(tmp_path / "opt", config)))
    assert spec.tied_embeddings and spec.num_kv_heads == 40
    assert spec.num_layer_params == pytest.approx(KNOWN_SPECS["opt-13b"].num_layer_params, rel=1e-4)


@pytest.mark.parametrize(
    ("more", "numbers"),
    [
        ({"torch_dtype": "float32"}, {"weight_bytes_each": 4.0}),
        ({"torch_dtype": None, "dtype": "float16"}, {"weight_bytes_each": 2.0}),
        ({"quantization_config": {"bits": 4}}, {"weight_bytes_each": 0.5}),
        ({"head_dim": 64}, {"head_dim": 64}),
        ({"num_key_value_heads": None}, {"num_kv_heads": 32}),
        ({"model_type": "gemma3", "text_config": {"num_hidden_layers": 5}}, {"num_layers": 5}),
    ],
)
def test_what_else_a_config_tells(tmp_path: Path, more: dict[str, Any], numbers: dict[str, Any]) -> None:
    spec = LLMSpec.load(str(folder(tmp_path / "llama-3-8b", LLAMA_3_8B | more)))
    assert spec == replace(KNOWN_SPECS["llama-3-8b"], **numbers)


@pytest.mark.parametrize(
    ("more", "message", "kind"),
    [
        (
            {"model_type": "mixtral", "num_local_experts": 8},
            "mixtral is a mixture of 8 experts",
            UnsupportedError,
        ),
        ({"model_type": "qwen3_moe", "num_experts": 128}, "mixture of 128 experts", UnsupportedError),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, r"latent attention \(MLA\)", UnsupportedError),
        ({"model_type": "mamba"}, "architecture mamba is not a known dense decoder", UnsupportedError),
        ({"num_hidden_layers": None}, "num_hidden_layers; limit: at least 1", ModelFileError),
        ({"hidden_size": "wide"}, "hidden_size; got 'wide'", ModelFileError),
        ({"num_key_value_heads": [8, 4]}, "num_key_value_heads differs between layers", UnsupportedError),
        ({"torch_dtype": "float8"}, "unknown dtype; got 'float8'", UnsupportedError),
        ({"quantization_config": {"quant_method": "fp8"}}, "does not tell the bits", UnsupportedError),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(
    tmp_path: Path, more: dict[str, Any], message: str, kind: type[LeafageError]
) -> None:
    with pytest.raises(kind, match=message):
        LLMSpec.load(str(folder(tmp_path, LLAMA_3_8B | more)))


def write_gguf(path: Path, more: dict[str, Any], *, head: bool) -> Path:
    gguf = pytest.importorskip("gguf")
    np = pytest.importorskip("numpy")
    values = {
        "block_count": 2,
        "embedding_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 32,
        "feed_forward_length": 96,
        "context_length": 512,
        "vocab_size": 320,
    } | more
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in values.items():
        if isinstance(value, list):
            writer.add_array(f"llama.{key}", value)
        elif value is not None:
            writer.add_uint32(f"llama.{key}", value)
    tensors = {"token_embd.weight": (320, 64)} | ({"output.weight": (320, 64)} if head else {})
    for layer in range(2):
        shapes = {"attn_q": (128, 64), "attn_k": (64, 64), "attn_v": (64, 64), "attn_output": (64, 128)}
        shapes |= {"ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96)}
        tensors |= {f"blk.{layer}.{name}.weight": shape for name, shape in shapes.items()}
    for name, shape in tensors.items():
        writer.add_tensor(name, np.zeros(shape, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("head", [True, False])
def test_a_gguf_file_gives_shape_and_mean_bytes(tmp_path: Path, head: bool) -> None:
    spec = LLMSpec.load(str(write_gguf(tmp_path / "small.gguf", {}, head=head)))
    assert (spec.name, spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (
        "small",
        2,
        4,
        2,
        32,
    )
    assert spec.tied_embeddings is not head
    assert spec.weight_bytes_each == 2.0, "all tensors are counted, and no other weights"
    assert spec.context_length == 512 and spec.vocab_size == 320 and spec.intermediate_size == 96


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"expert_count": 8}, "llama is a mixture of 8 experts"),
        ({"attention.kv_lora_rank": 512}, "MLA"),
        ({"attention.head_count_kv": [2, 4]}, "differs between layers"),
        ({"block_count": None}, "block_count"),
    ],
)
def test_gguf_files_that_are_not_modelled(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(LeafageError, match=message):
        LLMSpec.load(str(write_gguf(tmp_path / "m.gguf", more, head=True)))


def test_layers_that_are_alike_may_be_listed(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"attention.head_count_kv": [2, 2]}, head=True)
    assert LLMSpec.load(str(path)).num_kv_heads == 2


def test_unknown_names_and_wrong_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match=r"Did you mean llama-3-8b\?"):
        LLMSpec.load("lama-3-8b")
    (tmp_path / "text.gguf").write_text("no model")
    with pytest.raises(ModelFileError):
        LLMSpec.load(str(tmp_path / "text.gguf"))
    with pytest.raises(LeafageError, match=r"config\.json"):
        LLMSpec.load(str(tmp_path))
