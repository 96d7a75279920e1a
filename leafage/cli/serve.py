"""`leafage serve`: the OpenAI API over one model."""

from __future__ import annotations

import atexit
import gc
import hashlib
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leafage import __version__, store
from leafage.cli import EXIT_ERROR, terminal
from leafage.cli.flags import with_flags
from leafage.cli.settings import Settings
from leafage.config import EngineConfig
from leafage.errors import InvalidParameterError
from leafage.server.config import ServerConfig, read_api_keys

if TYPE_CHECKING:
    import socket

    from leafage.build import Build
    from leafage.engine.request_log import RequestLog
    from leafage.server.context import Context, ServedModel
    from leafage.server.tracing import Tracing

CLOSE_SECONDS = 5.0
"""For the step that runs at the end."""
_ENGINE_FLAGS = tuple(f.name for f in fields(EngineConfig) if f.name != "model")
_SERVER_FLAGS = tuple(f.name for f in fields(ServerConfig))


@with_flags(_ENGINE_FLAGS, server=_SERVER_FLAGS)
def serve(
    model: str | None = None,
    *,
    config: Path | None = None,
    **flags: Any,
) -> int:
    """Serve a model through the OpenAI API until SIGTERM or Ctrl-C.

    Each flag is also a variable (`--max-queue`: LEAFAGE_MAX_QUEUE, several values with commas) and a key of
    the configuration file (`max_queue = 100`). A flag goes before a variable, a variable before the file.

    Parameters
    ----------
    model
        A known name (`leafage ls`), a .gguf file, a Hugging Face folder, or hf:owner/repo[/file];
        default: smollm2.
    config
        TOML file with settings; also LEAFAGE_CONFIG.
    """
    given = flags if model is None else {"model": model, **flags}
    settings = Settings((EngineConfig, ServerConfig), given, os.environ, config)
    from leafage.engine.request_log import open_request_log
    from leafage.server.http_server import bind
    from leafage.server.tracing import check_installed

    with settings.named():
        engine_config = EngineConfig(**settings.of(EngineConfig))
        server_config = ServerConfig(**settings.of(ServerConfig))
        if server_config.api_key_file is not None:
            keys = read_api_keys(server_config.api_key_file)
            server_config = replace(server_config, api_key=server_config.api_key + keys, api_key_file=None)
        if server_config.otlp_traces_endpoint is not None:
            check_installed()
        if server_config.request_log is not None:
            with _writing(server_config.request_log) as path:
                os.close(open_request_log(path))  # now, not when the model is loaded
    sockets = bind(server_config.host, server_config.port)
    url = _url(server_config.host, sockets[0].getsockname()[1])
    with settings.named():
        build = _load(engine_config)
    context = make_context(build, server_config)
    try:
        code = _run(context, sockets, lambda: _greet(context, build, url))
    finally:
        _close(context)
    return code


def _load(config: EngineConfig) -> Build:
    terminal.find_model(config.model)
    from leafage.build import build_engine

    label = f"loading {Path(config.model).name}"
    with terminal.ByteProgress(delay=0.7, transient=True) as progress:
        build = build_engine(config, on_progress=lambda done, total: progress(label, done, total))
    gc.freeze()  # as in terminal.open_llm
    atexit.register(gc.unfreeze)
    return build


def _run(context: Context, sockets: list[socket.socket], on_ready: Callable[[], None]) -> int:
    """Serve until a signal has drained the server; the exit code."""
    from leafage.server.app import create_app
    from leafage.server.http_server import HttpServer

    server = HttpServer(
        create_app(context), context.config, context.lifecycle, say=terminal.say, on_ready=on_ready
    )
    server.run(sockets)
    return server.exit_code


def _close(context: Context) -> None:
    """End the engine after its step, or, when that hangs, the process."""
    code = EXIT_ERROR
    killer = threading.Timer(CLOSE_SECONDS, lambda: os._exit(code))
    killer.daemon = True
    killer.start()
    context.close()
    killer.cancel()


def _url(host: str, port: int) -> str:
    """What a browser on this machine asks for."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}"


def _greet(context: Context, build: Build, url: str) -> None:
    """Say what is served, where, and how to try it."""
    from leafage.server.limits import is_loopback

    config, plan = context.config, build.plan
    key = " -H 'Authorization: Bearer YOUR_KEY'" if config.api_key else ""
    path, body = "/v1/completions", '{"prompt": "Hello", "max_tokens": 20}'
    if build.template_source or build.tokenizer.chat_template:
        path, body = "/v1/chat/completions", '{"messages": [{"role": "user", "content": "Hello"}]}'
    swap = f"swap space {plan.num_swap_slots * plan.block_size:,} tokens ({store.human(plan.swap_bytes)})"
    terminal.say(f"{terminal.plan_line(build)}, {swap if plan.num_swap_slots else 'no swap space'}")
    if not config.api_key and not is_loopback(config.host):
        warnings.warn(
            f"everyone who reaches {config.host} may use this server; give --api-key-file", stacklevel=2
        )
    terminal.say(f"try: curl {url}{path}{key} -H 'Content-Type: application/json' -d '{body}'")
    names = ", ".join(context.model.names)
    pages = [page for page, on in (("live page at /", config.live), ("docs at /docs", config.docs)) if on]
    terminal.say(f"serving {names} at {url}" + (f" ({', '.join(pages)})" if pages else ""))


def make_context(build: Build, config: ServerConfig) -> Context:
    """What the server's routes share, over an engine that was built; it takes the engine over."""
    from leafage.engine.async_engine import AsyncEngine
    from leafage.server.context import Context, ServedModel
    from leafage.server.tools.chat_format import ChatFormat

    @cache
    def chat_format() -> ChatFormat:
        return ChatFormat(
            build.tokenizer,
            build.template,
            tool_parser=config.tool_parser,
            tool_template=config.tool_template,
            reasoning_parser=config.reasoning_parser,
        )

    served = ServedModel(
        names=config.served_model_name or (Path(build.model.name).name,),
        created=int(time.time()),
        max_model_len=build.plan.max_model_len,
        tokenizer=build.tokenizer,
        inputs=build.inputs,
        default_sampling_params=build.default_sampling_params,
        template=lambda: build.template,
        chat_format=chat_format,
        kv_dtype=build.config.kv_dtype,
        fingerprint=_fingerprint(build),
        facts=_facts(build),
    )
    request_log, tracing = _open_request_log(build, config), _open_tracing(build, config, served)
    engine = AsyncEngine(build.engine, build.outputs, build.inputs)
    return Context(config, served, engine, build.engine, build.metrics, request_log, tracing)


def _fingerprint(build: Build) -> str:
    """Of all that tokens depend on besides the request: the model, how it computes, and Leafage itself."""
    config = build.config
    settings = (__version__, build.kernels, config.kv_dtype, config.compute, config.quantize)
    template = build.template_source or build.tokenizer.chat_template
    model = (build.model.path.name, build.model.file_bytes, build.model.architecture, template)
    digest = hashlib.sha256(repr((settings, model)).encode()).hexdigest()
    return f"fp_{digest[:16]}"


def _facts(build: Build) -> dict[str, Any]:
    """What the live page says of the engine, besides what it does."""
    from leafage.cli.chat import CHAT_SAMPLING
    from leafage.core.sampling_params import SamplingParams

    plan, config = build.plan, build.config
    return {
        "architecture": build.model.architecture,
        "kernels": build.kernels,
        "threads": build.threads,
        "kv": config.kv,
        "prefix_index": config.prefix_index if config.has_prefix_cache else "none",
        "policy": config.policy,
        "max_num_seqs": config.max_num_seqs,
        "block_bytes": plan.block_bytes,
        "num_swap_slots": plan.num_swap_slots,
        "weight_bytes": plan.weight_bytes,
        "chat": CHAT_SAMPLING if build.default_sampling_params == SamplingParams() else {},
    }


def _open_request_log(build: Build, config: ServerConfig) -> RequestLog | None:
    from leafage.engine.request_log import RequestLog

    if config.request_log is None:
        return None
    with _writing(config.request_log) as path:
        return RequestLog(
            path,
            build.metrics,
            block_size=build.plan.block_size,
            plain_tenants=config.request_log_tenants == "plain",
        )


def _open_tracing(build: Build, config: ServerConfig, served: ServedModel) -> Tracing | None:
    from leafage.server.tracing import Tracing, otlp_exporter

    if config.otlp_traces_endpoint is None:
        return None
    return Tracing(otlp_exporter(config.otlp_traces_endpoint), served.name, build.metrics)


@contextmanager
def _writing(path: str) -> Iterator[Path]:
    """Raises InvalidParameterError where the request log cannot be written."""
    try:
        yield Path(path).expanduser()
    except OSError as error:
        raise InvalidParameterError(
            f"request_log cannot be written: {error.strerror}", value=path, remedy="name another file"
        ) from error
