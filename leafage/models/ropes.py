"""Rotary embeddings: base frequencies and the scalings that models declare."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from leafage.errors import ModelFileError, UnsupportedError
from leafage.kernels.program import Rope
from leafage.models.fields import Fields


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """How a model turns its queries and keys.

    Attributes:
        base: theta of the paper (Su et al. 2021, arXiv 2104.09864).
        rotary_dim: columns of a head that turn.
        scaling: 'none'; 'linear' (positions divided by factor); 'llama3' (Llama 3.1: long wavelengths divided
            by factor, short ones kept, a ramp between); 'yarn' (Peng et al. 2023, arXiv 2309.00071).
        factor: how far the context was stretched.
        original_context: context length before stretching (llama3, yarn).
        low_freq_factor, high_freq_factor: ends of Llama 3.1's ramp, in turns over the original context.
        beta_fast, beta_slow: ends of YaRN's ramp, in turns over the original context.
        truncate: round YaRN's ramp outwards to whole pairs.
        attention_factor: what cos and sin are multiplied by.
    """

    base: float
    rotary_dim: int
    scaling: str = "none"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.base <= 1.0:
            raise ModelFileError("base of the rotary embedding", value=self.base, limit="above 1")
        if self.scaling == "llama3" and self.low_freq_factor >= self.high_freq_factor:
            raise ModelFileError(
                "low_freq_factor of the rotary embedding",
                value=self.low_freq_factor,
                limit=f"below high_freq_factor, {self.high_freq_factor}",
            )

    def rope(self, *, interleaved: bool, freq_factors: np.ndarray | None = None) -> Rope:
        """The frequencies; `freq_factors` [rotary_dim / 2] (GGUF `rope_freqs.weight`) divide them."""
        pairs = self.rotary_dim // 2
        inv_freq = self.base ** (-2.0 * np.arange(pairs, dtype=np.float64) / self.rotary_dim)
        if freq_factors is not None:
            inv_freq = inv_freq / freq_factors
        if self.scaling == "linear":
            inv_freq = inv_freq / self.factor
        elif self.scaling == "llama3":
            inv_freq = self._llama3(inv_freq)
        elif self.scaling == "yarn":
            inv_freq = self._yarn(inv_freq)
        return Rope(tuple(inv_freq.tolist()), interleaved, self.attention_factor)

    def _llama3(self, inv_freq: np.ndarray) -> np.ndarray:
        turns = self.original_context * inv_freq / (2 * math.pi)
        ramp = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        keep = np.clip(ramp, 0.0, 1.0)
        scaled: np.ndarray = keep * inv_freq + (1 - keep) * inv_freq / self.factor
        return scaled

    def _yarn(self, inv_freq: np.ndarray) -> np.ndarray:
        def pair_of(turns: float) -> float:
            """The pair, a fraction, that makes so many turns over the original context."""
            context = math.log(self.original_context / (turns * 2 * math.pi))
            return self.rotary_dim * context / (2 * math.log(self.base))

        low, high = pair_of(self.beta_fast), pair_of(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.rotary_dim - 1)
        ramp = (np.arange(len(inv_freq)) - low) / max(high - low, 0.001)
        keep = 1 - np.clip(ramp, 0.0, 1.0)
        scaled: np.ndarray = keep * inv_freq + (1 - keep) * inv_freq / self.factor
        return scaled


def yarn_magnitude(factor: float, multiplier: float = 1.0) -> float:
    """YaRN's attention factor (section 3.4 of the paper)."""
    return 0.1 * multiplier * math.log(factor) + 1.0 if factor > 1 else 1.0


def rope_from_gguf(fields: Fields, head_dim: int) -> RopeConfig:
    """Reads `{architecture}.rope.*`. Llama 3.1's scaling is not here: it stands in `rope_freqs.weight`."""
    rope = RopeConfig(
        base=fields.number("rope.freq_base", 10_000.0),
        rotary_dim=_rotary_dim(fields.integer("rope.dimension_count", head_dim), head_dim, fields),
    )
    factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 1.0))
    scaling = fields.text("rope.scaling.type", "linear" if factor != 1.0 else "none")
    if scaling == "none" or factor == 1.0:
        return rope
    if scaling == "linear":
        return replace(rope, scaling="linear", factor=factor)
    if scaling == "yarn":
        context = fields.integer("context_length")
        return replace(
            rope,
            scaling="yarn",
            factor=factor,
            original_context=fields.integer("rope.scaling.original_context_length", context),
            beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
            attention_factor=fields.number("rope.scaling.attn_factor", 1.0) * yarn_magnitude(factor),
        )
    raise _unsupported(fields, f"{fields.prefix}rope.scaling.type", scaling)


def rope_from_hf(
    fields: Fields, head_dim: int, *, default_base: float = 10_000.0, parameters: Fields | None = None
) -> RopeConfig:
    """Reads `rope_parameters` (transformers 5) or `rope_scaling`, whichever config.json has.

    Args:
        fields: config.json.
        default_base: theta when nothing says one.
        parameters: the object to read, for models that have several; may be empty.
    """
    if parameters is None:
        parameters = fields.section("rope_parameters" if fields.has("rope_parameters") else "rope_scaling")
        default_base = fields.number("rope_theta", default_base)
    base = parameters.number("rope_theta", default_base)
    partial = parameters.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    rope = RopeConfig(base, _rotary_dim(int(head_dim * partial), head_dim, fields))
    scaling = parameters.text("rope_type", parameters.text("type", "default"))
    if scaling == "default":
        return rope
    if scaling == "linear":
        return replace(rope, scaling="linear", factor=parameters.number("factor"))
    max_position = fields.integer("max_position_embeddings")
    original = parameters.integer("original_max_position_embeddings", max_position)
    if scaling == "llama3":
        return replace(
            rope,
            scaling="llama3",
            factor=parameters.number("factor"),
            original_context=original,
            low_freq_factor=parameters.number("low_freq_factor"),
            high_freq_factor=parameters.number("high_freq_factor"),
        )
    if scaling == "yarn":
        factor = parameters.number("factor", max_position / original)
        magnitude = yarn_magnitude(factor)
        if parameters.has("mscale") and parameters.has("mscale_all_dim"):
            over = yarn_magnitude(factor, parameters.number("mscale"))
            magnitude = over / yarn_magnitude(factor, parameters.number("mscale_all_dim"))
        return replace(
            rope,
            scaling="yarn",
            factor=factor,
            original_context=original,
            beta_fast=parameters.number("beta_fast", 32.0),
            beta_slow=parameters.number("beta_slow", 1.0),
            truncate=parameters.flag("truncate", True),
            attention_factor=parameters.number("attention_factor", magnitude),
        )
    raise _unsupported(parameters, "rope_type", scaling)


def _rotary_dim(value: int, head_dim: int, fields: Fields) -> int:
    if value % 2 or not 2 <= value <= head_dim:
        raise UnsupportedError(
            f"{fields.where}: rotary dimension", value=value, limit=f"an even number up to {head_dim}"
        )
    return value


def _unsupported(fields: Fields, key: str, scaling: str) -> UnsupportedError:
    return UnsupportedError(
        f"{fields.where}: {key} is not supported", value=scaling, limit="none, linear, llama3, yarn"
    )
