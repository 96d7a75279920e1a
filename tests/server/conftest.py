"""A server over a tiny random model, and one over the real model, shared by a module's tests."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fastapi import FastAPI

    from leafage.build import Assets, Build
    from leafage.server.context import Context

TINY_TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@contextmanager
def serving(app: FastAPI, *, send_buffer: int | None = None) -> Iterator[str]:
    """The application behind a real socket; gives its URL. `send_buffer`: bytes that the kernel keeps for a
    client that does not read."""
    from leafage.server.http_server import HttpServer, bind

    context = app.state.context
    started = threading.Event()
    sockets = bind("127.0.0.1", 0)
    if send_buffer is not None:  # connections inherit it
        sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    port = sockets[0].getsockname()[1]
    server = HttpServer(app, context.config, context.lifecycle, on_ready=started.set)
    thread = threading.Thread(target=server.run, args=(sockets,), daemon=True)
    thread.start()
    assert started.wait(10), "the server did not start"
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)


@contextmanager
def context_over(build: Build, **settings: Any) -> Iterator[Context]:
    """A server's context over an engine, closed at the end; `settings` are ServerConfig's."""
    from leafage.cli.serve import make_context
    from leafage.server.config import ServerConfig

    context = make_context(build, ServerConfig(**settings))
    try:
        yield context
    finally:
        context.close()


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of printable characters, one token each, with a chat template."""
    from leafage.tiny_model import write_tiny_model

    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    template = json.dumps({"chat_template": TINY_TEMPLATE})
    (folder / "tokenizer_config.json").write_text(template, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def tiny_assets(tiny_folder: Path) -> Assets:
    """The same, loaded."""
    from leafage.build import load_assets
    from leafage.config import EngineConfig

    return load_assets(EngineConfig(model=str(tiny_folder), threads=1))


def tiny_build(assets: Assets, **settings: Any) -> Build:
    """An engine over the tiny model; `settings` are EngineConfig's."""
    from leafage.build import assemble
    from leafage.config import EngineConfig

    config = EngineConfig(model="tiny", **{"threads": 1, "kv_cache_tokens": 4096, "seed": 1, **settings})
    return assemble(config, assets)


@contextmanager
def tiny_server(
    assets: Assets, engine: dict[str, Any] | None = None, *, send_buffer: int | None = None, **settings: Any
) -> Iterator[tuple[Context, int]]:
    """A server of its own over the tiny model, and its port; `engine` are EngineConfig's settings."""
    from leafage.server.app import create_app

    build = tiny_build(assets, **(engine or {}))
    with (
        context_over(build, **settings) as context,
        serving(create_app(context), send_buffer=send_buffer) as url,
    ):
        yield context, int(url.rpartition(":")[2])


def slow_down(context: Context, patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Make each step take so much longer."""
    execute = context.core.executor.execute

    def slowly(batch: Any) -> Any:
        time.sleep(seconds)
        return execute(batch)

    patch.setattr(context.core.executor, "execute", slowly)


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for it."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.001)


@pytest.fixture(scope="module")
def tiny_context(tiny_assets: Assets) -> Iterator[Context]:
    with context_over(tiny_build(tiny_assets)) as context:
        yield context


@pytest.fixture(scope="module")
def tiny_url(tiny_context: Context) -> Iterator[str]:
    """A server over the tiny model behind a socket, for the module."""
    from leafage.server.app import create_app

    with serving(create_app(tiny_context)) as url:
        yield url


@pytest.fixture(scope="module")
def real_url(assets: Assets) -> Iterator[str]:
    """A server over SmolLM2 behind a socket, for the module; the model's name is smollm2."""
    from leafage.build import assemble
    from leafage.config import EngineConfig
    from leafage.server.app import create_app

    build = assemble(EngineConfig(model="smollm2", kv_cache_tokens=16384), assets)
    with context_over(build) as context, serving(create_app(context)) as url:
        yield url


def write_config(folder: Path, text: str) -> Path:
    """A TOML file."""
    path = folder / "leafage.toml"
    path.write_text(text, encoding="utf-8")
    return path
