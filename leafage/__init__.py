"""Leafage: an LLM serving engine for machines people already own.

from leafage import LLM, SamplingParams

with LLM("smollm2") as llm:
    print(llm.generate("The capital of France is", SamplingParams(temperature=0)).outputs[0].text)

Names are imported when they are first used, so `import leafage` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leafage.config import EngineConfig
    from leafage.core.misses import PrefixMiss
    from leafage.core.sampling_params import SamplingParams
    from leafage.engine.async_engine import AsyncEngine
    from leafage.engine.output import CompletionOutput, Logprob, RequestOutput
    from leafage.engine.pins import Pin
    from leafage.errors import (
        DownloadError,
        ExecutorError,
        InvalidParameterError,
        LeafageError,
        ModelFileError,
        ModelNotFoundError,
        PinRefusedError,
        RequestError,
        RequestTooLargeError,
        TemplateError,
        UnsupportedError,
    )
    from leafage.llm import LLM

__version__ = "0.1.0"

_WHERE = {
    "LLM": "leafage.llm",
    "AsyncEngine": "leafage.engine.async_engine",
    "CompletionOutput": "leafage.engine.output",
    "EngineConfig": "leafage.config",
    "Logprob": "leafage.engine.output",
    "Pin": "leafage.engine.pins",
    "PrefixMiss": "leafage.core.misses",
    "RequestOutput": "leafage.engine.output",
    "SamplingParams": "leafage.core.sampling_params",
    "DownloadError": "leafage.errors",
    "ExecutorError": "leafage.errors",
    "InvalidParameterError": "leafage.errors",
    "LeafageError": "leafage.errors",
    "ModelFileError": "leafage.errors",
    "ModelNotFoundError": "leafage.errors",
    "PinRefusedError": "leafage.errors",
    "RequestError": "leafage.errors",
    "RequestTooLargeError": "leafage.errors",
    "TemplateError": "leafage.errors",
    "UnsupportedError": "leafage.errors",
}

__all__ = [
    "LLM",
    "AsyncEngine",
    "CompletionOutput",
    "DownloadError",
    "EngineConfig",
    "ExecutorError",
    "InvalidParameterError",
    "LeafageError",
    "Logprob",
    "ModelFileError",
    "ModelNotFoundError",
    "Pin",
    "PinRefusedError",
    "PrefixMiss",
    "RequestError",
    "RequestOutput",
    "RequestTooLargeError",
    "SamplingParams",
    "TemplateError",
    "UnsupportedError",
]


def __getattr__(name: str) -> Any:
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module 'leafage' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
