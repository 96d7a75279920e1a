"""Granite 3 (IBM 2024, "Granite 3.0 Language Models"): Llama with four multipliers in its metadata, on the
embedding, on what each half of a layer adds, on the attention scores and on the logits. The dense models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leafage.kernels.program import Builder, KVSpec, Program
from leafage.models.decoder import (
    HF_NAMES,
    NOT_WEIGHTS,
    Sizes,
    attention_output,
    gated_mlp,
    gguf_sizes,
    hf_sizes,
    output_head,
    qkv_projection,
)
from leafage.models.fields import gguf_fields, hf_fields
from leafage.models.ropes import RopeConfig, rope_from_gguf, rope_from_hf
from leafage.models.tensors import Tensors

__all__ = ["HF_NAMES", "Config", "build"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Sizes):
    """The numbers of one model.

    Attributes:
        attention_multiplier: scale of the attention scores.
        embedding_multiplier: what embeddings are multiplied by.
        residual_multiplier: what attention and MLP are multiplied by before they are added.
        logits_scaling: what the logits are divided by.
    """

    rope: RopeConfig
    attention_multiplier: float
    embedding_multiplier: float
    residual_multiplier: float
    logits_scaling: float

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Config:
        """Raises ModelFileError for missing or impossible values, UnsupportedError for variants by name."""
        fields = gguf_fields(metadata, "granite")
        sizes = gguf_sizes(metadata, fields)
        return cls(
            **sizes,
            rope=rope_from_gguf(fields, sizes["head_dim"]),
            attention_multiplier=fields.number("attention.scale", sizes["head_dim"] ** -0.5),
            embedding_multiplier=fields.number("embedding_scale", 1.0),
            residual_multiplier=fields.number("residual_scale", 1.0),
            logits_scaling=fields.number("logit_scale"),
        )

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Config:
        """Raises ModelFileError for missing or impossible values, UnsupportedError for variants by name."""
        fields = hf_fields(config)
        sizes = hf_sizes(fields, tied=False)
        return cls(
            **sizes,
            rope=rope_from_hf(fields, sizes["head_dim"]),
            attention_multiplier=fields.number("attention_multiplier", 1.0),
            embedding_multiplier=fields.number("embedding_multiplier", 1.0),
            residual_multiplier=fields.number("residual_multiplier", 1.0),
            logits_scaling=fields.number("logits_scaling", 1.0),
        )


def build(config: Config, tensors: Tensors) -> Program:
    """The forward pass.

    The multipliers cost nothing: x is kept divided by residual_multiplier r, so that the halves of a layer
    add to it as they are. A norm does not see the factor when its eps is divided by r^2.

    Raises:
        ModelFileError: a tensor is missing or has another shape.
        UnsupportedError: the file has tensors that are not used.
    """
    hidden = config.hidden_size
    heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    eps = config.rms_norm_eps / config.residual_multiplier**2
    # GGUF files hold the rows of Q and K in an order that pairs neighbours.
    rope = config.rope.rope(interleaved=not tensors.is_hf)

    builder = Builder(KVSpec(config.num_layers, kv_heads, head_dim))
    table = tensors.weight("token_embd.weight", config.vocab_size, hidden)
    x = builder.embed(table, scale=config.embedding_multiplier / config.residual_multiplier)
    for layer in range(config.num_layers):
        blk = f"blk.{layer}"
        h = builder.rms_norm(x, tensors.vector(f"{blk}.attn_norm.weight", hidden), eps)
        qkv = qkv_projection(builder, tensors, config, h, blk)
        builder.rope(qkv, rope, column=0, num_heads=heads + kv_heads, head_dim=head_dim)
        builder.kv_write(qkv, layer=layer, k_column=config.q_width, v_column=config.q_width + config.kv_width)
        attended = builder.attention(qkv, layer=layer, num_heads=heads, scale=config.attention_multiplier)
        attention_output(builder, tensors, config, attended, blk, add_to=x)
        h = builder.rms_norm(x, tensors.vector(f"{blk}.ffn_norm.weight", hidden), eps)
        gated_mlp(builder, tensors, config, h, blk, add_to=x)
    norm = tensors.vector("output_norm.weight", hidden) / config.logits_scaling
    logits = output_head(builder, tensors, config, x, norm, table, eps)
    tensors.refuse_unused(NOT_WEIGHTS)
    return builder.finish(logits)
