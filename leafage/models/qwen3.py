"""Qwen 3 (Qwen Team 2025, arXiv 2505.09388): Qwen 2 without the biases, and with a norm over each head of
queries and keys. The dense models; the mixtures of experts are another architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leafage.kernels.program import Builder, KVSpec, Program
from leafage.models import decoder
from leafage.models.decoder import (
    NOT_WEIGHTS,
    Sizes,
    attention_output,
    gated_mlp,
    gguf_layer_windows,
    gguf_sizes,
    hf_sizes,
    output_head,
    qkv_projection,
)
from leafage.models.fields import gguf_fields, hf_fields
from leafage.models.qwen2 import hf_windows
from leafage.models.ropes import RopeConfig, rope_from_gguf, rope_from_hf
from leafage.models.tensors import Tensors

HF_NAMES = {
    **decoder.HF_NAMES,
    "blk.N.attn_q_norm": "model.layers.N.self_attn.q_norm",
    "blk.N.attn_k_norm": "model.layers.N.self_attn.k_norm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Sizes):
    """The numbers of one model.

    `layer_windows[i]` > 0: in layer i a token sees itself and that many tokens less one before it.
    """

    rope: RopeConfig
    layer_windows: tuple[int, ...]

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Config:
        """Raises ModelFileError for missing or impossible values, UnsupportedError for variants by name."""
        fields = gguf_fields(metadata, "qwen3")
        sizes = gguf_sizes(metadata, fields)
        return cls(
            **sizes,
            rope=rope_from_gguf(fields, sizes["head_dim"]),
            layer_windows=gguf_layer_windows(fields, sizes["num_layers"]),
        )

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Config:
        """Raises ModelFileError for missing or impossible values, UnsupportedError for variants by name."""
        fields = hf_fields(config)
        sizes = hf_sizes(fields, head_dim=128, tied=False)
        return cls(
            **sizes,
            rope=rope_from_hf(fields, sizes["head_dim"]),
            layer_windows=hf_windows(fields, sizes["num_layers"]),
        )


def build(config: Config, tensors: Tensors) -> Program:
    """The forward pass.

    Raises:
        ModelFileError: a tensor is missing or has another shape.
        UnsupportedError: the file has tensors that are not used.
    """
    hidden, eps = config.hidden_size, config.rms_norm_eps
    heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    rope = config.rope.rope(interleaved=False)

    builder = Builder(KVSpec(config.num_layers, kv_heads, head_dim))
    table = tensors.weight("token_embd.weight", config.vocab_size, hidden)
    x = builder.embed(table)
    for layer, window in enumerate(config.layer_windows):
        blk = f"blk.{layer}"
        h = builder.rms_norm(x, tensors.vector(f"{blk}.attn_norm.weight", hidden), eps)
        qkv = qkv_projection(builder, tensors, config, h, blk)
        q_norm = tensors.vector(f"{blk}.attn_q_norm.weight", head_dim)
        k_norm = tensors.vector(f"{blk}.attn_k_norm.weight", head_dim)
        builder.head_norm(qkv, q_norm, eps, column=0, num_heads=heads)
        builder.head_norm(qkv, k_norm, eps, column=config.q_width, num_heads=kv_heads)
        builder.rope(qkv, rope, column=0, num_heads=heads + kv_heads, head_dim=head_dim)
        builder.kv_write(qkv, layer=layer, k_column=config.q_width, v_column=config.q_width + config.kv_width)
        attended = builder.attention(qkv, layer=layer, num_heads=heads, scale=head_dim**-0.5, window=window)
        attention_output(builder, tensors, config, attended, blk, add_to=x)
        h = builder.rms_norm(x, tensors.vector(f"{blk}.ffn_norm.weight", hidden), eps)
        gated_mlp(builder, tensors, config, h, blk, add_to=x)
    logits = output_head(builder, tensors, config, x, tensors.vector("output_norm.weight", hidden), table)
    tensors.refuse_unused(NOT_WEIGHTS)
    return builder.finish(logits)
