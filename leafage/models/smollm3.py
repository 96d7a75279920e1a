"""SmolLM3 (Hugging Face 2025, huggingface.co/blog/smollm3): Llama whose every fourth layer does not turn its
queries and keys (NoPE, Yang et al. 2025, arXiv 2501.18795)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leafage.errors import ModelFileError
from leafage.kernels.program import Builder, KVSpec, Program
from leafage.models.decoder import (
    HF_NAMES,
    NOT_WEIGHTS,
    Sizes,
    attention_output,
    gated_mlp,
    gguf_layer_windows,
    gguf_sizes,
    hf_layer_windows,
    hf_sizes,
    output_head,
    qkv_projection,
)
from leafage.models.fields import Fields, gguf_fields, hf_fields
from leafage.models.ropes import RopeConfig, rope_from_gguf, rope_from_hf
from leafage.models.tensors import Tensors

__all__ = ["HF_NAMES", "Config", "build"]

INTERVAL = 4
"""Every 4th layer has no rotary embedding. GGUF files do not say so; config.json: no_rope_layer_interval."""
ROPE_BASE = 2_000_000.0
"""Default of `rope_theta`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Sizes):
    """The numbers of one model.

    `has_rope[i]`: layer i turns its queries and keys. `layer_windows[i]` > 0: in layer i a token sees itself
    and that many tokens less one before it.
    """

    rope: RopeConfig
    has_rope: tuple[bool, ...]
    layer_windows: tuple[int, ...]

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Config:
        """Raises ModelFileError for missing or impossible values, UnsupportedError for variants by name."""
        fields = gguf_fields(metadata, "smollm3")
        sizes = gguf_sizes(metadata, fields)
        num_layers = sizes["num_layers"]
        return cls(
            **sizes,
            rope=rope_from_gguf(fields, sizes["head_dim"]),
            has_rope=_every(INTERVAL, num_layers),
            layer_windows=gguf_layer_windows(fields, num_layers),
        )

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Config:
        """Raises ModelFileError for missing or impossible values, UnsupportedError for variants by name."""
        fields = hf_fields(config)
        sizes = hf_sizes(fields, tied=True)
        num_layers = sizes["num_layers"]
        has_rope = _every(fields.integer("no_rope_layer_interval", INTERVAL), num_layers)
        # For all its name, a list of 1 for layers with a rotary embedding and 0 for those without.
        flags = fields.get("no_rope_layers")
        if flags is not None:
            if (
                not isinstance(flags, list)
                or len(flags) != num_layers
                or any(flag not in (0, 1) for flag in flags)
            ):
                raise ModelFileError(
                    "config.json: no_rope_layers", value=flags, limit=f"{num_layers} times 0 or 1"
                )
            has_rope = tuple(bool(flag) for flag in flags)
        return cls(
            **sizes,
            rope=rope_from_hf(fields, sizes["head_dim"], default_base=ROPE_BASE),
            has_rope=has_rope,
            layer_windows=_hf_windows(fields, has_rope),
        )


def build(config: Config, tensors: Tensors) -> Program:
    """The forward pass.

    Raises:
        ModelFileError: a tensor is missing or has another shape.
        UnsupportedError: the file has tensors that are not used.
    """
    hidden, eps = config.hidden_size, config.rms_norm_eps
    heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    # GGUF files hold the rows of Q and K in an order that pairs neighbours.
    rope = config.rope.rope(interleaved=not tensors.is_hf)

    builder = Builder(KVSpec(config.num_layers, kv_heads, head_dim))
    table = tensors.weight("token_embd.weight", config.vocab_size, hidden)
    x = builder.embed(table)
    for layer, window in enumerate(config.layer_windows):
        blk = f"blk.{layer}"
        h = builder.rms_norm(x, tensors.vector(f"{blk}.attn_norm.weight", hidden), eps)
        qkv = qkv_projection(builder, tensors, config, h, blk)
        if config.has_rope[layer]:
            builder.rope(qkv, rope, column=0, num_heads=heads + kv_heads, head_dim=head_dim)
        builder.kv_write(qkv, layer=layer, k_column=config.q_width, v_column=config.q_width + config.kv_width)
        attended = builder.attention(qkv, layer=layer, num_heads=heads, scale=head_dim**-0.5, window=window)
        attention_output(builder, tensors, config, attended, blk, add_to=x)
        h = builder.rms_norm(x, tensors.vector(f"{blk}.ffn_norm.weight", hidden), eps)
        gated_mlp(builder, tensors, config, h, blk, add_to=x)
    logits = output_head(builder, tensors, config, x, tensors.vector("output_norm.weight", hidden), table)
    tensors.refuse_unused(NOT_WEIGHTS)
    return builder.finish(logits)


def _every(interval: int, num_layers: int) -> tuple[bool, ...]:
    """True for every layer but each `interval`-th."""
    return tuple((layer + 1) % interval != 0 for layer in range(num_layers))


def _hf_windows(fields: Fields, has_rope: tuple[bool, ...]) -> tuple[int, ...]:
    """The window of each layer: by `layer_types`, or in the layers without a rotary embedding."""
    use_window = fields.flag("use_sliding_window", False)
    window = fields.integer("sliding_window", 0, at_least=0) if use_window else 0
    windows = hf_layer_windows(fields, len(has_rope), window)
    return windows if windows is not None else tuple(0 if turned else window for turned in has_rope)
