"""Gemma 3 as Hugging Face names its text-only folders; `gemma3.py` holds it."""

from leafage.models.gemma3 import HF_NAMES, Config, build

__all__ = ["HF_NAMES", "Config", "build"]
