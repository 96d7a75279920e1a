"""The processes that are compared: Leafage and its peers, each started when it is first needed."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from peers import client

LEAFAGE = "leafage"
DRIVER = Path(__file__).parent.parent / "leafage_driver.py"
HTTP_DRIVER = DRIVER.with_name("http_driver.py")
TITLES = {LEAFAGE: "Leafage", "llamacpp": "llama.cpp", "openvino": "OpenVINO", "vllm": "vLLM"}


@dataclass(frozen=True, slots=True)
class Side:
    """An engine on weights in some format.

    Attributes:
        engine: "leafage" or a peer's name.
        form: "Q4_1", "Q4_0", ... of SmolLM2; "Q4_K_M" is Gemma's file, "llama1b" the random one.
        options: more words for its driver.
        http: its server, over HTTP.
    """

    engine: str
    form: str
    options: tuple[str, ...] = ()
    http: bool = False

    def __str__(self) -> str:
        title = TITLES.get(self.engine, self.engine)
        return " ".join((title, self.form, *self.options, *(["over HTTP"] if self.http else [])))


@dataclass(frozen=True, slots=True)
class Files:
    """Model files by format. SmolLM2's other formats are those that llama.cpp's driver makes.

    Attributes:
        smollm2: the Q4_1 file that all engines open.
        gemma, llama1b: None where there is none.
    """

    smollm2: Path
    gemma: Path | None
    llama1b: Path | None

    def base(self, form: str) -> Path:
        """The file that a driver gets. Raises PeerError when there is none."""
        path = {"Q4_K_M": self.gemma, "llama1b": self.llama1b}.get(form, self.smollm2)
        if path is None:
            raise client.PeerError(f"there is no file of {form}")
        return path


class Sides:
    """Starts sides and keeps them until `close`. One that cannot start is asked only once.

    Args:
        peers: the folder that `peers/setup` filled.
        threads: of every side.
    """

    def __init__(self, files: Files, peers: Path, threads: int) -> None:
        self.files = files
        self.idle_cpus: dict[Side, float] = {}
        self.settings: dict[Side, dict[str, object]] = {}
        self._peers = peers
        self.threads = threads
        self._running: dict[Side, client.Peer] = {}
        self._failed: dict[Side, client.PeerError] = {}
        self._logs: list[IO[bytes]] = []

    def get(self, side: Side) -> client.Peer:
        """The running driver of a side. Raises PeerError when it is not installed or did not start."""
        if side in self._failed:
            raise self._failed[side]
        if side not in self._running:
            log = tempfile.NamedTemporaryFile(prefix=f"{side.engine}-{side.form}-", suffix=".log")  # noqa: SIM115
            self._logs.append(log)
            try:
                command = self._command(side)
                say(f"starting {side}")
                peer = client.Peer(command, log=log)
            except client.PeerError as error:
                self._failed[side] = self._with_log(error, Path(log.name))
                raise self._failed[side] from error
            self._running[side] = peer
            self.settings[side] = {key: peer.info.get(key) for key in ("version", "settings", "startup_s")}
        return self._running[side]

    def end(self, sides: Iterable[Side]) -> None:
        """End those of these sides that run."""
        for side in tuple(sides):
            if side in self._running:
                self._running.pop(side).close()

    def close(self) -> None:
        """End all, and delete their logs."""
        self.end(self._running)
        for log in self._logs:
            log.close()

    def running(self) -> dict[Side, client.Peer]:
        return dict(self._running)

    def model(self, side: Side) -> Path:
        """The file that a running side has open."""
        return Path(self.get(side).info["settings"]["model"])

    def _command(self, side: Side) -> list[str]:
        model = self.files.base(side.form)
        if side.http:
            return self._http_command(side, model)
        if side.engine == LEAFAGE:
            if model == self.files.smollm2 and side.form != "Q4_1":
                model = self.model(Side("llamacpp", side.form))
            words = ["--peers", str(self._peers), "--model", str(model), "--threads", str(self.threads)]
            return [sys.executable, str(DRIVER), *words, *side.options]
        options = list(side.options)
        if side.engine == "llamacpp" and model == self.files.smollm2 and side.form != "Q4_1":
            options += ["--format", side.form]
        return client.command(side.engine, self._peers, model, self.threads, *options)

    def _http_command(self, side: Side, model: Path) -> list[str]:
        if side.engine != LEAFAGE:
            client.command(side.engine, self._peers, model, self.threads)  # is it installed?
        words = ["--peers", str(self._peers), "--model", str(model), "--threads", str(self.threads)]
        if side.engine == "llamacpp" and side.form != "Q4_1":
            words += ["--format", side.form]
        return [sys.executable, str(HTTP_DRIVER), "--server", side.engine, *words, *side.options]

    def _with_log(self, error: client.PeerError, log: Path) -> client.PeerError:
        """The error with the last line that the driver printed."""
        lines = log.read_text(errors="replace").strip().splitlines()
        return client.PeerError(f"{error}: {lines[-1][:200]}") if lines else error


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)
