"""The answer to one request to /v1/responses, whole or in events."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from leafage.core.sampling_params import SamplingParams
from leafage.engine.inputs import NewRequest
from leafage.engine.output import CompletionOutput, RequestOutput, sampled_tokens
from leafage.server.context import ServedModel
from leafage.server.conversation import Message
from leafage.server.errors import ApiError, api_error
from leafage.server.protocol.answers import Count, SessionReport, cache_report, new_id
from leafage.server.protocol.logprobs import PositionLogprob, TokenLogprob, TokenNames, chat_logprobs
from leafage.server.protocol.responses import (
    IncompleteDetails,
    OutputItem,
    ResponseObject,
    ResponsesRequest,
    ResponseUsage,
    Status,
)
from leafage.server.sse import event
from leafage.server.tools.message import Message as WholeMessage
from leafage.server.tools.message import MessageDelta, ToolCallDelta
from leafage.server.tools.reasoning import count_reasoning
from leafage.server.tools.stream import MessageParser

Keep = Callable[[CompletionOutput, Message, ResponseObject], None]
"""Takes the whole answer, the assistant's turn in it, and the response, when they are there."""


class OutputItems:
    """The items of a response's output, made of a message's deltas, and the events that tell of them.

    Args:
        emit: takes the type of an event and its fields, and makes what it needs of them at once.
    """

    def __init__(self, emit: Callable[[str, dict[str, Any]], None]) -> None:
        self.items: list[OutputItem] = []
        self._emit = emit
        self._open: dict[str, Any] | None = None
        self._logprobs: list[PositionLogprob] = []

    def add(self, delta: MessageDelta, logprobs: list[PositionLogprob]) -> None:
        """Go on. Log-probabilities go with the next text; those of what is no text are left out."""
        if delta.reasoning:
            self._grow("reasoning", delta.reasoning)
        self._logprobs += logprobs
        if self._open is not None and self._open["type"] != "message" and not delta.content:
            self._logprobs = []
        if delta.content:
            self._grow("message", delta.content)
        for call in delta.tool_calls:
            self._call(call)

    def end(self, status: Status) -> None:
        """No more comes. Without any item there is an empty message."""
        if not self.items:
            self._begin_text("message")
        self._close(status)

    def _grow(self, kind: str, text: str) -> None:
        if self._open is None or self._open["type"] != kind:
            self._begin_text(kind)
        assert self._open is not None
        part = self._open["content"][0]
        part["text"] += text
        more: dict[str, Any] = {}
        if kind == "message":
            more["logprobs"] = self._take_logprobs(part)
        self._emit(f"response.{part['type']}.delta", {**self._place(True), "delta": text, **more})

    def _take_logprobs(self, part: dict[str, Any]) -> list[PositionLogprob]:
        taken, self._logprobs = self._logprobs, []
        part["logprobs"] += taken
        return taken

    def _call(self, call: ToolCallDelta) -> None:
        if call.id is not None:
            fields = {"call_id": call.id, "name": call.name, "arguments": ""}
            self._begin("function_call", "fc_", fields)
        assert self._open is not None
        if call.arguments:
            self._open["arguments"] += call.arguments
            told = {**self._place(False), "delta": call.arguments}
            self._emit("response.function_call_arguments.delta", told)

    def _begin_text(self, kind: str) -> None:
        part: dict[str, Any]
        if kind == "message":
            self._begin(kind, "msg_", {"role": "assistant", "content": []})
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        else:
            self._begin(kind, "rs_", {"summary": [], "content": []})
            part = {"type": "reasoning_text", "text": ""}
        assert self._open is not None
        self._emit("response.content_part.added", {**self._place(True), "part": part})
        self._open["content"].append(part)

    def _begin(self, kind: str, prefix: str, fields: dict[str, Any]) -> None:
        self._close("completed")
        self._open = {"type": kind, "id": new_id(prefix), "status": "in_progress", **fields}
        self.items.append(cast(OutputItem, self._open))
        told = {"output_index": len(self.items) - 1, "item": self._open}
        self._emit("response.output_item.added", told)

    def _close(self, status: Status) -> None:
        item, self._open = self._open, None
        if item is None:
            return
        index = len(self.items) - 1
        place = {"item_id": item["id"], "output_index": index}
        if item["type"] == "function_call":
            told = {**place, "name": item["name"], "arguments": item["arguments"]}
            self._emit("response.function_call_arguments.done", told)
        else:
            [part] = item["content"]
            place["content_index"] = 0
            more = {}
            if item["type"] == "message":
                self._take_logprobs(part)
                more["logprobs"] = part["logprobs"]
            self._emit(f"response.{part['type']}.done", {**place, "text": part["text"], **more})
            self._emit("response.content_part.done", {**place, "part": part})
        item["status"] = status
        self._emit("response.output_item.done", {"output_index": index, "item": item})

    def _place(self, in_part: bool) -> dict[str, Any]:
        assert self._open is not None
        place: dict[str, Any] = {"item_id": self._open["id"], "output_index": len(self.items) - 1}
        return {**place, "content_index": 0} if in_part else place


class ResponseAnswer:
    """Writes it.

    Args:
        new_parser: makes what turns the text of an answer into a message.
        keep: called with the whole answer, where it is stored.
        session: what was kept of the conversation, for `explain_cache`.
    """

    def __init__(
        self,
        model: ServedModel,
        body: ResponsesRequest,
        params: SamplingParams,
        new: NewRequest,
        new_parser: Callable[[], MessageParser],
        keep: Keep | None,
        session: SessionReport | None,
    ) -> None:
        self._model = model
        self._body = body
        self._parser = new_parser()
        self._keep = keep
        self._session = session
        self._names = TokenNames(model.tokenizer, skips_special=params.skip_special_tokens)
        self._count = Count(len(new.prompt_token_ids))
        self._items = OutputItems(self._emit)
        self._pieces: list[tuple[CompletionOutput, MessageDelta]] = []
        self._events: list[bytes] = []
        self._num_events = 0
        self._response = _new_response(model, body, params)

    def whole(self, output: RequestOutput) -> ResponseObject:
        """All of it."""
        self._add(output)
        return self._response

    def of(self, number: int, output: RequestOutput) -> bytes:
        """The events of what is new."""
        if not self._num_events:
            self._emit("response.created", {"response": self._response})
            self._emit("response.in_progress", {"response": self._response})
        self._add(output)
        return self._take()

    def end(self) -> bytes:
        """The event that the response has ended."""
        self._emit(f"response.{self._response['status']}", {"response": self._response})
        return self._take()

    def failed(self, error: Exception) -> bytes:
        """The events that end a stream with an error."""
        told = api_error(error)
        self._response["status"] = "failed"
        self._response["error"] = {"code": told.code or "server_error", "message": told.message}
        fields = {"code": told.code or "server_error", "message": told.message, "param": told.param}
        self._emit("error", fields)
        self._emit("response.failed", {"response": self._response})
        return self._take()

    def _add(self, output: RequestOutput) -> None:
        self._count.add(output)
        if self._body.explain_cache and "cache" not in self._response:
            self._response["cache"] = cache_report(output, self._model.tokenizer)
            if self._session is not None:
                self._response["cache"]["session"] = self._session
        [one] = output.outputs
        delta = self._parser.push(one.text)
        if one.finished:
            delta += self._parser.finish()
        logprobs: list[PositionLogprob] = []
        if one.logprobs is not None:
            num_top = self._body.top_logprobs or 0
            found = chat_logprobs(sampled_tokens(one.logprobs), num_top, self._names)
            logprobs = [_with_bytes(token) for token in found["content"] if token["bytes"] is not None]
        self._items.add(delta, logprobs)
        self._pieces.append((one, delta))
        if one.finished:
            self._finish(one)

    def _finish(self, last: CompletionOutput) -> None:
        if last.finish_reason == "abort":
            raise ApiError("the server ended the request. Send it again", status=503, code="aborted")
        is_cut = last.finish_reason == "length"
        self._items.end("incomplete" if is_cut else "completed")
        response = self._response
        response["output"] = self._items.items
        response["status"] = "incomplete" if is_cut else "completed"
        response["completed_at"] = None if is_cut else int(time.time())
        reason: IncompleteDetails = {"reason": "max_output_tokens"}
        response["incomplete_details"] = reason if is_cut else None
        text = "".join(one.text for one, _ in self._pieces)
        ids = [token_id for one, _ in self._pieces for token_id in one.token_ids]
        response["usage"] = self._usage(ids)
        if self._keep is not None:
            message = WholeMessage.of(delta for _, delta in self._pieces).to_json()
            self._keep(replace(last, text=text, token_ids=ids), message, response)

    def _usage(self, token_ids: list[int]) -> ResponseUsage:
        reasoning = 0
        if self._parser.splits_reasoning:
            stream = self._model.tokenizer.detokenizer(skip_special_tokens=False)
            pieces = (stream.push(token_id) for token_id in token_ids)
            reasoning = count_reasoning(pieces, is_open=self._parser.starts_in_reasoning)
        count = self._count
        return {
            "input_tokens": count.prompt,
            "input_tokens_details": {
                "cached_tokens": count.cached,
                "cache_write_tokens": count.prompt - count.cached,
            },
            "output_tokens": count.generated,
            "output_tokens_details": {"reasoning_tokens": reasoning},
            "total_tokens": count.prompt + count.generated,
        }

    def _emit(self, kind: str, fields: Mapping[str, Any]) -> None:
        if self._body.stream:
            data = {"type": kind, "sequence_number": self._num_events, **fields}
            self._events.append(event(data, name=kind))
            self._num_events += 1

    def _take(self) -> bytes:
        taken, self._events = b"".join(self._events), []
        return taken


def _with_bytes(token: PositionLogprob) -> PositionLogprob:
    """Among the most likely tokens may be special ones, which have no bytes; here null is not allowed."""
    tops: list[TokenLogprob] = [{**top, "bytes": top["bytes"] or []} for top in token["top_logprobs"]]
    return {**token, "top_logprobs": tops}


def _new_response(model: ServedModel, body: ResponsesRequest, params: SamplingParams) -> ResponseObject:
    reasoning = body.reasoning
    return {
        "id": new_id("resp_"),
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata or {},
        "model": model.name,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": reasoning.effort if reasoning is not None else None, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": params.temperature,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": body.tool_choice or "auto",
        "tools": list(body.tools or []),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
        "system_fingerprint": model.fingerprint,
    }
