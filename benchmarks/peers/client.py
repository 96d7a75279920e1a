"""Starts a peer's driver and talks to it (see protocol.py for the lines)."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Any


class PeerError(Exception):
    """A peer that is not installed, did not start, or could not do what was asked."""


class Peer:
    """A running driver; a context manager. `info` is what it said when it was ready."""

    def __init__(self, command: list[str], *, log: IO[bytes] | None = None) -> None:
        """Starts the driver and waits until its model is loaded; what it prints goes to `log`.

        Raises PeerError when it ends before that.
        """
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1
        )
        try:
            self.info = self._read()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(
        self,
        workload: str,
        prompts: list[list[int]],
        output_lengths: list[int],
        *,
        reset_cache: bool = True,
        **how: Any,
    ) -> dict[str, Any]:
        """One run: the driver's answer. Raises PeerError with the driver's words when it failed.

        Args:
            how: the other fields of `protocol.Request`.
        """
        assert self._process.stdin is not None
        request = {
            "workload": workload,
            "prompts": prompts,
            "output_lengths": output_lengths,
            "reset_cache": reset_cache,
            **how,
        }
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise PeerError(f"the driver has ended (exit code {self._process.poll()})") from error
        return self._read()

    def close(self) -> None:
        """Ends the driver: the end of its stdin is the signal; it is killed when it does not follow."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # of a driver that has ended
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        self._process.stdout.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"the driver ended without an answer (exit code {self._process.wait()})")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def command(name: str, peers: Path, model: Path, threads: int, *options: str) -> list[str]:
    """What starts the driver of a peer in the folder that `setup` filled.

    Raises PeerError when the peer is not there.
    """
    if not (peers / name / "installed.json").is_file():
        raise PeerError(f"{name} is not in {peers}: run benchmarks/peers/setup {name} --into {peers}")
    own = peers / name / "bin" / "python"  # llama.cpp has none: its driver needs the standard library alone
    interpreter = str(own) if own.is_file() else sys.executable
    driver = Path(__file__).with_name(f"{name}_driver.py")
    words = ["--peers", str(peers), "--model", str(model), "--threads", str(threads)]
    return [interpreter, str(driver), *words, *options]


def default_folder() -> Path:
    """Where `setup` installs when it is not told."""
    return Path(os.environ.get("LEAFAGE_PEERS", "~/.cache/leafage-peers")).expanduser()
