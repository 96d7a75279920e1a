"""Gemma 3 (Gemma Team 2025, arXiv 2503.19786): QK-norm, norms before and after each half of a layer, GeGLU,
five layers with a sliding window to each one without. The text part of multimodal checkpoints too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from leafage.errors import ModelFileError, UnsupportedError
from leafage.kernels.program import Builder, KVSpec, Program
from leafage.models import decoder
from leafage.models.decoder import (
    Sizes,
    attention_output,
    gated_mlp,
    gguf_sizes,
    hf_layer_windows,
    output_head,
    qkv_projection,
)
from leafage.models.fields import Fields, gguf_fields, hf_fields
from leafage.models.ropes import RopeConfig, rope_from_gguf, rope_from_hf
from leafage.models.tensors import Tensors

# What GGUF files of Gemma 3 do not say. Source: the models' config.json on the Hugging Face hub
# (google/gemma-3-270m, -1b-pt, -4b-pt, -12b-pt, -27b-pt) and the report, section 2.
LOCAL_ROPE_BASE = 10_000.0
"""Theta of the layers with a window; `rope.freq_base` is that of the others. (rope_local_base_freq)"""
PATTERN = 6
"""Every 6th layer has no window. (sliding_window_pattern)"""
GLOBAL_ROPE_BASE = 1_000_000.0
"""Default of `rope_theta`."""
LAYERS_OF_27B = 62
"""The 27B model, told by its number of layers, scales its queries by hidden_size / num_heads, the others by
head_dim. (query_pre_attn_scalar)"""

HF_NAMES = {
    **decoder.HF_NAMES,
    "blk.N.attn_q_norm": "model.layers.N.self_attn.q_norm",
    "blk.N.attn_k_norm": "model.layers.N.self_attn.k_norm",
    "blk.N.post_attention_norm": "model.layers.N.post_attention_layernorm",
    "blk.N.ffn_norm": "model.layers.N.pre_feedforward_layernorm",
    "blk.N.post_ffw_norm": "model.layers.N.post_feedforward_layernorm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Sizes):
    """The numbers of one model.

    `layer_windows[i]` > 0: in layer i a token sees itself and that many tokens less one before it, turned by
    `local_rope`; 0: it sees everything, turned by `rope`.
    """

    rope: RopeConfig
    local_rope: RopeConfig
    attention_scale: float
    sliding_window: int
    layer_windows: tuple[int, ...]
    attention_softcap: float = 0.0
    final_softcap: float = 0.0

    def __post_init__(self) -> None:
        Sizes.__post_init__(self)
        if len(self.layer_windows) != self.num_layers:
            raise ModelFileError(
                "layers with and without a window", value=len(self.layer_windows), limit=self.num_layers
            )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Config:
        """Raises ModelFileError for missing or impossible values, UnsupportedError for variants by name."""
        fields = gguf_fields(metadata, "gemma3")
        sizes = gguf_sizes(metadata, fields)
        num_layers, head_dim = sizes["num_layers"], sizes["head_dim"]
        window = fields.integer("attention.sliding_window")
        scalar = sizes["hidden_size"] // sizes["num_heads"] if num_layers == LAYERS_OF_27B else head_dim
        return cls(
            **sizes,
            rope=rope_from_gguf(fields, head_dim),
            local_rope=RopeConfig(fields.number("rope.freq_base_swa", LOCAL_ROPE_BASE), head_dim),
            attention_scale=fields.number("attention.scale", scalar**-0.5),
            sliding_window=window,
            layer_windows=_windows(num_layers, window, fields.get("attention.sliding_window_pattern")),
            attention_softcap=_optional(fields, "attn_logit_softcapping"),
            final_softcap=_optional(fields, "final_logit_softcapping"),
        )

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Config:
        """Raises ModelFileError for missing or impossible values, UnsupportedError for variants by name."""
        fields = hf_fields(config.get("text_config") or config)
        activation = fields.text("hidden_activation", "gelu_pytorch_tanh")
        if activation != "gelu_pytorch_tanh":
            raise UnsupportedError(
                "config.json: hidden_activation", value=activation, limit="gelu_pytorch_tanh"
            )
        fields.refuse("use_bidirectional_attention", "attention to later tokens")
        num_layers = fields.integer("num_hidden_layers", 26)
        head_dim = fields.integer("head_dim", 256)
        window = fields.integer("sliding_window", 4096)
        windows = hf_layer_windows(fields, num_layers, window)
        if windows is None:
            windows = _windows(num_layers, window, fields.integer("sliding_window_pattern", PATTERN))
        rope, local_rope = _hf_ropes(fields, head_dim)
        return cls(
            vocab_size=fields.integer("vocab_size", 262_208),
            num_layers=num_layers,
            hidden_size=fields.integer("hidden_size", 2304),
            intermediate_size=fields.integer("intermediate_size", 9216),
            num_heads=fields.integer("num_attention_heads", 8),
            num_kv_heads=fields.integer("num_key_value_heads", 4),
            head_dim=head_dim,
            max_position=fields.integer("max_position_embeddings", 131_072),
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            rope=rope,
            local_rope=local_rope,
            attention_scale=fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
            sliding_window=window,
            layer_windows=windows,
            attention_softcap=_optional(fields, "attn_logit_softcapping"),
            final_softcap=_optional(fields, "final_logit_softcapping"),
            tied_embeddings=fields.flag("tie_word_embeddings", True),
        )


def build(config: Config, tensors: Tensors) -> Program:
    """The forward pass.

    Raises:
        ModelFileError: a tensor is missing or has another shape.
        UnsupportedError: the file has tensors that are not used.
    """
    hidden, eps = config.hidden_size, config.rms_norm_eps
    heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    q_width = config.q_width
    rope = config.rope.rope(interleaved=False)
    local_rope = config.local_rope.rope(interleaved=False)

    def norm_weight(name: str, size: int) -> np.ndarray:
        """Gemma's norms multiply by 1 + weight; GGUF files hold the sum."""
        weight = tensors.vector(name, size)
        return 1 + weight if tensors.is_hf else weight

    builder = Builder(KVSpec(config.num_layers, kv_heads, head_dim))
    table = tensors.weight("token_embd.weight", config.vocab_size, hidden)
    # Implementations in bfloat16 round this scale to 8 bits; in float32 it is exact.
    x = builder.embed(table, scale=math.sqrt(hidden))
    for layer, window in enumerate(config.layer_windows):
        blk = f"blk.{layer}"
        h = builder.rms_norm(x, norm_weight(f"{blk}.attn_norm.weight", hidden), eps)
        qkv = qkv_projection(builder, tensors, config, h, blk)
        q_norm = norm_weight(f"{blk}.attn_q_norm.weight", head_dim)
        k_norm = norm_weight(f"{blk}.attn_k_norm.weight", head_dim)
        builder.head_norm(qkv, q_norm, eps, column=0, num_heads=heads)
        builder.head_norm(qkv, k_norm, eps, column=q_width, num_heads=kv_heads)
        layer_rope = local_rope if window else rope
        builder.rope(qkv, layer_rope, column=0, num_heads=heads + kv_heads, head_dim=head_dim)
        builder.kv_write(qkv, layer=layer, k_column=q_width, v_column=q_width + config.kv_width)
        attended = builder.attention(
            qkv,
            layer=layer,
            num_heads=heads,
            scale=config.attention_scale,
            window=window,
            softcap=config.attention_softcap,
        )
        h = attention_output(builder, tensors, config, attended, blk)
        builder.add(x, builder.rms_norm(h, norm_weight(f"{blk}.post_attention_norm.weight", hidden), eps))

        h = builder.rms_norm(x, norm_weight(f"{blk}.ffn_norm.weight", hidden), eps)
        h = gated_mlp(builder, tensors, config, h, blk, "gelu_tanh")
        builder.add(x, builder.rms_norm(h, norm_weight(f"{blk}.post_ffw_norm.weight", hidden), eps))
    logits = output_head(builder, tensors, config, x, norm_weight("output_norm.weight", hidden), table)
    if config.final_softcap:
        builder.softcap(logits, config.final_softcap)
    tensors.refuse_unused(r"(.*\.)?(lm_head|vision_tower|multi_modal_projector)\..*")
    return builder.finish(logits)


def _windows(num_layers: int, window: int, pattern: Any) -> tuple[int, ...]:
    """The window of each layer. `pattern`: None or n, every n-th layer has none; or, per layer, if it has."""
    if pattern is None or isinstance(pattern, int):
        every = pattern or PATTERN
        return tuple(0 if (layer + 1) % every == 0 else window for layer in range(num_layers))
    return tuple(window if has_window else 0 for has_window in pattern)


def _optional(fields: Fields, key: str) -> float:
    """A number, 0.0 when absent or 0."""
    return fields.number(key) if fields.get(key) else 0.0


def _hf_ropes(fields: Fields, head_dim: int) -> tuple[RopeConfig, RopeConfig]:
    """Rope of the layers without and with a window."""
    base = fields.number("rope_theta", GLOBAL_ROPE_BASE)
    local_base = fields.number("rope_local_base_freq", LOCAL_ROPE_BASE)
    parameters = fields.section("rope_parameters")
    if parameters.has("full_attention") or parameters.has("sliding_attention"):  # transformers 5
        full, sliding = parameters.section("full_attention"), parameters.section("sliding_attention")
    else:
        full, sliding = fields.section("rope_scaling"), Fields({}, "")
    return (
        rope_from_hf(fields, head_dim, default_base=base, parameters=full),
        rope_from_hf(fields, head_dim, default_base=local_base, parameters=sliding),
    )
