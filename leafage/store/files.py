"""Folders, locks and checksums of the model cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from leafage.errors import DownloadError
from leafage.store.aliases import Alias

ProgressCallback = Callable[[str, int, "int | None"], None]
"""`(what, done, total)`: what is going on, bytes done, bytes in all or None when unknown."""

CHUNK = 1 << 20


def no_progress(what: str, done: int, total: int | None) -> None:
    """Report nothing."""


def home() -> Path:
    """LEAFAGE_HOME, else `leafage` in the XDG cache folder. Nothing is created."""
    override = os.environ.get("LEAFAGE_HOME")
    if override:
        return Path(override).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache and os.path.isabs(cache) else Path.home() / ".cache") / "leafage"


def models_dir() -> Path:
    return home() / "models"


def alias_path(alias: Alias) -> Path:
    return models_dir() / alias.name / alias.file


def partial_dir(name: str) -> Path:
    """Where a pull works; beside the models, so that the last step is a rename on one file system."""
    return home() / "partial" / name


def make_folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadError(
            f"cannot create the model folder {path}",
            value=error.strerror,
            remedy="set LEAFAGE_HOME to a folder you may write to",
        ) from None
    return path


@contextlib.contextmanager
def lock(name: str, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock of one model. It dies with the process, so a killed pull blocks nobody."""
    import fcntl

    folder = make_folder(home() / "locks")
    with (folder / f"{name}.lock").open("w") as file:
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told and on_wait is not None:
                    on_wait()
                told = True
                time.sleep(0.2)
        yield


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder (links followed once)."""
    if path.is_file():
        return path.stat().st_size
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(folder, name)).st_size
    return total


def require_space(folder: Path, needed: int) -> None:
    """Raises DownloadError when the disk of `folder` has less than `needed` bytes free."""
    import shutil

    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(
            f"not enough disk space in {folder}",
            value=f"{human(free)} free",
            limit=f"{human(needed)} needed",
            remedy="free some space or set LEAFAGE_HOME to another disk",
        )


def human(size: float) -> str:
    """98362432 -> '98.4 MB'."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError


def copy_hashed(
    sources: Iterator[IO[bytes]], target: IO[bytes], limit: int, report: Callable[[int], None]
) -> tuple[int, str]:
    """Join streams into a file; returns (bytes written, sha256). Stops just above `limit` bytes."""
    digest = hashlib.sha256()
    done = 0
    for source in sources:
        while block := source.read(CHUNK):
            done += len(block)
            if done > limit:
                return done, ""
            digest.update(block)
            target.write(block)
            report(done)
    return done, digest.hexdigest()


def sha256_of(path: Path, on_progress: ProgressCallback = no_progress) -> str:
    """Checksum of a file on disk."""
    digest = hashlib.sha256()
    total = path.stat().st_size
    done = 0
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
            done += len(block)
            on_progress("checking", done, total)
    return digest.hexdigest()


def _record_path(ref: str) -> Path:
    return models_dir() / "hf" / (hashlib.sha256(ref.encode()).hexdigest()[:16] + ".json")


def record(ref: str, path: Path) -> None:
    """Remember that a Hugging Face model was pulled, and where it lies."""
    target = _record_path(ref)
    make_folder(target.parent)
    temporary = target.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps({"ref": ref, "path": str(path)}))
    os.replace(temporary, target)


def forget(ref: str) -> None:
    _record_path(ref).unlink(missing_ok=True)


def records() -> list[tuple[str, Path]]:
    """Pulled Hugging Face models that are still there."""
    found = []
    for file in sorted((models_dir() / "hf").glob("*.json")):
        try:
            entry = json.loads(file.read_text())
            ref, path = str(entry["ref"]), Path(entry["path"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if path.exists():
            found.append((ref, path))
    return found
