"""From deltas to what users read: text, tokens, log-probabilities, finish reasons and times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, overload

from leafage.core.batch import SampledToken
from leafage.core.misses import PrefixMiss
from leafage.core.request import Delta, FinishKind, FinishReason, Request, derive
from leafage.engine.metrics import EngineMetrics, RequestMetrics
from leafage.engine.stop import Detokenizer, StopStringCheck, TextStream, output_error


class TextDecoder(Protocol):
    """What the output side needs of a tokenizer."""

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer: ...
    def token_text(self, token_id: int) -> str: ...


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's natural log-probability, its rank (1 is the most likely) and its text."""

    logprob: float
    rank: int
    decoded_token: str


LogprobDict = dict[int, Logprob]
"""Of one position: the token that stands there first, then the most likely ones, by token id."""


class TokenTexts:
    """Texts of single tokens, each asked of the tokenizer once. From any thread."""

    def __init__(self, tokenizer: TextDecoder | None) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def of(self, token_id: int) -> str:
        text = self._texts.get(token_id)
        if text is None:
            text = "" if self._tokenizer is None else self._tokenizer.token_text(token_id)
            self._texts[token_id] = text
        return text


class TokenLogprobs(SequenceOf[LogprobDict]):
    """Log-probabilities of consecutive tokens, a LogprobDict for each. A sequence that equals the list of its
    dicts; a dict is made when it is read, so that a step of the engine need not wait for it. Where a list is
    needed (JSON), `list(...)` makes one.

    Args:
        tokens: as sampled.
        count: how many of the most likely tokens a position reports.
    """

    __slots__ = ("_count", "_texts", "tokens")

    def __init__(self, tokens: list[SampledToken], count: int, texts: TokenTexts) -> None:
        self.tokens = tokens
        self._count = count
        self._texts = texts

    def __len__(self) -> int:
        return len(self.tokens)

    @overload
    def __getitem__(self, index: int) -> LogprobDict: ...
    @overload
    def __getitem__(self, index: slice) -> list[LogprobDict]: ...
    def __getitem__(self, index: int | slice) -> LogprobDict | list[LogprobDict]:
        if isinstance(index, slice):
            return [self._dict(token) for token in self.tokens[index]]
        return self._dict(self.tokens[index])

    def __iter__(self) -> Iterator[LogprobDict]:
        return map(self._dict, self.tokens)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, TokenLogprobs)):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: SequenceOf[LogprobDict]) -> list[LogprobDict]:
        return [*self, *other]

    def __radd__(self, other: SequenceOf[LogprobDict]) -> list[LogprobDict]:
        return [*other, *self]

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> tuple[type[list[LogprobDict]], tuple[list[LogprobDict]]]:
        return list, (list(self),)

    def _dict(self, token: SampledToken) -> LogprobDict:
        """vLLM's shape: the token itself first, then the `count` best, each once."""
        text_of = self._texts.of
        found = {token.token_id: Logprob(token.logprob, token.rank, text_of(token.token_id))}
        for rank, (token_id, logprob) in enumerate(token.top[: self._count], start=1):
            if token_id not in found:
                found[token_id] = Logprob(logprob, rank, text_of(token_id))
        return found


def sampled_tokens(logprobs: SequenceOf[LogprobDict]) -> list[SampledToken]:
    """The tokens behind an answer's log-probabilities, for those who write them in a shape of their own."""
    assert isinstance(logprobs, TokenLogprobs)
    return logprobs.tokens


@dataclass(slots=True)
class CompletionOutput:
    """One sequence of a request's output.

    Attributes:
        index: its number within the request; with best_of and beam search its rank, best first.
        text: without the stop string and without the text of the id that ended it.
        token_ids: all drawn ids, the one that ended it included.
        cumulative_logprob: sum over the tokens' log-probabilities; None unless logprobs, best_of or beam
            search were asked for.
        logprobs: per token, None unless asked for.
        finish_reason: 'stop', 'length', 'abort', 'error', or None while it runs.
        stop_reason: the stop string or stop token id that ended it; None for an end-of-generation id.
        seed: with `n=1` this seed reproduces this sequence alone; None for beam search, which draws nothing.
        error: the reason of finish_reason 'error'.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: SequenceOf[LogprobDict] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    seed: int | None = None
    error: Exception | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """A request's answer, or, while streaming, what is new of it since the output before.

    Attributes:
        prompt: the prompt's text, None when it was given as token ids.
        prompt_logprobs: per prompt token, None for the first; None unless asked for. Streams carry it once,
            on the first output that comes after the prompt.
        num_cached_tokens: prompt tokens that came from the cache.
        prefix_miss: where the cached prefix ended and why; None when nothing but the last token was missing,
            and with prompt_logprobs, which take nothing from the cache.
        num_rejected_tokens: drawn for sequences that best_of left out.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    prefix_miss: PrefixMiss | None = None
    prompt_logprobs: list[LogprobDict | None] | None = None
    metrics: RequestMetrics | None = None
    num_rejected_tokens: int = 0

    @property
    def error(self) -> Exception | None:
        """The first error among its sequences."""
        return next((out.error for out in self.outputs if out.error is not None), None)


Sink = Callable[[RequestOutput], None]
"""Takes a request's outputs, on the engine's thread; must not block."""


@dataclass(slots=True, eq=False)
class _SequenceState:
    """A sequence's output so far, or, streaming, what of it was not sent yet.

    Text is made when it is sent: until then `text` lags behind the `num_tokens` that came.
    """

    index: int
    seed: int | None
    text: TextStream
    logprobs: list[SampledToken] | None
    token_ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    cumulative_logprob: float | None = None
    num_tokens: int = 0
    finish: FinishReason | None = None


@dataclass(slots=True, eq=False)
class _RequestState:
    request: Request
    prompt: str | None
    sink: Sink
    stream: bool
    metrics: RequestMetrics
    sequences: list[_SequenceState]
    num_running: int
    prompt_logprobs: list[LogprobDict | None] | None = None
    prompt_logprobs_sent: bool = False
    sink_failed: bool = False
    last_words: RequestOutput | None = None
    ranks: bool = field(init=False)
    """Whether the answers are the best of more sequences, known when all have ended."""
    streams: bool = field(init=False)
    """Whether outputs come before the end."""

    def __post_init__(self) -> None:
        self.ranks = len(self.sequences) > self.request.params.n
        self.streams = self.stream and not self.ranks

    def answers(self) -> list[_SequenceState]:
        """What is sent at the end."""
        if not self.ranks:
            return self.sequences
        best = sorted(self.sequences, key=_badness)[: self.request.params.n]
        for rank, sequence in enumerate(best):
            sequence.index = rank
        return best

    def num_rejected_tokens(self, answers: list[_SequenceState]) -> int:
        """Tokens of the other sequences, where only some are answers."""
        if not self.ranks:
            return 0
        return sum(one.num_tokens for one in self.sequences) - sum(one.num_tokens for one in answers)


class OutputProcessor:
    """Follows every request from deltas to its last output. Lives on the engine's thread.

    Args:
        tokenizer: decodes; None (the simulator) leaves texts empty.
        stop_check: told of sequences that have stop strings; the scheduler asks it.
        metrics: where the times of requests are.
    """

    def __init__(
        self, tokenizer: TextDecoder | None, stop_check: StopStringCheck, metrics: EngineMetrics
    ) -> None:
        self._tokenizer = tokenizer
        self._stop_check = stop_check
        self._metrics = metrics
        self._requests: dict[str, _RequestState] = {}
        self._outbox: list[tuple[_RequestState, RequestOutput]] = []
        self._texts = TokenTexts(tokenizer)

    def add(self, request: Request, prompt: str | None, sink: Sink, *, stream: bool) -> None:
        """Follow a request that the engine has just accepted."""
        params = request.params

        def new_text() -> TextStream:
            return TextStream(
                self._new_detokenizer(params.skip_special_tokens),
                params.stop,
                include_stop=params.include_stop_str_in_output,
                min_tokens=params.min_tokens,
            )

        searches = params.beam_width is not None
        texts = [new_text() for _ in range(params.n if searches else params.num_sequences)]
        if params.stop and searches:
            self._stop_check.watch_beams(request.request_id, new_text)
        elif params.stop:
            self._stop_check.watch(request.request_id, texts)
        sums = searches or params.best_of is not None or params.logprobs is not None
        self._requests[request.request_id] = _RequestState(
            request,
            prompt,
            sink,
            stream,
            self._metrics.of(request.request_id),
            [
                _SequenceState(
                    i,
                    None if searches else derive(request.seed, i),
                    text,
                    None if params.logprobs is None else [],
                    cumulative_logprob=0.0 if sums else None,
                )
                for i, text in enumerate(texts)
            ],
            num_running=len(texts),
            prompt_logprobs=None if params.prompt_logprobs is None else [None],
        )

    def process(self, deltas: list[Delta]) -> list[str]:
        """Make outputs of what a step gave. Returns ids of requests that failed: the engine aborts them."""
        failed: list[str] = []
        for delta in deltas:
            state = self._requests.get(delta.request_id)
            if state is None:  # aborted, or failed here
                continue
            try:
                self._apply(state, delta)
            except Exception as error:
                failed.append(delta.request_id)
                self._end(state, FinishReason(FinishKind.ERROR, error=output_error(error)))
        return failed

    def deliver(self) -> list[str]:
        """Give the sinks what `process` made. Returns ids of requests whose sink failed, to abort as well."""
        failed: list[str] = []
        for number, (state, output) in enumerate(self._outbox):  # a failure adds to it
            if state.sink_failed and output is not state.last_words:
                continue
            try:
                state.sink(output)
            except Exception as error:
                if state.sink_failed:
                    continue  # not even that could be told
                state.sink_failed = True
                failed.append(output.request_id)
                self._fail_sink(state, number, FinishReason(FinishKind.ERROR, error=output_error(error)))
        self._outbox.clear()
        return failed

    def _fail_sink(self, state: _RequestState, number: int, reason: FinishReason) -> None:
        """One more output instead of those from `number` on, which the request's sink did not take."""
        for waiting, output in self._outbox[number:]:
            if waiting is state:
                untold = state.sequences
                if not state.ranks:
                    untold = [state.sequences[completion.index] for completion in output.outputs]
                for sequence in untold:
                    sequence.finish = None
        self._end(state, reason)
        state.last_words = self._outbox[-1][1]

    def end(self, request_id: str, reason: FinishReason) -> None:
        """End a request that the engine no longer has (abort, failure) with what it has so far."""
        state = self._requests.get(request_id)
        if state is not None:
            self._end(state, reason)
            self.deliver()

    def _end(self, state: _RequestState, reason: FinishReason) -> None:
        self._drop(state)
        ended = [sequence for sequence in state.sequences if sequence.finish is None]
        for sequence in ended:
            sequence.finish = reason
            with suppress(Exception):  # the reason given is the one that matters
                _decode(sequence, 0)
                sequence.text.finish()
                sequence.pieces.append(sequence.text.take())
        state.num_running = 0
        self._send(state, ended if state.streams else state.answers())

    def _drop(self, state: _RequestState) -> None:
        if self._requests.get(state.request.request_id) is not state:
            return  # it had ended
        del self._requests[state.request.request_id]
        if state.request.params.stop:
            self._stop_check.forget(state.request.request_id)

    @property
    def request_ids(self) -> list[str]:
        return list(self._requests)

    def _apply(self, state: _RequestState, delta: Delta) -> None:
        sequence = state.sequences[delta.index]
        if delta.prompt_logprobs and state.prompt_logprobs is not None:
            count = state.request.params.prompt_logprobs or 0
            state.prompt_logprobs += TokenLogprobs(delta.prompt_logprobs, count, self._texts)
        if delta.tokens:
            self._append(state, sequence, delta.tokens)
        finish = delta.finish
        streams = state.streams
        if finish is None and not (streams and delta.tokens):
            return
        self._make_text(sequence, finish)
        if finish is not None:
            state.num_running -= 1
            if state.num_running == 0:
                self._drop(state)
        if streams:
            self._send(state, [sequence])
        elif state.num_running == 0:
            self._send(state, state.answers())

    def _append(self, state: _RequestState, sequence: _SequenceState, tokens: list[SampledToken]) -> None:
        sequence.num_tokens += len(tokens)
        sequence.token_ids += [token.token_id for token in tokens]
        if sequence.logprobs is not None:
            sequence.logprobs += tokens
        if sequence.cumulative_logprob is not None:
            sequence.cumulative_logprob += sum(token.logprob for token in tokens)

    def _make_text(self, sequence: _SequenceState, finish: FinishReason | None) -> None:
        """Tokens into text. A stop string that only shows here turns the finish into 'stop'."""
        text = sequence.text
        by_id = _ended_by_id(finish)
        stop = _decode(sequence, by_id)
        if finish is not None:
            if stop is not None:
                finish = FinishReason(FinishKind.STOP, stop)
            text.finish(sequence.token_ids[-1] if by_id else None)
            sequence.finish = finish
        sequence.pieces.append(text.take())

    def _send(self, state: _RequestState, sequences: list[_SequenceState]) -> None:
        count = state.request.params.logprobs or 0
        outputs = [_completion(sequence, count, self._texts) for sequence in sequences]
        if state.stream:
            for sequence in sequences:
                sequence.token_ids, sequence.pieces = [], []
                if sequence.logprobs is not None:
                    sequence.logprobs = []
        prompt_logprobs = state.prompt_logprobs
        if state.stream and prompt_logprobs is not None:
            if state.prompt_logprobs_sent or len(prompt_logprobs) < len(state.request.prompt_token_ids):
                prompt_logprobs = None
            else:
                state.prompt_logprobs_sent = True
        output = RequestOutput(
            state.request.request_id,
            state.prompt,
            state.request.prompt_token_ids,
            outputs,
            finished=state.num_running == 0,
            num_cached_tokens=state.request.num_cached or 0,
            prefix_miss=state.request.prefix_miss,
            prompt_logprobs=prompt_logprobs,
            metrics=state.metrics,
            num_rejected_tokens=state.num_rejected_tokens(sequences),
        )
        self._outbox.append((state, output))

    def _new_detokenizer(self, skip_special_tokens: bool) -> Detokenizer:
        if self._tokenizer is None:
            return _NoText()
        return self._tokenizer.detokenizer(skip_special_tokens=skip_special_tokens)


class _NoText:
    def push(self, token_id: int) -> str:
        return ""

    def flush(self) -> str:
        return ""

    def copy(self) -> _NoText:
        return self


def _badness(sequence: _SequenceState) -> tuple[bool, float]:
    """Sorts the best answers first, what failed last."""
    failed = sequence.finish is not None and sequence.finish.error is not None
    return failed, -(sequence.cumulative_logprob or 0.0)


def _decode(sequence: _SequenceState, num_left_out: int) -> str | None:
    """Push what is not in the text yet, but for the last `num_left_out`; returns the stop string it ends.

    The stop check has pushed the tokens of sequences with stop strings already.
    """
    text = sequence.text
    stop = None
    token_ids = sequence.token_ids
    end = len(token_ids) - num_left_out
    for i in range(len(token_ids) - (sequence.num_tokens - text.num_tokens), end):
        stop = text.push(token_ids[i]) or stop
    return stop


def _ended_by_id(finish: FinishReason | None) -> bool:
    """Whether the last token is an end-of-generation or stop id."""
    return finish is not None and finish.kind is FinishKind.STOP and not isinstance(finish.stop_reason, str)


def _completion(sequence: _SequenceState, count: int, texts: TokenTexts) -> CompletionOutput:
    finish = sequence.finish
    logprobs = None if sequence.logprobs is None else TokenLogprobs(sequence.logprobs, count, texts)
    return CompletionOutput(
        sequence.index,
        "".join(sequence.pieces),
        sequence.token_ids,
        sequence.cumulative_logprob,
        logprobs,
        None if finish is None else finish.kind.value,
        None if finish is None else finish.stop_reason,
        sequence.seed,
        None if finish is None else finish.error,
    )
