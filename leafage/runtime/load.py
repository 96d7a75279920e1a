"""From a model file to packed weights: one copy in memory, the file's pages given back as it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from leafage import models
from leafage.errors import UnsupportedError
from leafage.formats.dequantize import dequantize
from leafage.formats.model_file import ModelFile, Tensor
from leafage.formats.quantize import MODES, quantize_tensor
from leafage.kernels.program import Program, Weight
from leafage.models.tensors import Tensors

BATCH_BYTES = 32 << 20
"""Bytes of the file that are packed in one native call. A call waits for the GIL when it ends, milliseconds
if another thread is busy; until then the weights of the batch are in memory twice."""


@dataclass(slots=True)
class LoadedModel:
    """A model in memory, ready for an executor.

    Attributes:
        config: the architecture's own Config.
        program: its forward pass.
        weights: by name; PackedWeight for compute "fast", float32 [rows, cols] for "float32".
        compute: "fast" (native kernels) or "float32" (NumPy reference).
        num_weight_bytes: memory of the weights.
    """

    config: Any
    program: Program
    weights: Mapping[str, Any]
    compute: str
    num_weight_bytes: int


def load_model(
    model_file: ModelFile,
    *,
    compute: str = "fast",
    quantize: Literal["q8", "q4"] | None = None,
    num_threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> LoadedModel:
    """Build the program of the file's architecture and load its weights.

    Args:
        compute: "fast" or "float32".
        quantize: None, "q8" or "q4": quantize F32, F16 and BF16 matrices while loading; rows that are no
            multiple of 32 stay as they are.
        num_threads: threads that repack matrices.
        progress: called with (bytes done, bytes in all) as weights are packed.

    Raises:
        ModelFileError: a tensor is missing or has a wrong shape.
        UnsupportedError: unknown architecture or tensor type, or attention heads that no kernel has.
    """
    if compute not in ("fast", "float32"):
        raise UnsupportedError("unknown compute", value=compute, limit="'fast' or 'float32'")
    if quantize is not None and quantize not in MODES:
        raise UnsupportedError("unknown quantization", value=quantize, limit=" or ".join(MODES))
    architecture = models.load(model_file)
    is_gguf = model_file.format == "gguf"
    config_class = architecture.Config
    config = (config_class.from_gguf if is_gguf else config_class.from_hf)(model_file.metadata)
    tensors = Tensors(model_file)
    program = architecture.build(config, tensors)
    if compute == "fast":
        _check_kernels(program, model_file)
    names = _weights_of(program)
    total = sum(tensors.raw(weight.name).data.nbytes for weight in names)
    weights: dict[str, Any] = {}
    done = 0
    for batch in _batches(names, tensors):
        raw = [tensors.raw(weight.name) for weight in batch]
        loaded = _load(raw, batch, compute, quantize, num_threads)
        weights.update(zip((weight.name for weight in batch), loaded, strict=True))
        for tensor in raw:
            done += tensor.data.nbytes
            model_file.release(tensor)
        if progress is not None:
            progress(done, total)
    num_bytes = sum(w.nbytes for w in weights.values())
    return LoadedModel(config, program, weights, compute, num_bytes)


def _check_kernels(program: Program, model_file: ModelFile) -> None:
    from leafage.kernels.native import check_head_dim

    try:
        check_head_dim(program.kv.head_dim)
    except ValueError as error:
        raise UnsupportedError(
            f"{model_file.path}: {error}", remedy='use compute="float32", which takes any, slowly'
        ) from None


def _weights_of(program: Program) -> list[Weight]:
    """Every matrix of the program once, in the order of use."""
    return list({w.name: w for op in program.ops for w in op.weights}.values())


def _batches(weights: list[Weight], tensors: Tensors) -> Iterator[list[Weight]]:
    """The weights in order, BATCH_BYTES of the file at a time, or one that is larger."""
    batch: list[Weight] = []
    num_bytes = 0
    for weight in weights:
        size = tensors.raw(weight.name).data.nbytes
        if batch and num_bytes + size > BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
        batch.append(weight)
        num_bytes += size
    yield batch


def _load(
    raw: list[Tensor],
    weights: list[Weight],
    compute: str,
    quantize: Literal["q8", "q4"] | None,
    num_threads: int,
) -> list[Any]:
    if quantize is not None:
        raw = [quantize_tensor(tensor, quantize) for tensor in raw]
    pairs = list(zip(raw, weights, strict=True))
    if compute == "float32":
        return [np.ascontiguousarray(dequantize(t.dtype, t.data, (w.rows, w.cols))) for t, w in pairs]
    from leafage.kernels import _native

    return _native.pack_weights([(t.dtype, w.rows, w.cols, t.data) for t, w in pairs], num_threads)
