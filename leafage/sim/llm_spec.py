"""The shape of a model: all that a cost model needs to know of it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from leafage.errors import InvalidParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMSpec:
    """A dense decoder with SwiGLU-like MLPs of `mlp_matrices` products.

    Attributes:
        context_length: most tokens of a sequence.
        tied_embeddings: the output head is the input embedding.
        weight_bytes_each, kv_bytes_each: bytes of one weight, and of one number in the KV cache.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    context_length: int
    tied_embeddings: bool = False
    mlp_matrices: int = 3
    weight_bytes_each: float = 2.0
    kv_bytes_each: float = 2.0

    @property
    def num_layer_params(self) -> int:
        """Weights of all layers' matrices; norms and biases are left out."""
        width = self.num_heads * self.head_dim
        attention = 2 * self.hidden_size * width + 2 * self.hidden_size * self.num_kv_heads * self.head_dim
        return self.num_layers * (attention + self.mlp_matrices * self.hidden_size * self.intermediate_size)

    @property
    def num_head_params(self) -> int:
        """Weights of the output head."""
        return self.vocab_size * self.hidden_size

    @property
    def num_params(self) -> int:
        """All weights: layers, output head, and the input embedding unless it is the same."""
        return self.num_layer_params + (1 if self.tied_embeddings else 2) * self.num_head_params

    @property
    def weight_bytes(self) -> float:
        """Memory of all weights."""
        return self.weight_bytes_each * self.num_params

    @property
    def kv_bytes_per_token(self) -> int:
        """K and V of one token in all layers."""
        return int(2 * self.kv_bytes_each * self.num_layers * self.num_kv_heads * self.head_dim)

    def replaced(self, **numbers: Any) -> LLMSpec:
        """The same with other numbers."""
        return replace(self, **numbers)

    def has_shape_of(self, other: LLMSpec) -> bool:
        """The matrices are the same; names, context length and formats of numbers may differ."""
        names = ("name", "context_length", "weight_bytes_each", "kv_bytes_each")
        return all(
            getattr(self, field.name) == getattr(other, field.name)
            for field in fields(self)
            if field.name not in names
        )

    @classmethod
    def load(cls, name: str) -> LLMSpec:
        """A model by name, or from its files: a .gguf file, a Hugging Face folder or its config.json. No
        weights are read.

        Raises:
            InvalidParameterError: there is none by that name, nor such a file.
            ModelFileError, UnsupportedError: the files do not tell, or it is no dense decoder.
        """
        if name in KNOWN_SPECS:
            return KNOWN_SPECS[name]
        path = Path(name).expanduser()
        if path.exists():
            from leafage.sim.spec_files import spec_of_file

            return spec_of_file(path)
        close = [each for each in KNOWN_SPECS if name and each.startswith(name.lower())]
        close = close or difflib.get_close_matches(name, KNOWN_SPECS, n=1)
        raise InvalidParameterError(
            "unknown model",
            value=name,
            limit=", ".join(KNOWN_SPECS),
            remedy=f"did you mean {' or '.join(close)}?" if close else "name one of these, or a model's file",
        )


def _spec(
    name: str,
    layers: int,
    width: int,
    heads: tuple[int, int, int],
    mlp: int,
    vocabulary: int,
    context: int,
    *,
    tied: bool = False,
) -> tuple[str, LLMSpec]:
    num_heads, num_kv_heads, head_dim = heads
    return name, LLMSpec(
        name=name,
        num_layers=layers,
        hidden_size=width,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=mlp,
        vocab_size=vocabulary,
        context_length=context,
        tied_embeddings=tied,
    )


# OPT has MLPs of two matrices, four times as wide as the model; these have three of the same size in all.
KNOWN_SPECS = dict(
    [
        _spec("opt-13b", 40, 5120, (40, 40, 128), 13653, 50272, 2048),
        _spec("opt-66b", 64, 9216, (72, 72, 128), 24576, 50272, 2048),
        _spec("opt-175b", 96, 12288, (96, 96, 128), 32768, 50272, 2048),
        _spec("llama-3-8b", 32, 4096, (32, 8, 128), 14336, 128256, 8192),
        _spec("llama-3.1-8b", 32, 4096, (32, 8, 128), 14336, 128256, 131072),
        _spec("llama-3-70b", 80, 8192, (64, 8, 128), 28672, 128256, 8192),
        _spec("llama-3.1-70b", 80, 8192, (64, 8, 128), 28672, 128256, 131072),
        _spec("llama-3.2-1b", 16, 2048, (32, 8, 64), 8192, 128256, 131072, tied=True),
        _spec("llama-3.2-3b", 28, 3072, (24, 8, 128), 8192, 128256, 131072, tied=True),
        _spec("qwen3-0.6b", 28, 1024, (16, 8, 128), 3072, 151936, 40960, tied=True),
        _spec("qwen3-4b", 36, 2560, (32, 8, 128), 9728, 151936, 40960, tied=True),
        _spec("qwen3-8b", 36, 4096, (32, 8, 128), 12288, 151936, 40960),
        _spec("qwen3-32b", 64, 5120, (64, 8, 128), 25600, 151936, 40960),
        _spec("smollm2-135m", 30, 576, (9, 3, 64), 1536, 49152, 8192, tied=True),
        _spec("smollm2-360m", 32, 960, (15, 5, 64), 2560, 49152, 8192, tied=True),
        _spec("smollm2-1.7b", 24, 2048, (32, 32, 64), 8192, 49152, 8192, tied=True),
    ]
)
