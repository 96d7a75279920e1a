"""The commands, and what `leafage --help` says."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from cyclopts import App


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("leafage")
    except PackageNotFoundError:  # run from a source tree
        return "unknown"


COMMANDS = {
    "run": "run",
    "chat": "chat",
    "serve": "serve",
    "bench": "bench",
    "sim": "sim",
    "inspect": "inspect",
    "pull": "models",
    "ls": "models",
    "show": "models",
    "rm": "models",
}
"""The module of each command, in the order of the help."""


def make_app(words: Sequence[str]) -> App:
    """The command that `words` begin with, or all of them for help and for errors: a command imports its own
    modules alone."""
    app = App(
        name="leafage",
        help="""Serve language models on the machine you already own.

**Examples**

    leafage chat
    leafage run "The capital of France is" --max-tokens 20
    leafage pull gemma3-270m
    leafage inspect

Add `--debug` to any command for the traceback of an error. Models are kept in LEAFAGE_HOME
(default: ~/.cache/leafage).""",
        help_format="markdown",
        version=_version,
        exit_on_error=False,  # errors, Ctrl-C and exit codes are main's business
        print_error=False,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )
    called = words[:1] if words and words[0] in COMMANDS else COMMANDS
    for number, name in enumerate(called):
        module = importlib.import_module(f"leafage.cli.{COMMANDS[name]}")
        if name == "sim":
            group = module.make_sim(words[1:] if words[:1] == ["sim"] else [])
            group.sort_key = number
            app.command(group)
        else:
            app.command(getattr(module, name), sort_key=number)
    return app
