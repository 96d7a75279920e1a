"""Tiny models for the tests: weights out of a hash of their name, so that nothing needs to be stored, as a
Hugging Face folder or as a GGUF file. `scripts/golden/tiny_models.py` gives transformers the same weights."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

GOLDEN = Path(__file__).parent / "golden"

Weights = dict[str, np.ndarray]


def hashed_weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """float32 of 8 significant bits, so that F16 and BF16 hold it exactly. Scaled so that a layer keeps the
    size of its input; vectors (norms, biases) are between -1/4 and 1/4."""
    count = math.prod(shape)
    with np.errstate(over="ignore"):  # splitmix64 (Steele et al. 2014)
        z = np.arange(1, count + 1, dtype=np.uint64) + np.uint64(zlib.crc32(name.encode()) << 20)
        z *= np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    integers = (z >> np.uint64(56)).astype(np.int64) - 128
    exponent = -9 if len(shape) == 1 else -7 + round(math.log2(1.7 / math.sqrt(shape[1])))
    return (integers * 2.0**exponent).astype(np.float32).reshape(shape)


def hashed_weights(shapes: dict[str, list[int]], *, norm_offset: float) -> Weights:
    """All weights of a model by Hugging Face name; norms around `norm_offset`."""
    weights = {}
    for name, shape in shapes.items():
        weights[name] = hashed_weight(name, tuple(shape))
        if name.endswith("norm.weight"):
            weights[name] += np.float32(norm_offset)
    return weights


class Golden:
    """One stored model: what transformers was given and what it answered.

    Attributes:
        config: config.json as transformers saved it.
        shapes: of all weights, by name.
        prompt: how many of `tokens` were the prompt; the rest are greedy choices.
        logits: float32 [len(tokens), vocab], of the whole sequence in one pass.
    """

    def __init__(self, name: str) -> None:
        stored = json.loads((GOLDEN / f"{name}.json").read_text())
        self.name = name
        self.config: dict[str, Any] = stored["config"]
        self.shapes: dict[str, list[int]] = stored["shapes"]
        self.prompt: int = stored["prompt"]
        with np.load(GOLDEN / f"{name}.npz") as arrays:
            self.tokens: list[int] = arrays["tokens"].tolist()
            self.logits: np.ndarray = arrays["logits"]

    @property
    def architecture(self) -> str:
        """`general.architecture` of the model as a GGUF file."""
        names = {"mistral": "llama", "gemma3_text": "gemma3"}
        return names.get(self.config["model_type"], self.config["model_type"])

    @property
    def is_gemma(self) -> bool:
        return self.architecture == "gemma3"

    @property
    def is_interleaved(self) -> bool:
        """Whether its GGUF files have the rows of Q and K in an order that pairs neighbours."""
        return self.architecture in ("llama", "granite", "smollm3")

    def weights(self) -> Weights:
        return hashed_weights(self.shapes, norm_offset=0.0 if self.is_gemma else 1.0)


def golden_names() -> list[str]:
    return sorted(path.stem for path in GOLDEN.glob("*.npz") if (GOLDEN / f"{path.stem}.json").exists())


def write_folder(folder: Path, config: dict[str, Any], weights: Weights, dtype: str = "F32") -> Path:
    """A Hugging Face folder. dtype: F32 or F16."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    arrays = {k: v.astype(np.float16) if dtype == "F16" else v for k, v in weights.items()}
    save_file(arrays, folder / "model.safetensors")
    return folder


def write_gguf(path: Path, golden: Golden, extra: dict[str, Any] | None = None) -> Path:
    """The same model as GGUF: names and metadata as llama.cpp's converter writes them, Q and K interleaved
    where it does so, 1 added to Gemma's norms. `extra`: more or other metadata, by key without prefix."""
    config, arch = golden.config, golden.architecture
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config["head_dim"]
    values: dict[str, Any] = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "vocab_size": config["vocab_size"],
        **(extra or {}),
    }
    writer = gguf.GGUFWriter(path, arch)
    for key, value in values.items():
        add = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
        }
        if isinstance(value, list):
            writer.add_array(f"{arch}.{key}", value)
        else:
            add[type(value)](f"{arch}.{key}", value)
    for name, weight in golden.weights().items():
        gguf_name = _gguf_name(name, arch)
        if gguf_name == "output.weight" and config["tie_word_embeddings"]:
            continue
        if golden.is_gemma and name.endswith("norm.weight"):
            weight = weight + np.float32(1)
        if golden.is_interleaved and ".attn_q." in gguf_name:
            weight = _interleaved(weight, heads)
        if golden.is_interleaved and ".attn_k." in gguf_name:
            weight = _interleaved(weight, kv_heads)
        writer.add_tensor(gguf_name, np.ascontiguousarray(weight))
    rope = config["rope_parameters"]
    if rope.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(rope, head_dim))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_name(name: str, arch: str) -> str:
    mapped = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], 16).get_name(
        name, try_suffixes=(".weight", ".bias")
    )
    assert mapped is not None, name
    return mapped


def _interleaved(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of each head from halves (0, d/2, ...) to neighbours: 0, d/2, 1, d/2 + 1, ..."""
    rest = weight.shape[1:]
    halves = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *rest)
    return halves.swapaxes(1, 2).reshape(weight.shape)


def _llama3_factors(rope: dict[str, Any], head_dim: int) -> np.ndarray:
    """`rope_freqs.weight` of Llama 3.1, as llama.cpp's converter computes it."""
    factors = []
    low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / head_dim)
        if wavelength < high:
            factors.append(1.0)
        elif wavelength > low:
            factors.append(rope["factor"])
        else:
            smooth = (rope["original_max_position_embeddings"] / wavelength - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"]
            )
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)
