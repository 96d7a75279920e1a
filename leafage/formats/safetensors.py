"""Hugging Face model folders: config.json and weights in safetensors files, one or several with an index.

An own reader of the header, because the library hands out framework tensors, and NumPy has no bfloat16; here
the raw bytes are needed, mapped. Specification: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from leafage.errors import ModelFileError, ModelNotFoundError, UnsupportedError
from leafage.formats.mapped_file import MappedFile, TensorEntry, quoted

MAX_HEADER_BYTES = 100_000_000  # the library's own limit
MAX_JSON_BYTES = 64 << 20
_INDEX = "model.safetensors.index.json"

# Bytes per element. Integers and booleans may be there as buffers; no weight uses them.
_ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2} | {
    "U32": 4,
    "I32": 4,
    "U64": 8,
    "I64": 8,
}

Part = tuple[MappedFile, list[TensorEntry]]


def read_folder(folder: Path) -> tuple[dict[str, Any], list[Part]]:
    """Open a model folder.

    Returns:
        The contents of config.json, and for each weights file its map and tensor index.

    Raises:
        ModelFileError: config or weights are missing, truncated or corrupt.
        UnsupportedError: the weights are of a kind that Leafage does not read.
    """
    config = _config(folder)
    weight_map = _weight_map(folder)
    with ExitStack() as on_error:
        parts: list[Part] = []
        for name, wanted in weight_map.items():
            try:
                file = MappedFile(folder / name)
            except ModelNotFoundError as error:
                raise ModelFileError(
                    f"{folder / name} is named in {_INDEX} but is missing", remedy="fetch the folder again"
                ) from error
            on_error.callback(file.close)
            tensors = read_header(file)
            if wanted is not None:
                tensors = _select(file.path, tensors, wanted)
            parts.append((file, tensors))
        on_error.pop_all()
    return config, parts


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that must hold an object.

    Raises:
        ModelNotFoundError: no such file.
        ModelFileError: unreadable, too large, not JSON, not an object, or a name twice in one object.
    """
    file = MappedFile(path)
    try:
        if file.size > MAX_JSON_BYTES:
            raise ModelFileError(f"bytes of {path}", value=file.size, limit=MAX_JSON_BYTES)
        data = file.buffer[:]
    finally:
        file.close()
    return _parse_object(data, str(path))


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise ModelFileError(f"{folder} cannot be read: {error.strerror}") from error


def _config(folder: Path) -> dict[str, Any]:
    names = _names(folder)
    if "config.json" not in names:
        gguf = [name for name in names if name.endswith(".gguf")]
        remedy = f"name the file itself: {gguf[0]}" if gguf else "name a .gguf file or a Hugging Face folder"
        raise ModelFileError(f"{folder} is not a model folder: it has no config.json", remedy=remedy)
    config = read_json(folder / "config.json")
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise UnsupportedError(
            f"{folder}: weights quantized in a Hugging Face folder",
            value=str(method),
            limit="F32, F16, BF16",
            remedy="use the original weights with --quantize, or a GGUF file",
        )
    return config


def _weight_map(folder: Path) -> dict[str, set[str] | None]:
    """File name -> names of its tensors to use, None for all."""
    names = _names(folder)
    if _INDEX in names:
        index = folder / _INDEX
        mapping = read_json(index).get("weight_map")
        if not isinstance(mapping, dict) or not mapping:
            raise ModelFileError(f"{index} has no weight_map")
        files: dict[str, set[str] | None] = {}
        for tensor, name in mapping.items():
            if not isinstance(name, str) or "/" in name or "\\" in name or not name.endswith(".safetensors"):
                raise ModelFileError(
                    f"{index}: file of tensor {quoted(tensor)}",
                    value=str(name),
                    limit="a .safetensors file in the folder",
                )
            wanted = files.setdefault(name, set())
            assert wanted is not None
            wanted.add(tensor)
        return files
    if "model.safetensors" in names:
        return {"model.safetensors": None}
    found = [name for name in names if name.endswith(".safetensors")]
    if len(found) == 1:
        return {found[0]: None}
    if found:
        raise ModelFileError(
            f"{folder} has several safetensors files ({', '.join(found[:3])}, ...) and no {_INDEX}",
            remedy="fetch the folder again",
        )
    others = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".h5"))]
    raise ModelFileError(
        f"{folder} has no weights in safetensors",
        value=", ".join(others[:5]) or None,
        remedy="convert the weights to safetensors" if others else "fetch the folder again",
    )


def _select(path: Path, tensors: list[TensorEntry], wanted: set[str]) -> list[TensorEntry]:
    missing = wanted - {t.name for t in tensors}
    if missing:
        raise ModelFileError(
            f"{path} lacks tensors that {_INDEX} says are in it",
            value=", ".join(sorted(missing)[:3]),
            remedy="fetch the folder again",
        )
    return [t for t in tensors if t.name in wanted]


def read_header(file: MappedFile) -> list[TensorEntry]:
    """The tensor index of one safetensors file.

    Raises:
        ModelFileError: truncated, corrupt, or tensors that overlap, leave holes or reach outside.
        UnsupportedError: a float type that Leafage does not read.
    """
    path = file.path
    if file.buffer[:7] == b"version":
        raise ModelFileError(f"{path} is a Git LFS pointer", remedy="fetch the file itself (git lfs pull)")
    if file.size < 8:
        raise ModelFileError(
            f"{path} is too short for a safetensors file: bytes", value=file.size, limit="8 or more"
        )
    length = int.from_bytes(file.buffer[:8], "little")
    room = min(file.size - 8, MAX_HEADER_BYTES)
    if length > room:
        raise ModelFileError(
            f"{path}, byte 0: length of the header",
            value=length,
            limit=room,
            remedy="the file is truncated or not safetensors: fetch it again",
        )
    header = _parse_object(file.buffer[8 : 8 + length], f"{path}: header")
    header.pop("__metadata__", None)
    tensors = [_entry(path, name, spec, 8 + length) for name, spec in header.items()]
    tensors.sort(key=lambda t: (t.offset, t.num_bytes))
    expected = 8 + length
    for tensor in tensors:
        if tensor.offset != expected:
            raise ModelFileError(
                f"{path}: tensor {quoted(tensor.name)} overlaps or leaves a hole",
                value=tensor.offset,
                limit=f"data from byte {expected} on",
            )
        expected += tensor.num_bytes
    if expected != file.size:
        raise ModelFileError(
            f"{path}: bytes of a file with these tensors",
            value=file.size,
            limit=expected,
            remedy="the file is truncated or corrupt: fetch it again",
        )
    return tensors


def _entry(path: Path, name: str, spec: Any, data_start: int) -> TensorEntry:
    if not isinstance(spec, dict) or spec.keys() != {"dtype", "shape", "data_offsets"}:
        raise ModelFileError(
            f"{path}: description of tensor {quoted(name)}", limit="an object with dtype, shape, data_offsets"
        )
    dtype, shape, offsets = spec["dtype"], spec["shape"], spec["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _ELEMENT_BYTES:
        raise UnsupportedError(
            f"{path}: tensor {quoted(name)} has type {dtype}",
            limit="F32, F16, BF16",
            remedy="use a model with one of these types",
        )
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2 or len(shape) > 8:
        raise ModelFileError(
            f"{path}: shape or data_offsets of tensor {quoted(name)}",
            limit="up to 8 natural numbers, and two",
        )
    count = 1
    for dim in shape:
        count *= dim
    num_bytes = count * _ELEMENT_BYTES[dtype]
    if offsets[1] - offsets[0] != num_bytes:
        raise ModelFileError(
            f"{path}: data_offsets of {dtype} tensor {quoted(name)} of shape {shape}",
            value=offsets,
            limit=f"{num_bytes} bytes",
        )
    return TensorEntry(name, tuple(shape), dtype, data_start + offsets[0], num_bytes)


def _naturals(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 1 << 62 for v in values)


def _parse_object(data: bytes, what: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            seen: set[str] = set()
            twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
            raise ModelFileError(f"{what}: the name {quoted(twice)} appears twice")
        return result

    try:
        value = json.loads(data, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:  # ValueError: JSON, UTF-8, numbers of too many digits
        raise ModelFileError(f"{what} is not JSON: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{what} is not a JSON object")
    return value
