"""Model files: GGUF and safetensors to named tensors, and the block formats their weights are stored in."""

from leafage.formats.model_file import ModelFile, Tensor, open_model

__all__ = ["ModelFile", "Tensor", "open_model"]
