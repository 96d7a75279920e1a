"""What all routes share: the engine, what is served, the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from leafage.core.sampling_params import SamplingParams
from leafage.engine.inputs import InputProcessor
from leafage.server.admission import Admission
from leafage.server.config import ServerConfig
from leafage.server.errors import ApiError
from leafage.server.exposition import Exposition
from leafage.server.http_counters import HttpCounters
from leafage.server.lifecycle import Lifecycle
from leafage.server.sessions import MAX_BYTES, MAX_SESSIONS, TTL, BoundedStore, Conversation
from leafage.server.tools.chat_format import ChatFormat
from leafage.text.chat_template import ChatTemplate
from leafage.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from leafage.engine.async_engine import AsyncEngine
    from leafage.engine.engine import Engine
    from leafage.engine.metrics import EngineMetrics
    from leafage.engine.request_log import RequestLog
    from leafage.server.tracing import Tracing


NUM_ENCODERS = 2
REJECTIONS = ("queue_full", "rate_limit", "unauthorized", "body_too_large", "draining", "timeout")
"""Why a limit of the server turns a request away."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model as clients see it.

    Attributes:
        names: what requests may call it; answers carry the first.
        created: seconds since 1970, of the start.
        max_model_len: most tokens of one sequence, prompt and output.
        template: gives the chat template; raises TemplateError where there is none.
        chat_format: gives how tools and reasoning are written; raises the same.
        kv_dtype: what K and V are kept in.
        fingerprint: the same for two servers that give the same tokens for the same request.
        facts: further ones for people and dashboards: architecture, memory plan, kernels...
    """

    names: tuple[str, ...]
    created: int
    max_model_len: int
    tokenizer: Tokenizer
    inputs: InputProcessor
    default_sampling_params: SamplingParams
    template: Callable[[], ChatTemplate]
    chat_format: Callable[[], ChatFormat]
    kv_dtype: str
    fingerprint: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.names[0]

    def check_name(self, name: str | None) -> None:
        """Raises ApiError 404 for a name that is not served. None means the model there is."""
        if name is not None and name not in self.names:
            served = ", ".join(self.names)
            raise ApiError(
                f"the model {name!r} is not served here; served: {served}. Use one of these names",
                status=404,
                param="model",
                code="model_not_found",
            )


@dataclass(slots=True)
class Context:
    """One for each server; `request.app.state.context`.

    Attributes:
        core: the engine itself, to be looked at in `engine.call` only.
        metrics: its counters; the same.
        request_log: where requests are noted when they end.
        tracing: makes OpenTelemetry spans of requests.
        lifecycle: whether requests are taken, and which are to be answered.
        admission: whether the engine is given one more.
        encoders: threads that encode long texts.
        rejections: requests that a limit turned away, by reason.
        http: requests and responses.
        exposition: all numbers, for /metrics.
        sessions: conversations whose token ids are kept, by their key.
        responses: answers of /v1/responses that are kept, by owner and id.
    """

    config: ServerConfig
    model: ServedModel
    engine: AsyncEngine
    core: Engine
    metrics: EngineMetrics
    request_log: RequestLog | None = None
    tracing: Tracing | None = None
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    admission: Admission = field(init=False)
    encoders: ThreadPoolExecutor = field(init=False)
    rejections: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REJECTIONS, 0))
    http: HttpCounters = field(default_factory=HttpCounters)
    exposition: Exposition = field(init=False)
    sessions: BoundedStore[tuple[str, ...], Conversation] = field(
        default_factory=lambda: BoundedStore(MAX_SESSIONS, MAX_BYTES, TTL)
    )
    responses: BoundedStore[tuple[str, str], Any] = field(
        default_factory=lambda: BoundedStore(MAX_SESSIONS, MAX_BYTES)
    )

    def __post_init__(self) -> None:
        engine = self.engine
        self.admission = Admission(
            self.config, self.core, self.metrics, lambda: engine.num_submitted, self.rejections
        )
        self.encoders = ThreadPoolExecutor(NUM_ENCODERS, thread_name_prefix="leafage-encode")
        log = self.request_log
        self.exposition = Exposition(
            self.model.name,
            self.engine,
            self.core,
            self.metrics,
            self.http,
            self.rejections,
            cache_dtype=self.model.kv_dtype,
            num_lost_lines=lambda: 0 if log is None else log.num_lost,
        )

    def close(self) -> None:
        """Stop the engine; what still runs ends with an error."""
        self.engine.close()
        self.encoders.shutdown(wait=False, cancel_futures=True)
        if self.request_log is not None:
            self.request_log.close()
        if self.tracing is not None:
            self.tracing.close()


def context_of(request: Request) -> Context:
    """The server's context."""
    context: Context = request.app.state.context
    return context
