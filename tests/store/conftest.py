from __future__ import annotations

from pathlib import Path

import pytest

from leafage import store


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty model cache; pip sees neither an index nor other settings."""
    path = tmp_path / "home"
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("LEAFAGE_HOME", str(path))
    monkeypatch.setattr(store, "ALIASES", dict(store.ALIASES))
    return path
