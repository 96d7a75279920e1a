"""Mistral 7B (Jiang et al. 2023, arXiv 2310.06825): Llama with a sliding window.

GGUF files of it say `llama`.
"""

from leafage.models.llama import HF_NAMES, Config, build

__all__ = ["HF_NAMES", "Config", "build"]
