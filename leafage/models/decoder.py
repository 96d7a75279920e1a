"""What the decoder-only transformers of this package have in common: the sizes, and the parts of a layer that
do not differ from one to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from leafage.errors import ModelFileError, UnsupportedError
from leafage.kernels.program import Buffer, Builder, Weight
from leafage.models.fields import Fields, gguf_vocab_size
from leafage.models.tensors import Tensors

HF_NAMES = {
    "token_embd": "model.embed_tokens",
    "blk.N.attn_norm": "model.layers.N.input_layernorm",
    "blk.N.attn_q": "model.layers.N.self_attn.q_proj",
    "blk.N.attn_k": "model.layers.N.self_attn.k_proj",
    "blk.N.attn_v": "model.layers.N.self_attn.v_proj",
    "blk.N.attn_output": "model.layers.N.self_attn.o_proj",
    "blk.N.ffn_norm": "model.layers.N.post_attention_layernorm",
    "blk.N.ffn_gate": "model.layers.N.mlp.gate_proj",
    "blk.N.ffn_up": "model.layers.N.mlp.up_proj",
    "blk.N.ffn_down": "model.layers.N.mlp.down_proj",
    "output_norm": "model.norm",
    "output": "lm_head",
}
"""Hugging Face names by GGUF name of a decoder with a norm before each half of a layer."""

NOT_WEIGHTS = r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq|lm_head\.weight"
"""Tensors of folders that `build` may leave alone: old ones store what is computed from the config, tied ones
may store the table twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The numbers that every architecture has; its `Config` adds its own."""

    vocab_size: int
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    tied_embeddings: bool | None = None
    """None: as the file has it; with a matrix `output` of its own, or without."""

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ModelFileError(
                "the number of attention heads is not a multiple of the number of K/V heads",
                value=f"{self.num_heads} and {self.num_kv_heads}",
            )

    @property
    def q_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_dim


def gguf_sizes(metadata: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """The fields of `Sizes` from GGUF metadata.

    Raises:
        ModelFileError: a value is missing or impossible.
        UnsupportedError: a mixture of experts, or keys and values of different length.
    """
    fields.refuse("expert_count", "mixture of experts")
    hidden_size, num_heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    head_dim = fields.integer("attention.key_length", hidden_size // num_heads)
    if fields.integer("attention.value_length", head_dim) != head_dim:
        raise UnsupportedError(
            f"{fields.where}: values of another length than keys",
            value=fields.get("attention.value_length"),
            limit=head_dim,
        )
    return {
        "vocab_size": gguf_vocab_size(metadata, fields),
        "num_layers": fields.integer("block_count"),
        "hidden_size": hidden_size,
        "intermediate_size": fields.integer("feed_forward_length"),
        "num_heads": num_heads,
        "num_kv_heads": fields.integer("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position": fields.integer("context_length"),
        "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon"),
    }


def hf_sizes(fields: Fields, *, head_dim: int | None = None, tied: bool | None = None) -> dict[str, Any]:
    """The fields of `Sizes` from config.json, for a model with SwiGLU.

    Args:
        head_dim: when config.json has none; by default hidden_size / num_attention_heads.
        tied: `tied_embeddings` when config.json does not say.

    Raises:
        ModelFileError: a value is missing or impossible.
        UnsupportedError: another activation.
    """
    if fields.text("hidden_act", "silu") != "silu":
        raise UnsupportedError("config.json: hidden_act", value=fields.get("hidden_act"), limit="silu")
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    return {
        "vocab_size": fields.integer("vocab_size"),
        "num_layers": fields.integer("num_hidden_layers"),
        "hidden_size": hidden_size,
        "intermediate_size": fields.integer("intermediate_size"),
        "num_heads": num_heads,
        "num_kv_heads": fields.integer("num_key_value_heads", num_heads),
        "head_dim": fields.integer("head_dim", head_dim or hidden_size // num_heads),
        "max_position": fields.integer("max_position_embeddings"),
        "rms_norm_eps": fields.number("rms_norm_eps", 1e-6),
        "tied_embeddings": (
            fields.flag("tie_word_embeddings") if fields.has("tie_word_embeddings") else tied
        ),
    }


def gguf_layer_windows(fields: Fields, num_layers: int) -> tuple[int, ...]:
    """No window in any layer: where only some layers have one, GGUF files do not say which.

    Raises:
        UnsupportedError: the file has a window.
    """
    fields.refuse("attention.sliding_window", "a sliding window, in layers that the file does not name,")
    return (0,) * num_layers


def hf_layer_windows(fields: Fields, num_layers: int, window: int) -> tuple[int, ...] | None:
    """The window of each layer as `layer_types` says, 0 for none; None when config.json has no such list.

    Raises:
        ModelFileError: the list has another length, or a sliding layer without `window`.
        UnsupportedError: a layer is of another type.
    """
    if not fields.has("layer_types"):
        return None
    types = fields.get("layer_types")
    if not isinstance(types, list) or len(types) != num_layers:
        got = len(types) if isinstance(types, list) else types
        raise ModelFileError("config.json: number of layer_types", value=got, limit=num_layers)
    for kind in types:
        if kind not in ("full_attention", "sliding_attention"):
            raise UnsupportedError(
                "config.json: layer_types", value=kind, limit="full_attention, sliding_attention"
            )
    if "sliding_attention" in types and not window:
        raise ModelFileError(
            "config.json: layer_types has sliding_attention, but there is no window",
            value=f"use_sliding_window {fields.get('use_sliding_window')}, sliding_window "
            f"{fields.get('sliding_window')}",
        )
    return tuple(window if kind == "sliding_attention" else 0 for kind in types)


def qkv_projection(builder: Builder, tensors: Tensors, sizes: Sizes, h: Buffer, blk: str) -> Buffer:
    """Queries, keys and values side by side [rows, q_width + 2 kv_width], with the biases of the file."""
    widths = (sizes.q_width, sizes.kv_width, sizes.kv_width)
    names = (f"{blk}.attn_q", f"{blk}.attn_k", f"{blk}.attn_v")
    return builder.linear(
        h,
        *(tensors.weight(f"{n}.weight", w, sizes.hidden_size) for n, w in zip(names, widths, strict=True)),
        bias=tensors.bias(*(f"{name}.bias" for name in names), sizes=widths),
    )


def attention_output(
    builder: Builder, tensors: Tensors, sizes: Sizes, h: Buffer, blk: str, *, add_to: Buffer | None = None
) -> Buffer:
    """The projection behind the attention [rows, hidden_size], with the bias that the file has."""
    return builder.linear(
        h,
        tensors.weight(f"{blk}.attn_output.weight", sizes.hidden_size, sizes.q_width),
        bias=tensors.bias(f"{blk}.attn_output.bias", sizes=(sizes.hidden_size,)),
        add_to=add_to,
    )


def gated_mlp(
    builder: Builder,
    tensors: Tensors,
    sizes: Sizes,
    h: Buffer,
    blk: str,
    activation: str = "silu",
    *,
    add_to: Buffer | None = None,
) -> Buffer:
    """down(activation(gate(h)) * up(h)) [rows, hidden_size], with the biases that the file has."""
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    gate_up = builder.linear(
        h,
        tensors.weight(f"{blk}.ffn_gate.weight", inner, hidden),
        tensors.weight(f"{blk}.ffn_up.weight", inner, hidden),
        bias=tensors.bias(f"{blk}.ffn_gate.bias", f"{blk}.ffn_up.bias", sizes=(inner, inner)),
    )
    return builder.linear(
        builder.act_mul(gate_up, activation),
        tensors.weight(f"{blk}.ffn_down.weight", hidden, inner),
        bias=tensors.bias(f"{blk}.ffn_down.bias", sizes=(hidden,)),
        add_to=add_to,
    )


def output_head(
    builder: Builder,
    tensors: Tensors,
    sizes: Sizes,
    x: Buffer,
    norm: np.ndarray,
    table: Weight,
    eps: float | None = None,
) -> Buffer:
    """Logits [logit rows, vocab_size] of the last layer's `x`: a norm, then `table` again or `output`.

    Args:
        norm: weight of the norm.
        eps: of the norm, where it isn't `rms_norm_eps`.
    """
    x = builder.rms_norm(builder.select_logit_rows(x), norm, sizes.rms_norm_eps if eps is None else eps)
    tied = sizes.tied_embeddings
    if tied is None:
        tied = not tensors.has("output.weight")
    head = table if tied else tensors.weight("output.weight", sizes.vocab_size, sizes.hidden_size)
    return builder.linear(x, head, precise=True)
