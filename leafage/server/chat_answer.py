"""The answer to one chat completion, whole or in chunks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from leafage.engine.inputs import NewRequest
from leafage.engine.output import CompletionOutput, LogprobDict, RequestOutput, sampled_tokens
from leafage.server.context import ServedModel
from leafage.server.conversation import Message
from leafage.server.protocol.answers import (
    CacheReport,
    Count,
    SessionReport,
    Usage,
    cache_report,
    check_answered,
    new_id,
    usage,
)
from leafage.server.protocol.chat import AnswerMessage, ChatCompletion, ChatCompletionRequest, Choice
from leafage.server.protocol.logprobs import ChatLogprobs, TokenNames, chat_logprobs, prompt_logprobs_json
from leafage.server.sse import DONE, ChunkForm, error_event, quoted
from leafage.server.tools.message import Message as WholeMessage
from leafage.server.tools.message import MessageDelta
from leafage.server.tools.reasoning import count_reasoning
from leafage.server.tools.stream import MessageParser

Keep = Callable[[CompletionOutput, Message], None]
"""Takes the whole answer of a session's turn, and the message that the client got."""


class _Part:
    """One answer as it grows: what came of its text so far, where somebody needs the whole."""

    __slots__ = ("parser", "pieces")

    def __init__(self, parser: MessageParser) -> None:
        self.parser = parser
        self.pieces: list[tuple[CompletionOutput, MessageDelta]] = []


class ChatAnswer:
    """Writes it. What is known of the prompt comes with the first chunk.

    Args:
        new_parser: makes what turns the text of an answer into a message.
        keep: called with the whole answer, which a session keeps.
        session: what it had kept, for `explain_cache`.
    """

    def __init__(
        self,
        model: ServedModel,
        body: ChatCompletionRequest,
        new: NewRequest,
        new_parser: Callable[[], MessageParser],
        keep: Keep | None = None,
        session: SessionReport | None = None,
    ) -> None:
        self._model = model
        self._body = body
        self._keep = keep
        self._session = session
        self._num_top = body.top_logprobs or 0
        self._names = TokenNames(model.tokenizer, skips_special=new.params.skip_special_tokens)
        self._head: dict[str, Any] = {
            "id": new_id("chatcmpl-"),
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model.name,
            "system_fingerprint": model.fingerprint,
        }
        if body.service_tier is not None:
            self._head["service_tier"] = "default"
        options = body.stream_options
        self._usage_at_end = options is not None and bool(options.include_usage)
        self._usage_always = options is not None and bool(options.continuous_usage_stats)
        self._form = ChunkForm(
            {**self._head, "object": "chat.completion.chunk"}, null_usage=self._usage_at_end
        )
        self._count = Count(len(new.prompt_token_ids))
        self._new_parser = new_parser
        self._parts: dict[int, _Part] = {}
        self._reasoning = 0
        self._is_plain = not (body.logprobs or body.return_token_ids or self._usage_always or keep)

    def whole(self, output: RequestOutput) -> ChatCompletion:
        """All of it."""
        self._count.add(output)
        check_answered(output, self._count)
        choices = [self._choice(one) for one in output.outputs]
        answer: ChatCompletion = {**self._head, "choices": choices, "usage": self._usage()}  # type: ignore
        if self._body.metadata is not None:
            answer["metadata"] = self._body.metadata
        answer.update(self._prompt(output))  # type: ignore[typeddict-item]
        return answer

    def of(self, number: int, output: RequestOutput) -> bytes:
        """The chunks of what is new."""
        self._count.add(output)
        check_answered(output, self._count)
        chunks = b""
        for one in output.outputs:
            part = self._parts.get(one.index)
            if part is None:
                extra = None if self._parts else self._prompt(output)
                part = self._parts[one.index] = _Part(self._new_parser())
                chunks += self._chunk(one.index, {"role": "assistant", "content": ""}, extra=extra)
            if self._is_plain and part.parser.is_plain and not one.finished:
                chunks += self._form.write(
                    f'{{"index":{one.index},"delta":{{"content":{quoted(one.text)}}},'
                    '"logprobs":null,"finish_reason":null}'
                )
            else:
                chunks += self._parsed(one, part)
        return chunks

    def end(self) -> bytes:
        """Those after the last answer has ended."""
        return self._form.usage(self._usage()) + DONE if self._usage_at_end else DONE

    def failed(self, error: Exception) -> bytes:
        """Those that end a stream with an error."""
        return error_event(error) + DONE

    def _choice(self, one: CompletionOutput) -> Choice:
        parser = self._new_parser()
        found = parser.parse(one.text).to_json()
        message = cast(AnswerMessage, {**found, "refusal": None, "annotations": []})
        self._reasoning += self._num_reasoning(parser, one.token_ids)
        if self._keep is not None:
            self._keep(one, found)
        choice: Choice = {
            "index": one.index,
            "message": message,
            "logprobs": self._logprobs_of(one.logprobs),
            "finish_reason": parser.finish_reason(one.finish_reason),
            "stop_reason": one.stop_reason,
        }
        if self._body.return_token_ids:
            choice["token_ids"] = one.token_ids
        return choice

    def _parsed(self, one: CompletionOutput, part: _Part) -> bytes:
        """Chunks of what the new text gives; none while the parser holds it back and nothing else is told."""
        delta = part.parser.push(one.text)
        if one.finished:
            delta += part.parser.finish()
        if self._keep is not None or part.parser.splits_reasoning:
            part.pieces.append((one, delta))
        rest: dict[str, Any] = {"logprobs": self._logprobs_of(one.logprobs)}
        if self._body.return_token_ids:
            rest["token_ids"] = one.token_ids
        chunks = b""
        *deltas, last = delta.to_json() or [{}]
        for found in deltas:
            chunks += self._chunk(one.index, found)
        if one.finished:
            self._end_part(one, part)
            rest["stop_reason"] = one.stop_reason
            chunks += self._chunk(one.index, last, part.parser.finish_reason(one.finish_reason), **rest)
        elif last or one.logprobs is not None or "token_ids" in rest:
            chunks += self._chunk(one.index, last, **rest)
        return chunks

    def _end_part(self, one: CompletionOutput, part: _Part) -> None:
        pieces = [piece for piece, _ in part.pieces]
        ids = [token_id for piece in pieces for token_id in piece.token_ids]
        self._reasoning += self._num_reasoning(part.parser, ids)
        if self._keep is not None:
            message = WholeMessage.of(delta for _, delta in part.pieces).to_json()
            self._keep(replace(one, text="".join(piece.text for piece in pieces), token_ids=ids), message)

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        finish_reason: str | None = None,
        *,
        extra: dict[str, Any] | None = None,
        **rest: Any,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason, **rest}
        return self._form.chunk(choice, extra, usage=self._usage() if self._usage_always else None)

    def _usage(self) -> Usage:
        splits = self._model.chat_format().splits_reasoning
        return usage([self._count], reasoning=self._reasoning if splits else None)

    def _num_reasoning(self, parser: MessageParser, token_ids: list[int]) -> int:
        if not parser.splits_reasoning:
            return 0
        text = self._model.tokenizer.detokenizer(skip_special_tokens=False)
        return count_reasoning((text.push(one) for one in token_ids), is_open=parser.starts_in_reasoning)

    def _prompt(self, output: RequestOutput) -> dict[str, Any]:
        """What was asked about the prompt."""
        found: dict[str, Any] = {}
        if output.prompt_logprobs is not None:
            found["prompt_logprobs"] = prompt_logprobs_json(output.prompt_logprobs)
        if self._body.return_token_ids:
            found["prompt_token_ids"] = output.prompt_token_ids
        if self._body.explain_cache:
            report: CacheReport = cache_report(output, self._model.tokenizer)
            if self._session is not None:
                report["session"] = self._session
            found["cache"] = report
        return found

    def _logprobs_of(self, positions: Sequence[LogprobDict] | None) -> ChatLogprobs | None:
        if positions is None:
            return None
        return chat_logprobs(sampled_tokens(positions), self._num_top, self._names)
