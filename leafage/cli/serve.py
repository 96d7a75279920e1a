"""`leafage serve`: the OpenAI API over one model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from leafage.cli import terminal
from leafage.cli.flags import ENGINE_FLAGS, engine_settings, with_flags
from leafage.config import DEFAULT_MODEL, EngineConfig

if TYPE_CHECKING:
    from leafage.build import Build
    from leafage.server.config import ServerConfig
    from leafage.server.context import Context


@with_flags(ENGINE_FLAGS)
def serve(
    model: Annotated[str, Parameter(env_var="LEAFAGE_MODEL")] = DEFAULT_MODEL,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    **flags: Any,
) -> None:
    """Serve a model through the OpenAI API until Ctrl-C.

    Parameters
    ----------
    model
        A known name (`leafage ls`), a path to a .gguf file or Hugging Face folder, or hf:owner/repo[/file].
    """
    import uvicorn

    from leafage.build import build_engine
    from leafage.server.app import create_app
    from leafage.server.config import ServerConfig

    config = ServerConfig(host=host, port=port)
    build = build_engine(EngineConfig.from_kwargs(model=model, **engine_settings(flags)))
    terminal.say(terminal.plan_line(build))
    context = make_context(build, config)
    try:
        uvicorn.run(create_app(context), host=host, port=port, log_level="warning")
    finally:
        context.engine.close()


def make_context(build: Build, config: ServerConfig) -> Context:
    """What the server's routes share, over an engine that was built; it takes the engine over."""
    from leafage.engine.async_engine import AsyncEngine
    from leafage.server.context import Context, ServedModel

    served = ServedModel(
        names=config.served_model_name or (Path(build.model.name).name,),
        created=int(time.time()),
        max_model_len=build.plan.max_model_len,
        tokenizer=build.tokenizer,
        inputs=build.inputs,
        default_sampling_params=build.default_sampling_params,
        template=lambda: build.template,
    )
    engine = AsyncEngine(build.engine, build.outputs, build.inputs)
    return Context(config, served, engine, build.engine, build.metrics)
