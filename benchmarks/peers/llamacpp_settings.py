"""Where llama.cpp's programs are, and what they are given. Only the standard library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BINARIES = Path("build", "bin")  # in the folder that `setup` made for llama.cpp
SLOTS = 16
CONTEXT = 24_576  # of all slots together


def quantized(binaries: Path, model: Path, name: str, folder: Path) -> Path:
    """The model in another format, made when it is not there; moved into place when complete."""
    path = folder / f"{model.stem}.{name}.gguf"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        command = [str(binaries / "llama-quantize"), "--allow-requantize", str(model), str(part), name]
        subprocess.run(command, check=True, stdout=sys.stderr)
        part.rename(path)
    return path


def version(folder: Path) -> str:
    """That of the archive which llama.cpp came in; its own says "commit unknown" there."""
    ((name, version),) = json.loads((folder / "installed.json").read_text()).items()
    return f"{name} {version}"
