"""Model files: GGUF and safetensors to named tensors, and the block formats their weights are stored in."""

from leafage.formats.dequantize import BLOCKS, dequantize
from leafage.formats.model_file import ModelFile, Tensor, open_model
from leafage.formats.quantize import quantize

__all__ = ["BLOCKS", "ModelFile", "Tensor", "dequantize", "open_model", "quantize"]
