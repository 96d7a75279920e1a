"""Writes the Hugging Face folder that vLLM needs from a GGUF file: bf16 weights, dequantized.

    python hf_folder.py MODEL.gguf FOLDER

Run by `vllm_driver.py` on vLLM's interpreter. The folder appears when it is complete.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def convert(model: Path, folder: Path) -> None:
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    source = {"pretrained_model_name_or_path": str(model.parent), "gguf_file": model.name}
    weights = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    weights.save_pretrained(part)
    AutoTokenizer.from_pretrained(**source).save_pretrained(part)
    part.rename(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
