"""The command line. Exit codes: 0 done, 1 error, 2 wrong usage, 130 interrupted."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from types import FrameType

EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_TERMINATED = 1, 2, 130, 143


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Errors are one readable line on stderr."""
    words, debug = _take_debug(list(sys.argv[1:] if arguments is None else arguments))
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    signal.signal(signal.SIGTERM, _terminate)  # through the finally clauses: no half done files, no orphans
    try:
        return _run(words)
    except KeyboardInterrupt:
        if debug:
            raise
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output left, as in `leafage run ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR
    except Exception as error:
        if debug:
            raise
        return _report(error)


def _run(words: list[str]) -> int:
    from cyclopts import CycloptsError

    from leafage.cli.app import make_app

    try:
        result = make_app(words)(words)
    except CycloptsError as error:
        return _wrong_usage(error, words)
    return result if isinstance(result, int) else 0


def _take_debug(words: list[str]) -> tuple[list[str], bool]:
    """`--debug` may stand anywhere before `--`. A lone `-` is a prompt, read from stdin."""
    end = words.index("--") if "--" in words else len(words)
    options = [word for word in words[:end] if word != "--debug"]
    debug = len(options) < end or os.environ.get("LEAFAGE_DEBUG") == "1"
    return [("--prompt=-" if word == "-" else word) for word in options] + words[end:], debug


def _terminate(number: int, frame: FrameType | None) -> None:
    sys.exit(EXIT_TERMINATED)


def _show_warning(message: Warning | str, *_: object) -> None:
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


def _report(error: Exception) -> int:
    from leafage.errors import InvalidParameterError, LeafageError

    known = isinstance(error, LeafageError | OSError)
    text = str(error) if isinstance(error, LeafageError) else f"{type(error).__name__}: {error}"
    line = " ".join(text.split())
    print(f"error: {line}", file=sys.stderr)
    if not known:
        print("This is a fault in Leafage; run again with --debug for the traceback.", file=sys.stderr)
    return EXIT_USAGE if isinstance(error, InvalidParameterError) else EXIT_ERROR


def _wrong_usage(error: Exception, words: list[str]) -> int:
    text = " ".join(str(error).split())
    if type(error).__name__ == "UnusedCliTokensError" and words[:1] == ["run"]:
        text += " Put the prompt in quotes."
    named = words[:2] if words[:1] == ["sim"] else words[:1]
    if type(error).__name__ == "UnknownCommandError":
        del named[-1:]
    command = " ".join(["leafage", *(word for word in named if not word.startswith("-"))])
    print(f"error: {text}\nSee `{command} --help`.", file=sys.stderr)
    return EXIT_USAGE
