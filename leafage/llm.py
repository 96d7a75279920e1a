"""LLM: the engine in this process, for scripts and notebooks."""

from __future__ import annotations

import itertools
import queue
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, overload

from leafage.build import Build, build_engine
from leafage.config import DEFAULT_MODEL, EngineConfig
from leafage.core.sampling_params import SamplingParams
from leafage.engine.engine_thread import EngineThread
from leafage.engine.inputs import NewRequest, Prompt
from leafage.engine.output import RequestOutput
from leafage.engine.pins import Pin
from leafage.errors import InvalidParameterError, RequestError

Message = Mapping[str, Any]
Conversation = Sequence[Message]
Progress = Callable[[int, int], None]
"""Called with (done, total)."""


class LLM:
    """A model, ready to answer.

    All methods may be called from several threads at once: their requests share the batch and the cache. The
    engine runs on a thread of its own, so Ctrl-C ends the waiting call, aborts its requests and leaves the
    LLM as usable as before. Use it as a context manager, or call `close`, to give the memory back.

    Args:
        model: alias (`smollm2`), path, or `hf:owner/repo[/file]`; an alias that is not on this machine yet is
            pulled first.
        on_progress: called with (bytes done, bytes in all) while the weights are loaded.
        settings: fields of `EngineConfig`.

    Raises:
        InvalidParameterError: an unknown setting or one out of range.
        ModelNotFoundError, ModelFileError, UnsupportedError: the model cannot be used.
    """

    def __init__(
        self, model: str = DEFAULT_MODEL, *, on_progress: Progress | None = None, **settings: Any
    ) -> None:
        self._start(build_engine(EngineConfig.from_kwargs(model=model, **settings), on_progress=on_progress))

    @classmethod
    def from_config(cls, config: EngineConfig, *, on_progress: Progress | None = None) -> LLM:
        """An LLM with these settings."""
        return cls.from_build(build_engine(config, on_progress=on_progress))

    @classmethod
    def from_build(cls, build: Build) -> LLM:
        """An LLM over an engine that was built elsewhere; it takes the engine over."""
        llm = cls.__new__(cls)
        llm._start(build)
        return llm

    def _start(self, build: Build) -> None:
        self._build: Build | None = build
        self._thread = EngineThread(build.engine, build.outputs)
        self._numbers = itertools.count()
        self._finalizer = weakref.finalize(self, self._thread.close)

    @overload
    def generate(
        self,
        prompts: str | Mapping[str, Any],
        sampling_params: SamplingParams | None = None,
        *,
        progress: bool | Progress = ...,
        use_tqdm: bool | None = ...,
        priority: int = ...,
    ) -> list[RequestOutput]: ...

    @overload
    def generate(
        self,
        prompts: Sequence[Prompt] | Sequence[int],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | Progress = ...,
        use_tqdm: bool | None = ...,
        priority: int = ...,
    ) -> list[RequestOutput]: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | Progress = False,
        use_tqdm: bool | None = None,
        priority: int = 0,
    ) -> list[RequestOutput]:
        """Answer one prompt or many; returns when all are done, in the order of the prompts.

        Args:
            prompts: a text, a list of token ids, a dict with "prompt" or "prompt_token_ids" (and, if wanted,
                "cache_salt" and "tenant", see `chat`), or a list of these.
            sampling_params: for all prompts, or one for each; None means `default_sampling_params`.
            progress: show a progress bar on stderr, or call this with (done, total) requests.
            use_tqdm: vLLM's name of `progress`.
            priority: lower runs first.

        Raises:
            InvalidParameterError, RequestTooLargeError: a prompt or parameter was refused; then none ran.
            RequestError: a request ended with an error; its `outputs` holds what all requests gave.
        """
        items = _as_list(prompts)
        params = self._params_for(sampling_params, len(items))
        new = [
            self._inputs.request(self._next_id(), prompt, own, priority=priority)
            for prompt, own in zip(items, params, strict=True)
        ]
        return self._run(new, progress if use_tqdm is None else use_tqdm)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | Progress = False,
        use_tqdm: bool | None = None,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str | None = None,
        **template_kwargs: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or many through the model's chat template.

        Args:
            messages: dicts with "role" and "content", or a list of such lists.
            cache_salt: prefixes are shared only with requests of the same salt.
            tenant: whom the policy `fair` charges; default: the cache_salt.
            template_kwargs: passed to `leafage.text.chat_template.encode_chat`.

        Raises:
            TemplateError: the model has no chat template, or the template refused the messages.
            Otherwise as `generate`.
        """
        conversations = _as_conversations(messages)
        params = self._params_for(sampling_params, len(conversations))
        new = [
            self._inputs.request(
                self._next_id(),
                self._chat_prompt(conversation, cache_salt, tenant, template_kwargs),
                own,
                priority=priority,
            )
            for conversation, own in zip(conversations, params, strict=True)
        ]
        return self._run(new, progress if use_tqdm is None else use_tqdm)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, priority: int = 0
    ) -> Stream:
        """Answer one prompt, piece by piece.

        Each RequestOutput holds what is new; joined, the texts are those of `generate`. The request starts at
        once; leaving the iterator early aborts it.

        Raises:
            InvalidParameterError, RequestTooLargeError: the request was refused.
        """
        params = self.default_sampling_params if sampling_params is None else sampling_params
        return self._stream(self._inputs.request(self._next_id(), prompt, params, priority=priority))

    def chat_stream(
        self,
        messages: Conversation,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str | None = None,
        **template_kwargs: Any,
    ) -> Stream:
        """`chat` for one conversation, piece by piece, as `stream`."""
        prompt = self._chat_prompt(messages, cache_salt, tenant, template_kwargs)
        return self.stream(prompt, sampling_params, priority=priority)

    def pin_prefix(
        self, prompt: Prompt, ttl: float | None = None, cache_salt: str = "", *, priority: int = 0
    ) -> Pin:
        """Keep the K/V of a prefix cached, whatever else needs memory. Returns when it is computed.

        Pins may hold a share of the KV pool together (`EngineConfig.pinned_share`); what they have in common
        counts once.

        Args:
            prompt: as for `generate`: the beginning of prompts to come.
            ttl: seconds after which the pin expires; None: it lasts until it is released.
            cache_salt: of the requests that are to share it.
            priority: of computing it; lower runs first.

        Raises:
            PinRefusedError: the pins would exceed their share.
            InvalidParameterError, RequestTooLargeError, UnsupportedError: it was refused, see
                `Engine.pin_prefix`.
            LeafageError: computing it ended with an error.
        """
        prefix = self._inputs.prefix(prompt, cache_salt=cache_salt, priority=priority)
        accepted, held = self._thread.pin(prefix, ttl)
        try:
            accepted.result()
            return held.result()
        except BaseException:  # Ctrl-C, or refused: nothing of this call stays behind
            self._thread.abandon_pin(accepted)
            raise

    def pin_chat_prefix(
        self,
        messages: Conversation,
        ttl: float | None = None,
        cache_salt: str = "",
        *,
        priority: int = 0,
        **template_kwargs: Any,
    ) -> Pin:
        """`pin_prefix` for the beginning of conversations: what all that start with these messages share.

        Args:
            messages: a system prompt, with or without first turns; not the whole of a conversation.
            template_kwargs: as for `chat`; they must be those of the conversations.

        Raises:
            TemplateError: the model has no chat template, or the template refused the messages.
            Otherwise as `pin_prefix`.
        """
        token_ids = self._open.encode_chat_prefix(messages, **template_kwargs)
        return self.pin_prefix(token_ids, ttl, cache_salt, priority=priority)

    def list_pins(self) -> list[Pin]:
        """All pins, the oldest first; those that are still being computed hold 0 blocks."""
        return self._thread.pins().result()

    @property
    def default_sampling_params(self) -> SamplingParams:
        """What a request without parameters gets: as in vLLM, what the model's `generation_config.json`
        recommends, else the defaults of SamplingParams."""
        return self._open.default_sampling_params

    @property
    def tokenizer(self) -> Any:
        """The model's `leafage.text.tokenizer.Tokenizer`."""
        return self._open.tokenizer

    @property
    def build(self) -> Build:
        """Everything the engine was built of: model, memory plan, settings."""
        return self._open

    def stats(self) -> dict[str, int | float]:
        """Counters of the engine and of the KV cache, taken between two steps."""
        return self._thread.call(self._open.stats).result()

    def reset_prefix_cache(self) -> int:
        """Forget all cached prefixes that no running request uses; returns how many blocks that freed."""
        return self._thread.call(self._open.reset_prefix_cache).result()

    def close(self) -> None:
        """Stop the engine, join its threads and release its memory. Calls that still wait end with
        RequestError; so do later ones."""
        self._finalizer()
        self._build = None

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _open(self) -> Build:
        build = self._build
        if build is None:
            raise RequestError("this LLM is closed", remedy="create a new one")
        return build

    @property
    def _inputs(self) -> Any:
        return self._open.inputs

    def _next_id(self) -> str:
        return str(next(self._numbers))

    def _chat_prompt(
        self, messages: Conversation, cache_salt: str, tenant: str | None, template_kwargs: dict[str, Any]
    ) -> Prompt:
        token_ids = self._open.encode_chat(messages, **template_kwargs)
        return {"prompt_token_ids": token_ids, "cache_salt": cache_salt, "tenant": tenant}

    def _params_for(
        self, params: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> Sequence[SamplingParams]:
        if params is None:
            params = self.default_sampling_params
        if isinstance(params, SamplingParams):
            return [params] * count
        if len(params) != count:
            raise InvalidParameterError(
                "there must be one SamplingParams for all prompts or one for each",
                value=f"{len(params)} for {count} prompts",
            )
        return params

    def _run(self, new: list[NewRequest], progress: bool | Progress) -> list[RequestOutput]:
        if not new:
            return []
        done: queue.SimpleQueue[tuple[int, RequestOutput]] = queue.SimpleQueue()
        results: dict[int, RequestOutput] = {}

        def sink(index: int, output: RequestOutput) -> None:
            done.put((index, output))

        with _ProgressReport(progress, len(new)) as report:
            try:
                self._thread.submit(new, [partial(sink, i) for i in range(len(new))], stream=False).result()
                while len(results) < len(new):
                    index, output = done.get()
                    results[index] = output
                    report(len(results), len(new))
            except BaseException:  # Ctrl-C, or refused: nothing of this call stays behind
                self._thread.abort([request.request_id for request in new])
                raise
        outputs = [results[i] for i in range(len(new))]
        _raise_first_error(outputs)
        return outputs

    def _stream(self, new: NewRequest) -> Stream:
        outputs: queue.SimpleQueue[RequestOutput] = queue.SimpleQueue()
        try:
            self._thread.submit([new], [outputs.put], stream=True).result()
        except BaseException:
            self._thread.abort([new.request_id])
            raise
        return Stream(self._thread, new.request_id, outputs)


class Stream(Iterator[RequestOutput]):
    """Outputs of one running request. `close`, leaving a `with` block, or dropping it aborts the request.

    Raises (from `next`): the error that the request ended with, after everything it gave before.
    """

    def __init__(
        self, thread: EngineThread, request_id: str, outputs: queue.SimpleQueue[RequestOutput]
    ) -> None:
        self.request_id = request_id
        self._thread = thread
        self._outputs = outputs
        self._open = True

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> RequestOutput:
        if not self._open:
            raise StopIteration
        try:
            output = self._outputs.get()
        except BaseException:
            self.close()
            raise
        if output.finished:
            self._open = False
        if output.error is not None:
            self.close()
            raise output.error
        return output

    def close(self) -> None:
        """Abort the request if it still runs."""
        if self._open:
            self._open = False
            self._thread.abort([self.request_id])

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def _raise_first_error(outputs: list[RequestOutput]) -> None:
    failed = [output for output in outputs if output.error is not None]
    if not failed:
        return
    first = failed[0].error
    error = RequestError(
        f"{len(failed)} of {len(outputs)} requests ended with an error, the first: {first}",
        remedy="what the others gave is in this error's `outputs`",
    )
    error.outputs = outputs
    raise error from first


def _as_list(prompts: Any) -> list[Prompt]:
    """One prompt or many? A sequence of integers is one prompt."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if getattr(prompts, "ndim", None) == 1:  # a NumPy array of ids
        return [prompts]
    items = list(prompts)
    if items and all(hasattr(item, "__index__") for item in items):
        return [items]
    return items


def _as_conversations(messages: Any) -> list[Conversation]:
    items = list(messages)
    if items and all(isinstance(item, Mapping) for item in items):
        return [items]
    return items


class _ProgressReport:
    """A context that gives a function to report (done, total) to."""

    def __init__(self, progress: bool | Progress, total: int) -> None:
        self._report = progress if callable(progress) else None
        self._bar: Any = None
        if progress is True:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

            self._bar = Progress(
                "requests",
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task("requests", total=total)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
            return lambda done, total: self._bar.update(self._task, completed=done)
        return self._report or (lambda done, total: None)

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()
