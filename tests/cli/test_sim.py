from __future__ import annotations

from collections.abc import Callable

import pytest

from leafage.cli.sim import COMMANDS


def test_help_names_every_command(leafage: Callable) -> None:
    done = leafage("sim", "--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert f"│ {command} " in done.stdout


@pytest.mark.parametrize(
    ("words", "message", "help"),
    [
        (["rum"], 'Did you mean "run"?', "leafage sim"),
        (["run", "--sead", "1"], "--seed", "leafage sim run"),
    ],
)
def test_wrong_usage_points_to_the_help(leafage: Callable, words: list[str], message: str, help: str) -> None:
    done = leafage("sim", *words)
    assert done.returncode == 2 and message in done.stderr
    assert done.stderr.endswith(f"See `{help} --help`.\n")
