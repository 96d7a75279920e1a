"""What compare.py runs by itself: the command line, from a cold start."""

from __future__ import annotations

from pathlib import Path

import pytest
from comparison.plan import first_token_seconds


def test_a_cold_start_takes_the_installed_package(
    smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a checkout in the current folder, which has no kernels."""
    (tmp_path / "leafage").mkdir()
    (tmp_path / "leafage" / "__init__.py").write_text("raise ImportError('not this one')")
    monkeypatch.chdir(tmp_path)
    assert 0 < first_token_seconds(smollm2_path.resolve(), 2) < 60


def test_a_failed_start_says_why(tmp_path: Path) -> None:
    missing = tmp_path / "none.gguf"
    with pytest.raises(RuntimeError, match=r"`leafage run` on none.gguf: exit code [1-9]\d*; .*none.gguf"):
        first_token_seconds(missing, 1)
