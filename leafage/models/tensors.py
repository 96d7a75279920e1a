"""Tensors of a model file under their GGUF names, with shapes checked."""

from __future__ import annotations

import re

import numpy as np

from leafage import models
from leafage.errors import ModelFileError, UnsupportedError
from leafage.formats.dequantize import dequantize
from leafage.formats.model_file import ModelFile, Tensor
from leafage.kernels.program import Weight


class Tensors:
    """What a model's `build` takes its weights from. Names are GGUF's, whatever the file's format.

    Args:
        model_file: an open model; the module of its architecture maps the names (`HF_NAMES`).

    Attributes:
        is_hf: the file is a Hugging Face folder; some of its weights differ in form, not only in name.
    """

    def __init__(self, model_file: ModelFile) -> None:
        self.path = model_file.path
        self.is_hf = model_file.format == "hf"
        self._tensors = model_file.tensors
        self._hf_names: dict[str, str] = models.load(model_file).HF_NAMES if self.is_hf else {}
        self._hf_root = self._find_hf_root()
        self._used: set[str] = set()

    def has(self, name: str) -> bool:
        return self._file_name(name) in self._tensors

    def raw(self, name: str) -> Tensor:
        """The tensor as the file has it. Raises ModelFileError when it is missing."""
        file_name = self._file_name(name)
        if file_name not in self._tensors:
            raise ModelFileError(f"{self.path}: tensor {file_name} is missing")
        self._used.add(file_name)
        return self._tensors[file_name]

    def weight(self, name: str, rows: int, cols: int) -> Weight:
        """A matrix for the program. Raises ModelFileError when it is missing or has another shape."""
        self._checked(name, (rows, cols))
        return Weight(name, rows, cols)

    def vector(self, name: str, size: int) -> np.ndarray:
        """A vector, float32 [size]. Raises ModelFileError when it is missing or has another shape."""
        tensor = self._checked(name, (size,))
        return dequantize(tensor.dtype, tensor.data, tensor.shape)

    def bias(self, *names: str, sizes: tuple[int, ...]) -> np.ndarray | None:
        """Biases side by side; None when the file has none of them, zeros for those it lacks."""
        if not any(self.has(name) for name in names):
            return None
        parts = [
            self.vector(name, size) if self.has(name) else np.zeros(size, np.float32)
            for name, size in zip(names, sizes, strict=True)
        ]
        return np.concatenate(parts)

    def refuse_unused(self, ignore: str = "(?!)") -> None:
        """UnsupportedError when the file has tensors that `build` did not ask for: a model with, say, biases
        that the architecture's file does not know would otherwise give plausible nonsense.

        Args:
            ignore: regular expression of the tensors (names in the file) that are not part of the text model.
        """
        unused = [name for name in self._tensors if name not in self._used and not re.fullmatch(ignore, name)]
        if unused:
            more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
            raise UnsupportedError(
                f"{self.path}: the file has tensors that this architecture does not use",
                value=", ".join(unused[:3]) + more,
            )

    def _checked(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self.raw(name)
        if tensor.shape != shape:
            raise ModelFileError(f"{self.path}: shape of {tensor.name}", value=tensor.shape, limit=shape)
        return tensor

    def _file_name(self, name: str) -> str:
        if not self.is_hf:
            return name
        stem, _, suffix = name.rpartition(".")
        layer = re.match(r"blk\.(\d+)\.", stem)
        generic = f"blk.N.{stem[layer.end() :]}" if layer else stem
        if generic not in self._hf_names:
            return name
        hf_name = f"{self._hf_names[generic]}.{suffix}".replace(".N.", f".{layer[1]}." if layer else ".N.")
        return re.sub(r"^model\.", self._hf_root, hf_name)

    def _find_hf_root(self) -> str:
        """What stands for "model." in this folder: multimodal ones put the text model inside another."""
        end = "embed_tokens.weight"
        return next((name[: -len(end)] for name in self._tensors if name.endswith(end)), "model.")
