"""Architectures: one file each, named as the checkpoint names it (GGUF `general.architecture`, Hugging Face
`model_type`). A module has

- `Config` with `from_gguf(metadata)` and `from_hf(config)`: the numbers of one model;
- `build(config, tensors) -> Program`: the forward pass;
- `HF_NAMES`: Hugging Face names of the tensors, by GGUF name.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from types import ModuleType

from leafage.errors import UnsupportedError
from leafage.formats.model_file import ModelFile


def load(model_file: ModelFile) -> ModuleType:
    """The module of the file's architecture.

    Raises:
        UnsupportedError: Leafage has no such architecture; lists those it has.
    """
    name = model_file.architecture
    if name not in known():
        raise UnsupportedError(
            f"{model_file.path}: unknown model architecture",
            value=name,
            limit=", ".join(known()),
            remedy="use a model of one of these architectures",
        )
    return importlib.import_module(f"leafage.models.{name}")


def known() -> list[str]:
    """Names of the architectures: the modules of this package that build a program."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in names if re.fullmatch(r"[a-z]\w*", name) and name not in _HELPERS)


_HELPERS = ("decoder", "fields", "ropes", "tensors")
