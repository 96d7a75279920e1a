"""The commands, and what `leafage --help` says."""

from __future__ import annotations

from cyclopts import App

from leafage.cli import bench, chat, inspect, models, run


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("leafage")
    except PackageNotFoundError:  # run from a source tree
        return "unknown"


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
for _number, _command in enumerate(
    (run.run, chat.chat, bench.bench, inspect.inspect, models.pull, models.ls, models.show, models.rm)
):
    app.command(_command, sort_key=_number)  # type: ignore[call-overload]
