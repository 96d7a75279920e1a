"""Llama (Touvron et al. 2023, arXiv 2302.13971; Llama 3, arXiv 2407.21783) and what shares its form: SmolLM2,
Mistral with its sliding window (arXiv 2310.06825)."""

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

    `sliding_window` > 0: a token sees itself and the sliding_window - 1 tokens before it, in every layer.
    """

    rope: RopeConfig
    attention_scale: float
    sliding_window: int = 0

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Config:
        """Raises ModelFileError for missing or impossible values, UnsupportedError for variants by name."""
        fields = gguf_fields(metadata, "llama")
        sizes = gguf_sizes(metadata, fields)
        head_dim = sizes["head_dim"]
        return cls(
            **sizes,
            rope=rope_from_gguf(fields, head_dim),
            attention_scale=fields.number("attention.scale", head_dim**-0.5),
            sliding_window=fields.integer("attention.sliding_window", 0, at_least=0),
        )

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Config:
        """Raises ModelFileError for missing or impossible values, UnsupportedError for variants by name."""
        fields = hf_fields(config)
        sizes = hf_sizes(fields)
        # Only Mistral has a window; LlamaConfig takes the key and ignores it.
        is_mistral = fields.get("model_type") == "mistral"
        return cls(
            **sizes,
            rope=rope_from_hf(fields, sizes["head_dim"]),
            attention_scale=sizes["head_dim"] ** -0.5,
            sliding_window=fields.integer("sliding_window", 0, at_least=0) if is_mistral else 0,
        )


def build(config: Config, tensors: Tensors) -> Program:
    """The forward pass.

    Raises:
        ModelFileError: a tensor is missing or has another shape.
        UnsupportedError: the file has tensors that are not used.
    """
    hidden, eps = config.hidden_size, config.rms_norm_eps
    heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    factors = None
    if tensors.has("rope_freqs.weight"):
        factors = tensors.vector("rope_freqs.weight", config.rope.rotary_dim // 2)
    # GGUF files hold the rows of Q and K in an order that pairs neighbours.
    rope = config.rope.rope(interleaved=not tensors.is_hf, freq_factors=factors)

    builder = Builder(KVSpec(config.num_layers, kv_heads, head_dim))
    table = tensors.weight("token_embd.weight", config.vocab_size, hidden)
    x = builder.embed(table)
    for layer in range(config.num_layers):
        blk = f"blk.{layer}"
        h = builder.rms_norm(x, tensors.vector(f"{blk}.attn_norm.weight", hidden), eps)
        qkv = qkv_projection(builder, tensors, config, h, blk)
        builder.rope(qkv, rope, column=0, num_heads=heads + kv_heads, head_dim=head_dim)
        builder.kv_write(qkv, layer=layer, k_column=config.q_width, v_column=config.q_width + config.kv_width)
        attended = builder.attention(
            qkv,
            layer=layer,
            num_heads=heads,
            scale=config.attention_scale,
            window=config.sliding_window,
        )
        attention_output(builder, tensors, config, attended, blk, add_to=x)
        h = builder.rms_norm(x, tensors.vector(f"{blk}.ffn_norm.weight", hidden), eps)
        gated_mlp(builder, tensors, config, h, blk, add_to=x)
    logits = output_head(builder, tensors, config, x, tensors.vector("output_norm.weight", hidden), table)
    tensors.refuse_unused(NOT_WEIGHTS)
    return builder.finish(logits)
