"""vLLM's best settings for a CPU with few cores. Only the standard library: used on either interpreter.

vLLM reads no GGUF file here: the model is dequantized once into a Hugging Face folder in the peers' folder.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BLOCK_SIZE = 32  # at the default, 128, prefixes below 128 tokens are never shared
MAX_MODEL_LEN = 4096
CACHE_GB = 2
OPENMP_SPIN = 0.25  # Intel's OpenMP threads spin 0.2 s after their work before they sleep


def environment(peers: Path, threads: int) -> dict[str, str]:
    """What must be set before the process starts: vLLM's best settings for few cores.

    One process for scheduler and model, and no binding of threads to cores: the default leaves the model one
    core of two.
    """
    preload, cache = peers / "vllm" / "preload", peers / "vllm" / "cache"
    libraries = [preload / "libtcmalloc_minimal.so.4", preload / "libiomp5.so"]
    return {
        "LD_PRELOAD": ":".join(str(library) for library in libraries),
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GB),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_AOT_COMPILE": "0",  # what it saves that way cannot be loaded again on a CPU
        "VLLM_CACHE_ROOT": str(cache),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    }


def hf_folder(model: Path, peers: Path, python: Path) -> Path:
    """The model as a Hugging Face folder, made on vLLM's interpreter when it is not there."""
    folder = peers / "models" / f"{model.stem}-hf"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        script = Path(__file__).with_name("hf_folder.py")
        subprocess.run([str(python), str(script), str(model), str(folder)], check=True, stdout=sys.stderr)
    return folder
