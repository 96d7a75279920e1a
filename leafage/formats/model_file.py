"""One view of a model on disk, whatever its format: metadata and named tensors, mapped, not copied."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from leafage.errors import ModelFileError, ModelNotFoundError
from leafage.formats.gguf import read_gguf
from leafage.formats.mapped_file import MappedFile, TensorEntry
from leafage.formats.safetensors import read_folder, read_json

Parts = list[tuple[MappedFile, list[TensorEntry]]]


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor as the file has it.

    `shape` is in NumPy order, outermost first: a matrix is (rows = outputs, cols = inputs). `dtype` names the
    block format ('F32', 'BF16', 'Q4_K', ...; see `dequantize.BLOCKS`). `data` is a flat read-only uint8 view
    of the map.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    data: NDArray[np.uint8]


class ModelFile:
    """An open model. Close it, or use it as a context manager, when the weights are loaded.

    Attributes:
        format: 'gguf' or 'hf' (Hugging Face folder).
        path: what was opened: the file (the first part of a split one) or the folder.
        architecture: GGUF `general.architecture`, or `model_type` of config.json.
        metadata: GGUF key-values (arrays of strings as lists, other arrays as NumPy), or config.json.
        tensors: by their name in the file, in file order.
        num_bytes: bytes of all tensors.
        folder, generation_config, tokenizer_config: the folder and its JSON files; None where absent.
    """

    def __init__(
        self,
        format: Literal["gguf", "hf"],
        path: Path,
        architecture: str,
        metadata: dict[str, Any],
        parts: Parts,
        *,
        folder: Path | None = None,
        generation_config: dict[str, Any] | None = None,
        tokenizer_config: dict[str, Any] | None = None,
    ) -> None:
        self.format: Literal["gguf", "hf"] = format
        self.path = path
        self.architecture = architecture
        self.metadata = metadata
        self.folder = folder
        self.generation_config = generation_config
        self.tokenizer_config = tokenizer_config
        self.tensors: dict[str, Tensor] = {}
        self._places: dict[str, tuple[MappedFile, TensorEntry]] = {}
        self._files = [file for file, _ in parts]
        for file, entries in parts:
            for entry in entries:
                data = file.view(entry.offset, entry.num_bytes)
                self.tensors[entry.name] = Tensor(entry.name, entry.shape, entry.dtype, data)
                self._places[entry.name] = (file, entry)
        self.num_bytes = sum(entry.num_bytes for _, entry in self._places.values())

    def release(self, tensor: Tensor) -> None:
        """Give the tensor's pages back to the operating system, after its weights were copied elsewhere.

        The view stays valid; touching it reads the file again.
        """
        file, entry = self._places[tensor.name]
        file.release(entry.offset, entry.num_bytes)

    def close(self) -> None:
        """Unmap the files. Views that are still held keep their map alive. Idempotent."""
        self.tensors.clear()
        self._places.clear()
        for file in self._files:
            file.close()

    def __enter__(self) -> ModelFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ModelFile({str(self.path)!r}, {self.architecture}, {len(self.tensors)} tensors)"


def open_model(path: str | os.PathLike[str]) -> ModelFile:
    """Open a .gguf file, any part of a split one (NAME-00001-of-000NN.gguf), or a Hugging Face folder.

    Reads metadata and the tensor index, not the weights.

    Raises:
        ModelNotFoundError: nothing is there.
        ModelFileError: truncated, corrupt or no model.
        UnsupportedError: weights of a type that Leafage does not read, by name.
    """
    name = os.path.expanduser(path)
    if not name:
        raise ModelNotFoundError(
            "the path of the model is empty", remedy="name a .gguf file or a model folder"
        )
    path = Path(name)
    if os.path.isdir(path):
        return _open_folder(path)
    if path.suffix in (".safetensors", ".bin", ".pt", ".pth") and os.path.isfile(path):
        raise ModelFileError(f"{path} holds weights alone", remedy="name the model folder it is in")
    metadata, parts = read_gguf(path)
    return _build("gguf", parts[0][0].path, metadata, "general.architecture", parts)


def _open_folder(folder: Path) -> ModelFile:
    extra = {}
    for name in ("generation_config", "tokenizer_config"):
        file = folder / f"{name}.json"
        extra[name] = read_json(file) if os.path.isfile(file) else None
    config, parts = read_folder(folder)
    return _build("hf", folder, config, "model_type", parts, folder=folder, **extra)


def _build(
    format: Literal["gguf", "hf"], path: Path, metadata: dict[str, Any], key: str, parts: Parts, **extra: Any
) -> ModelFile:
    architecture = metadata.get(key)
    if not isinstance(architecture, str) or not architecture:
        for file, _ in parts:
            file.close()
        raise ModelFileError(
            f"{path} does not name its architecture", value=architecture, limit=f"a string in {key}"
        )
    return ModelFile(format, path, architecture, metadata, parts, **extra)
