from __future__ import annotations

from pathlib import Path

import pytest

from leafage import store
from leafage.errors import ModelFileError, ModelNotFoundError
from tests.store.fakes import make_alias


def install(alias: store.Alias, data: bytes) -> Path:
    path = store.models_dir() / alias.name / alias.file
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


def test_alias_table_is_consistent() -> None:
    for name, alias in store.ALIASES.items():
        assert alias.name == name
        assert len(alias.sha256) == 64 and alias.file.endswith(".gguf")
        assert alias.download_size <= alias.size  # wheels are compressed
        assert all(part.version in part.requirement for part in alias.parts)
    assert store.DEFAULT_MODEL in store.ALIASES
    assert store.ALIASES[store.DEFAULT_MODEL].chat_template
    assert len(store.ALIASES["gemma3-270m"].parts) == 4


def test_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEAFAGE_HOME", str(tmp_path))
    assert store.home() == tmp_path
    monkeypatch.delenv("LEAFAGE_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert store.home() == Path("/xdg/leafage")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the XDG rules: ignore it
    assert store.home() == Path.home() / ".cache" / "leafage"


def test_resolve_alias_not_pulled_names_the_command(home: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="leafage pull smollm2"):
        store.resolve("smollm2")
    assert not home.exists(), "looking creates nothing"


def test_resolve_installed_alias_and_refuses_a_cut_one(home: Path, tmp_path: Path) -> None:
    alias = make_alias(tmp_path / "links", [b"GGUF" + b"x" * 96])
    store.ALIASES["tiny"] = alias
    path = install(alias, b"GGUF" + b"x" * 96)
    assert store.resolve("tiny") == path == store.installed("tiny")
    path.write_bytes(b"GGUF")
    assert store.installed("tiny") is None
    with pytest.raises(ModelNotFoundError):
        store.resolve("tiny")


def test_resolve_paths(home: Path, tmp_path: Path) -> None:
    model = tmp_path / "any-name"
    model.write_bytes(b"GGUF\x03\0\0\0")
    assert store.resolve(model) == model
    assert store.resolve(str(model)) == model
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert store.resolve(folder) == folder


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 zip", b"GG"])
def test_resolve_refuses_other_files(home: Path, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="is not a GGUF file"):
        store.resolve(path)


def test_resolve_folder_without_config_names_the_files_in_it(home: Path, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match=r"Name a file in it: a\.gguf"):
        store.resolve(tmp_path)


def test_resolve_unknown_lists_the_aliases_and_guesses(home: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="known names: smollm2, gemma3-270m") as caught:
        store.resolve("llama")
    assert caught.value.remedy is not None
    with pytest.raises(ModelNotFoundError, match="Did you mean smollm2"):
        store.resolve("smolm2")
    with pytest.raises(ModelNotFoundError, match=r"no file or folder /nowhere/x\.gguf"):
        store.resolve("/nowhere/x.gguf")


def test_list_and_remove(home: Path, tmp_path: Path) -> None:
    alias = make_alias(tmp_path / "links", [b"GGUF" + b"x" * 996])
    store.ALIASES["tiny"] = alias
    assert store.list_installed() == []
    with pytest.raises(ModelNotFoundError):
        store.remove("tiny")
    path = install(alias, b"GGUF" + b"x" * 996)
    (store.home() / "partial" / "tiny").mkdir(parents=True)
    (store.home() / "partial" / "tiny" / "left.whl").write_bytes(b"y" * 50)
    assert [(m.name, m.path, m.size) for m in store.list_installed()] == [("tiny", path, 1000)]
    assert store.remove("tiny") == 1050
    assert not path.parent.exists() and store.list_installed() == []
    with pytest.raises(ModelNotFoundError, match="no pulled model named nothing"):
        store.remove("nothing")
