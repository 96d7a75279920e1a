"""The shape of a model from its own files: a Hugging Face `config.json`, or the metadata of a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from leafage.errors import ModelFileError, UnsupportedError
from leafage.formats.gguf import read_gguf
from leafage.formats.safetensors import read_json
from leafage.sim.llm_spec import LLMSpec

TWO_MATRICES = ("opt",)
"""Dense decoders whose MLPs have two matrices; the others have three."""
DENSE = ("llama", "mistral", "qwen2", "qwen3", "granite", "smollm3", "gemma3", "gemma3_text", "opt")
"""Architectures whose cost the shape tells. Attention over a window is counted as if over everything."""

_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}


def spec_of_file(path: Path) -> LLMSpec:
    """A model's shape from a folder with a config.json, from that file, or from a GGUF file. No weights are
    read; a GGUF file's bytes per weight are the mean over its tensors.

    Raises:
        ModelNotFoundError, ModelFileError: there is no such file, or it lacks a number.
        UnsupportedError: a mixture of experts, latent attention, or an architecture that is not known.
    """
    if path.is_dir():
        return _of_config(read_json(path / "config.json"), path.resolve().name, path / "config.json")
    if path.suffix == ".json":
        return _of_config(read_json(path), path.resolve().parent.name, path)
    return _of_gguf(path)


def _of_config(config: Mapping[str, Any], name: str, path: Path) -> LLMSpec:
    kind = config.get("model_type")
    inner = {**config, **config.get("text_config", {})}
    _refuse(
        path,
        kind,
        experts=max(
            _count(inner.get(key)) for key in ("num_experts", "num_local_experts", "n_routed_experts")
        ),
        latent=bool(inner.get("kv_lora_rank")),
    )
    numbers = _Numbers(path, inner)
    heads = numbers.count("num_attention_heads")
    width = numbers.count("hidden_size")
    return LLMSpec(
        name=name,
        num_layers=numbers.count("num_hidden_layers"),
        hidden_size=width,
        num_heads=heads,
        num_kv_heads=numbers.count("num_key_value_heads", default=heads),
        head_dim=numbers.count("head_dim", default=width // heads),
        intermediate_size=numbers.count("ffn_dim" if kind == "opt" else "intermediate_size"),
        vocab_size=numbers.count("vocab_size"),
        context_length=numbers.count("max_position_embeddings"),
        tied_embeddings=bool(inner.get("tie_word_embeddings", str(kind).startswith(("gemma", "opt")))),
        mlp_matrices=2 if kind in TWO_MATRICES else 3,
        weight_bytes_each=_weight_bytes(inner, path),
    )


def _weight_bytes(config: Mapping[str, Any], path: Path) -> float:
    quantized = config.get("quantization_config")
    if quantized is not None:
        bits = quantized.get("bits") if isinstance(quantized, Mapping) else None
        if not isinstance(bits, int) or not 1 <= bits <= 16:
            raise UnsupportedError(
                f"{path}: quantization_config does not tell the bits of a weight",
                value=str(quantized)[:80],
                remedy="name a file without it, and set model.weight_bytes_each",
            )
        return bits / 8
    dtype = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    if dtype not in _BYTES:
        raise UnsupportedError(f"{path}: unknown dtype", value=dtype, limit=", ".join(_BYTES))
    return _BYTES[dtype]


def _of_gguf(path: Path) -> LLMSpec:
    metadata, parts = read_gguf(path)
    names, num_bytes = set(), 0
    for file, entries in parts:
        names |= {entry.name for entry in entries}
        num_bytes += sum(entry.num_bytes for entry in entries)
        file.close()
    kind = metadata.get("general.architecture")
    prefix = f"{kind}."
    own = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    _refuse(
        path,
        kind,
        experts=_count(own.get("expert_count")),
        latent="attention.kv_lora_rank" in own,
    )
    numbers = _Numbers(path, own)
    heads, width = numbers.count("attention.head_count"), numbers.count("embedding_length")
    tokens = metadata.get("tokenizer.ggml.tokens")
    spec = LLMSpec(
        name=path.stem,
        num_layers=numbers.count("block_count"),
        hidden_size=width,
        num_heads=heads,
        num_kv_heads=numbers.count("attention.head_count_kv", default=heads),
        head_dim=numbers.count("attention.key_length", default=width // heads),
        intermediate_size=numbers.count("feed_forward_length"),
        vocab_size=numbers.count("vocab_size", default=0 if tokens is None else len(tokens)),
        context_length=numbers.count("context_length"),
        tied_embeddings="output.weight" not in names,
        mlp_matrices=2 if kind in TWO_MATRICES else 3,
        weight_bytes_each=1.0,
    )
    return spec.replaced(weight_bytes_each=num_bytes / spec.num_params)


def _refuse(path: Path, kind: object, *, experts: int, latent: bool) -> None:
    """By name: what the cost model would get wrong."""
    if experts > 1:
        what = f"a mixture of {experts} experts, of which a step reads some"
    elif latent:
        what = "latent attention (MLA), whose KV cache is not K and V of heads"
    elif kind not in DENSE:
        what = "not a known dense decoder"
    else:
        return
    raise UnsupportedError(
        f"{path}: the architecture {kind} is {what}: the simulator does not model it",
        limit=", ".join(DENSE),
        remedy="describe a dense model of the same size",
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


class _Numbers:
    """Counts by name, with a clear error for what is missing or is none."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self._path, self._values = path, values

    def count(self, name: str, default: int | None = None) -> int:
        value: Any = self._values.get(name)
        if value is None:
            value = default
        if isinstance(value, list | np.ndarray):
            each = {int(number) for number in value}
            if len(each) != 1:
                raise UnsupportedError(
                    f"{self._path}: {name} differs between layers",
                    value=str(sorted(each)),
                    remedy="name a model whose layers are alike",
                )
            value = each.pop()
        if value is None or not isinstance(value, int | float) or not math.isfinite(value) or value < 1:
            raise ModelFileError(
                f"{self._path} does not tell the model's shape: {name}", value=value, limit="at least 1"
            )
        return int(value)
