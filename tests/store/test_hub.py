from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leafage import store
from leafage.errors import DownloadError, ModelNotFoundError
from leafage.store import hub
from tests.store.fakes import Server, serve_hub

huggingface_hub = pytest.importorskip("huggingface_hub")

GGUF = b"GGUF" + b"m" * 5000
REPOS = {
    "ann/one": {"model.gguf": GGUF, "README.md": b"hello"},
    "ann/many": {"a-q4.gguf": GGUF, "a-q8.gguf": GGUF + b"8", "sub/b.gguf": b"GGUFsub"},
    "ann/split": {f"m-0000{i}-of-00003.gguf": b"GGUF%d" % i for i in (1, 2, 3)},
    "ann/torn": {"m-00001-of-00002.gguf": GGUF},
    "ann/folder": {
        "config.json": b"{}",
        "model.safetensors": b"w" * 900,
        "tokenizer.json": b"{}",
        "pytorch_model.bin": b"second copy",
        "onnx/model.onnx": b"third copy",
    },
    "ann/empty": {"README.md": b"no model"},
}


@pytest.fixture
def serve(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    """A hub on loopback and an empty cache; huggingface_hub reads its settings at import, so patch them."""
    from huggingface_hub import constants

    servers: list[Server] = []
    cache = tmp_path / "hub"
    cache.mkdir()
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if hasattr(constants, name):
            monkeypatch.setattr(constants, name, str(cache))

    def start(repos: dict[str, dict[str, bytes]] = REPOS, **options: bool) -> Server:
        server = serve_hub(repos, **options)
        servers.append(server)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        return server

    yield start
    for server in servers:
        server.close()


def test_importing_the_store_does_not_import_the_hub_library(tmp_path: Path) -> None:
    code = "import sys, leafage.store, leafage.store.hub; sys.exit('huggingface_hub' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0


def test_pull_the_only_file(serve: Callable[..., Server]) -> None:
    serve()
    seen: list[tuple[str, int, int | None]] = []
    path = store.pull("hf:ann/one", lambda *news: seen.append(news))
    assert path.name == "model.gguf" and path.read_bytes() == GGUF
    assert ("downloading model.gguf", len(GGUF), len(GGUF)) in seen
    assert [(m.name, m.size) for m in store.list_installed()] == [("hf:ann/one", len(GGUF))]


def test_cached_works_without_the_hub(serve: Callable[..., Server]) -> None:
    server = serve()
    with pytest.raises(ModelNotFoundError, match="leafage pull hf:ann/one"):
        store.resolve("hf:ann/one")
    path = store.pull("hf:ann/one")
    server.close()
    assert store.resolve("hf:ann/one") == path == store.resolve("hf:ann/one/model.gguf")


def test_several_files_must_be_named(serve: Callable[..., Server]) -> None:
    serve()
    with pytest.raises(ModelNotFoundError, match=r"holds 3 GGUF files.*a-q4\.gguf, a-q8\.gguf"):
        store.pull("hf:ann/many")
    assert store.pull("hf:ann/many/a-q8.gguf").read_bytes() == GGUF + b"8"
    assert store.pull("hf:ann/many/sub/b.gguf").read_bytes() == b"GGUFsub"
    assert store.resolve("hf:ann/many/sub/b.gguf").read_bytes() == b"GGUFsub"
    with pytest.raises(ModelNotFoundError, match="no such file"):
        store.pull("hf:ann/many/c.gguf")


def test_split_model_comes_whole(serve: Callable[..., Server]) -> None:
    serve()
    path = store.pull("hf:ann/split")
    assert path.name == "m-00001-of-00003.gguf"
    assert sorted(p.name for p in path.parent.iterdir()) == sorted(REPOS["ann/split"])
    with pytest.raises(ModelNotFoundError, match="not complete"):
        store.pull("hf:ann/torn")


def test_folder_brings_one_copy_of_the_weights(serve: Callable[..., Server]) -> None:
    serve()
    folder = store.pull("hf:ann/folder")
    names = sorted(p.name for p in folder.rglob("*") if p.is_file())
    assert names == ["config.json", "model.safetensors", "tokenizer.json"]
    assert store.resolve("hf:ann/folder") == folder


def test_unusable_unknown_and_impossible_names(serve: Callable[..., Server]) -> None:
    serve()
    with pytest.raises(ModelNotFoundError, match="holds no model"):
        store.pull("hf:ann/empty")
    with pytest.raises(ModelNotFoundError, match="no such repository"):
        store.pull("hf:ann/nothing")
    for ref in ("hf:ann", "hf:", "hf:ann//x"):
        with pytest.raises(ModelNotFoundError, match="not a Hugging Face name"):
            store.pull(ref)
    with pytest.raises(ModelNotFoundError):
        store.pull("hf:an n/one")


def test_damaged_file_is_deleted(serve: Callable[..., Server], tmp_path: Path) -> None:
    serve(wrong_sums=True)
    with pytest.raises(DownloadError, match="arrived damaged"):
        store.pull("hf:ann/one")
    assert store.list_installed() == []
    assert not [p for p in (tmp_path / "hub").rglob("*") if p.is_file() and p.read_bytes() == GGUF]


def test_no_network(serve: Callable[..., Server]) -> None:
    serve().close()
    with pytest.raises(DownloadError, match="cannot fetch hf:ann/one") as caught:
        store.pull("hf:ann/one")
    assert "\n" not in str(caught.value)


def test_remove_deletes_the_data(serve: Callable[..., Server], tmp_path: Path) -> None:
    serve()
    store.pull("hf:ann/one")
    store.pull("hf:ann/split")
    store.pull("hf:ann/folder")
    assert store.remove("hf:ann/one") == len(GGUF)
    assert store.remove("hf:ann/split") == 15
    assert store.remove("hf:ann/folder") == 902  # two equal files are one blob
    assert store.list_installed() == []
    data = set(GGUF.splitlines()) | {b"w" * 900, b"GGUF1"}
    assert not [p for p in (tmp_path / "hub").rglob("*") if p.is_file() and p.read_bytes() in data]


def test_remove_keeps_data_that_another_name_shares(serve: Callable[..., Server]) -> None:
    serve({"ann/twin": {"a.gguf": GGUF, "b.gguf": GGUF}})
    kept = store.pull("hf:ann/twin/a.gguf")
    store.pull("hf:ann/twin/b.gguf")
    assert store.remove("hf:ann/twin/b.gguf") == 0
    assert kept.read_bytes() == GGUF


def test_parse_and_choose() -> None:
    assert hub.parse("hf:a/b") == ("a/b", None)
    assert hub.parse("hf:a/b/c/d.gguf") == ("a/b", "c/d.gguf")
    names = ["config.json", "model.safetensors", "x.gguf"]
    assert hub.choose("hf:a/b", names, "x.gguf") == ["x.gguf"]
    assert hub.choose("hf:a/b", names, None)[0] == "config.json"
