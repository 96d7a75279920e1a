"""docs/server.md, where it is made of the settings."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from leafage.cli.flags import _as_flags
from leafage.server.config import ServerConfig

GUIDE = Path(__file__).parents[2] / "docs" / "server.md"
HEAD = ["| flag | default | what |", "|---|---|---|"]


def table() -> list[str]:
    rows = []
    for field in fields(ServerConfig):
        text, _, default = field.metadata["help"].partition("; default: ")
        if not default and field.default not in (None, (), ""):
            default = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
        what = _as_flags(text).replace("|", "\\|")
        rows.append(f"| `--{field.name.replace('_', '-')}` | {_as_flags(default)} | {what} |")
    return HEAD + rows


def test_the_guide_lists_the_settings_as_they_are() -> None:
    lines = GUIDE.read_text(encoding="utf-8").splitlines()
    start = lines.index(HEAD[0])
    found = lines[start : start + len(table())]
    assert found == table(), "write this into docs/server.md:\n" + "\n".join(table())
    assert not lines[start + len(table())].startswith("|")
