"""A package index and a model hub on loopback, small enough to read."""

from __future__ import annotations

import hashlib
import json
import threading
import time
import zipfile
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from leafage.store import Alias, WheelPart


def make_wheel(folder: Path, package: str, version: str, members: dict[str, bytes]) -> Path:
    """A wheel that pip accepts, whose dependency nobody could install."""
    stem = f"{package.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\nRequires-Dist: no-such-thing\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def make_alias(folder: Path, chunks: list[bytes], name: str = "tiny") -> Alias:
    """An alias whose parts are carried by wheels in a folder."""
    parts = []
    for number, chunk in enumerate(chunks):
        package = f"{name}-part{number}"
        wheel = make_wheel(folder, package, "1.0", {f"{name}/data.part{number}": chunk})
        parts.append(WheelPart(package, "1.0", f"{name}/data.part{number}", wheel.stat().st_size))
    whole = b"".join(chunks)
    return Alias(
        name=name,
        title="a test model",
        file=f"{name}.gguf",
        sha256=hashlib.sha256(whole).hexdigest(),
        size=len(whole),
        parts=tuple(parts),
        licence="none",
        chat_template=False,
    )


class Server:
    """An HTTP server on a free loopback port; `counts` tells how often each path was asked for."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.http.daemon_threads = True
        self.http.counts = Counter()  # type: ignore[attr-defined]
        self.counts: Counter[str] = self.http.counts  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()


class _Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def answer(self, data: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def serve_index(folder: Path, *, seconds_per_wheel: float = 0.0) -> Server:
    """A package index (PEP 503) over the wheels of a folder, slow on demand."""

    class Handler(_Quiet):
        def do_GET(self) -> None:
            self.server.counts[self.path] += 1  # type: ignore[attr-defined]
            parts = self.path.strip("/").split("/")
            if parts[0] == "simple":
                wheels = [
                    p for p in folder.glob("*.whl") if p.name.startswith(parts[1].replace("-", "_") + "-")
                ]
                links = "".join(f'<a href="/files/{p.name}">{p.name}</a>' for p in wheels)
                self.answer(
                    f"<html><body>{links}</body></html>".encode(),
                    status=200 if wheels else 404,
                    headers={"Content-Type": "text/html"},
                )
                return
            data = (folder / parts[1]).read_bytes()
            if not seconds_per_wheel:
                self.answer(data)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            step = max(1, len(data) // 100)
            for start in range(0, len(data), step):
                self.wfile.write(data[start : start + step])
                self.wfile.flush()
                time.sleep(seconds_per_wheel / 100)

    return Server(Handler)


def serve_hub(repos: dict[str, dict[str, bytes]], *, wrong_sums: bool = False) -> Server:
    """The part of the Hugging Face hub's interface that a download uses."""
    commit = "c0ffee" + "0" * 34

    class Handler(_Quiet):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            self.server.counts[f"{self.command} {self.path}"] += 1  # type: ignore[attr-defined]
            parts = self.path.partition("?")[0].strip("/").split("/")
            if parts[:2] == ["api", "models"]:
                repo, files = "/".join(parts[2:4]), repos.get("/".join(parts[2:4]))
                if files is None:
                    self.answer(b"{}", status=404, headers={"X-Error-Code": "RepoNotFound"})
                    return
                siblings = [
                    {
                        "rfilename": n,
                        "size": len(d),
                        "lfs": {"sha256": self.sum(d), "size": len(d), "pointerSize": 1},
                    }
                    for n, d in files.items()
                ]
                body = {"_id": "1", "id": repo, "modelId": repo, "sha": commit, "siblings": siblings}
                self.answer(json.dumps(body).encode(), headers={"Content-Type": "application/json"})
                return
            repo, name = "/".join(parts[:2]), "/".join(parts[4:])
            data = repos.get(repo, {}).get(name)
            if data is None:
                self.answer(b"", status=404, headers={"X-Error-Code": "EntryNotFound"})
                return
            self.answer(
                data,
                headers={"X-Repo-Commit": commit, "ETag": f'"{self.sum(data)}"', "Accept-Ranges": "bytes"},
            )

        @staticmethod
        def sum(data: bytes) -> str:
            return hashlib.sha256(data + (b"!" if wrong_sums else b"")).hexdigest()

    return Server(Handler)
