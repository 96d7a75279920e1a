"""Llama (Touvron et al. 2023, arXiv 2302.13971; Llama 3, arXiv 2407.21783) and what shares its form: SmolLM2,
Mistral with its sliding window (arXiv 2310.06825)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leafage.errors import ModelFileError, UnsupportedError
from leafage.kernels.program import Builder, KVSpec, Program
from leafage.models.fields import gguf_fields, gguf_vocab_size, hf_fields
from leafage.models.ropes import RopeConfig, rope_from_gguf, rope_from_hf
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


@dataclass(frozen=True, slots=True)
class Config:
    """The numbers of one model.

    `sliding_window` > 0: a token sees itself and the sliding_window - 1 tokens before it, in every layer.
    """

    vocab_size: int
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope: RopeConfig
    attention_scale: float
    sliding_window: int = 0
    tied_embeddings: bool | None = None
    """None: as the file has it; with a matrix `output` of its own, or without."""

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ModelFileError(
                "the number of attention heads is not a multiple of the number of K/V heads",
                value=f"{self.num_heads} and {self.num_kv_heads}",
            )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Config:
        """Raises ModelFileError for missing or impossible values, UnsupportedError for variants by name."""
        fields = gguf_fields(metadata, "llama")
        fields.refuse("expert_count", "mixture of experts")
        hidden_size, num_heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
        head_dim = fields.integer("attention.key_length", hidden_size // num_heads)
        if fields.integer("attention.value_length", head_dim) != head_dim:
            raise UnsupportedError(
                "keys and values of different length", value=fields.get("attention.value_length")
            )
        return cls(
            vocab_size=gguf_vocab_size(metadata, fields),
            num_layers=fields.integer("block_count"),
            hidden_size=hidden_size,
            intermediate_size=fields.integer("feed_forward_length"),
            num_heads=num_heads,
            num_kv_heads=fields.integer("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            max_position=fields.integer("context_length"),
            rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
            rope=rope_from_gguf(fields, head_dim),
            attention_scale=fields.number("attention.scale", head_dim**-0.5),
            sliding_window=fields.integer("attention.sliding_window", 0, at_least=0),
        )

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Config:
        """Raises ModelFileError for missing or impossible values, UnsupportedError for variants by name."""
        fields = hf_fields(config)
        if fields.text("hidden_act", "silu") != "silu":
            raise UnsupportedError("config.json: hidden_act", value=fields.get("hidden_act"), limit="silu")
        hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
        head_dim = fields.integer("head_dim", hidden_size // num_heads)
        rope_key = "rope_parameters" if fields.has("rope_parameters") else "rope_scaling"
        theta = fields.number("rope_theta", 10_000.0)
        # Only Mistral has a window; LlamaConfig takes the key and ignores it.
        is_mistral = fields.get("model_type") == "mistral"
        window = fields.integer("sliding_window", 0, at_least=0) if is_mistral else 0
        return cls(
            vocab_size=fields.integer("vocab_size"),
            num_layers=fields.integer("num_hidden_layers"),
            hidden_size=hidden_size,
            intermediate_size=fields.integer("intermediate_size"),
            num_heads=num_heads,
            num_kv_heads=fields.integer("num_key_value_heads", num_heads),
            head_dim=head_dim,
            max_position=fields.integer("max_position_embeddings"),
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            rope=rope_from_hf(fields, fields.section(rope_key), head_dim, default_base=theta),
            attention_scale=head_dim**-0.5,
            sliding_window=window,
            tied_embeddings=fields.flag("tie_word_embeddings") if fields.has("tie_word_embeddings") else None,
        )


def build(config: Config, tensors: Tensors) -> Program:
    """The forward pass.

    Raises:
        ModelFileError: a tensor is missing or has another shape.
        UnsupportedError: the file has tensors that are not used.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    q_width, kv_width = heads * head_dim, kv_heads * head_dim
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
        h = builder.rms_norm(x, tensors.vector(f"{blk}.attn_norm.weight", hidden), config.rms_norm_eps)
        qkv = builder.linear(
            h,
            tensors.weight(f"{blk}.attn_q.weight", q_width, hidden),
            tensors.weight(f"{blk}.attn_k.weight", kv_width, hidden),
            tensors.weight(f"{blk}.attn_v.weight", kv_width, hidden),
            bias=tensors.bias(
                f"{blk}.attn_q.bias",
                f"{blk}.attn_k.bias",
                f"{blk}.attn_v.bias",
                sizes=(q_width, kv_width, kv_width),
            ),
        )
        builder.rope(qkv, rope, column=0, num_heads=heads + kv_heads, head_dim=head_dim)
        builder.kv_write(qkv, layer=layer, k_column=q_width, v_column=q_width + kv_width)
        attended = builder.attention(
            qkv,
            layer=layer,
            num_heads=heads,
            scale=config.attention_scale,
            window=config.sliding_window,
        )
        builder.linear(
            attended,
            tensors.weight(f"{blk}.attn_output.weight", hidden, q_width),
            bias=tensors.bias(f"{blk}.attn_output.bias", sizes=(hidden,)),
            add_to=x,
        )
        h = builder.rms_norm(x, tensors.vector(f"{blk}.ffn_norm.weight", hidden), config.rms_norm_eps)
        gate_up = builder.linear(
            h,
            tensors.weight(f"{blk}.ffn_gate.weight", inner, hidden),
            tensors.weight(f"{blk}.ffn_up.weight", inner, hidden),
            bias=tensors.bias(f"{blk}.ffn_gate.bias", f"{blk}.ffn_up.bias", sizes=(inner, inner)),
        )
        builder.linear(
            builder.act_mul(gate_up, "silu"),
            tensors.weight(f"{blk}.ffn_down.weight", hidden, inner),
            bias=tensors.bias(f"{blk}.ffn_down.bias", sizes=(hidden,)),
            add_to=x,
        )
    x = builder.select_logit_rows(x)
    x = builder.rms_norm(x, tensors.vector("output_norm.weight", hidden), config.rms_norm_eps)
    tied = config.tied_embeddings
    if tied is None:
        tied = not tensors.has("output.weight")
    head = table if tied else tensors.weight("output.weight", config.vocab_size, hidden)
    logits = builder.linear(x, head)
    # Old folders store what is computed from the config; tied ones may store the table twice.
    tensors.refuse_unused(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq|lm_head\.weight")
    return builder.finish(logits)
