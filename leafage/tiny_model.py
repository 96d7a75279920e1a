"""A tiny model with random weights, for demonstrations that need no sense: blocks, sharing, determinism."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CHARACTERS = [*map(chr, range(ord(" "), ord("~") + 1)), "\n"]
"""The vocabulary: one token each, ids in this order."""

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": len(CHARACTERS),
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
_HEAD_GAIN = 2.0
"""Standard deviation of the logits: flat enough to write nonsense, peaked enough for beams to differ."""


def write_tiny_model(folder: Path, seed: int = 0) -> Path:
    """Write a Llama of 100,000 random weights that reads and writes printable ASCII, one token a character.

    Args:
        folder: made if it is not there; its files are overwritten.
        seed: of the weights. They depend on nothing else.

    Returns:
        The folder, a Hugging Face one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_CONFIG), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()), encoding="utf-8")
    generator = np.random.Philox(key=seed)  # its raw numbers are the same in every version of NumPy
    _write_safetensors(
        folder / "model.safetensors",
        {name: _weight(name, shape, generator) for name, shape in _shapes().items()},
    )
    return folder


def _shapes() -> dict[str, tuple[int, ...]]:
    """Of all tensors, by their Hugging Face names."""
    vocab, hidden, inner, heads, kv_heads, head_dim = (
        int(str(_CONFIG[key]))
        for key in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
        )
    )
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(int(str(_CONFIG["num_hidden_layers"]))):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (hidden,),
            f"{prefix}.self_attn.q_proj.weight": (heads * head_dim, hidden),
            f"{prefix}.self_attn.k_proj.weight": (kv_heads * head_dim, hidden),
            f"{prefix}.self_attn.v_proj.weight": (kv_heads * head_dim, hidden),
            f"{prefix}.self_attn.o_proj.weight": (hidden, heads * head_dim),
            f"{prefix}.post_attention_layernorm.weight": (hidden,),
            f"{prefix}.mlp.gate_proj.weight": (inner, hidden),
            f"{prefix}.mlp.up_proj.weight": (inner, hidden),
            f"{prefix}.mlp.down_proj.weight": (hidden, inner),
        }
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}


def _weight(name: str, shape: tuple[int, ...], generator: np.random.Philox) -> NDArray[np.float32]:
    """Norms are 1; matrices are uniform and keep the size of their input, the head's by _HEAD_GAIN."""
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    raw = np.asarray(generator.random_raw(shape[0] * shape[1]), np.uint64)
    uniform = (raw >> np.uint64(40)).astype(np.float64) / 2**23 - 1.0
    gain = _HEAD_GAIN if name == "lm_head.weight" else 1.0
    weight: NDArray[np.float32] = (uniform * gain * np.sqrt(3 / shape[1])).astype(np.float32)
    return weight.reshape(shape)


def _write_safetensors(path: Path, tensors: dict[str, NDArray[np.float32]]) -> None:
    header, end = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(tensor.astype("<f4").tobytes() for tensor in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def _tokenizer() -> dict[str, object]:
    """Characters, and nothing that joins them. What is no printable ASCII reads as question marks."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    written = {" ": "Ġ", "\n": "Ċ"}  # as byte-level vocabularies do
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "?",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {written.get(character, character): i for i, character in enumerate(CHARACTERS)},
            "merges": [],
        },
    }
