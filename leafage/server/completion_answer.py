"""The answer to one request for completions, whole or in chunks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from leafage.core.sampling_params import SamplingParams
from leafage.engine.inputs import NewRequest
from leafage.engine.output import CompletionOutput, LogprobDict, RequestOutput, sampled_tokens
from leafage.server.context import ServedModel
from leafage.server.protocol.answers import Count, cache_report, check_answered, new_id, usage
from leafage.server.protocol.completions import Completion, CompletionChoice, CompletionRequest
from leafage.server.protocol.logprobs import (
    TextLogprobs,
    TextLogprobWriter,
    TokenNames,
    prompt_logprobs_json,
)
from leafage.server.sse import DONE, ChunkForm, error_event, quoted


class CompletionAnswer:
    """Writes it. What is known of a prompt comes with the first chunk of each of its answers.

    Args:
        requests: one for each prompt.
        params: theirs.
    """

    def __init__(
        self,
        model: ServedModel,
        body: CompletionRequest,
        requests: list[NewRequest],
        params: SamplingParams,
    ) -> None:
        self._model = model
        self._body = body
        self._n = params.n
        self._requests = requests
        self._names = TokenNames(model.tokenizer, skips_special=params.skip_special_tokens)
        self._num_top = body.logprobs or 0
        self._head: dict[str, Any] = {
            "id": new_id("cmpl-"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.name,
            "system_fingerprint": model.fingerprint,
        }
        options = body.stream_options
        self._usage_at_end = options is not None and bool(options.include_usage)
        self._usage_always = options is not None and bool(options.continuous_usage_stats)
        self._form = ChunkForm(self._head, null_usage=self._usage_at_end)
        self._counts = [Count(len(new.prompt_token_ids)) for new in requests]
        self._begun: set[int] = set()
        self._text_logprobs: dict[int, TextLogprobWriter] = {}
        self._prompt_logprobs: dict[int, Sequence[LogprobDict | None]] = {}
        self._only_echo = body.max_tokens == 0
        self._is_plain = body.logprobs is None and not (
            body.return_token_ids or self._usage_always or self._only_echo
        )

    def whole(self, outputs: list[RequestOutput]) -> Completion:
        """All of it."""
        choices: list[CompletionChoice] = []
        for number, output in enumerate(outputs):
            self._count(number, output)
            choices += [self._choice(number, output, one) for one in output.outputs]
        answer: Completion = {**self._head, "choices": choices, "usage": usage(self._counts)}  # type: ignore
        if self._body.explain_cache:
            answer["cache"] = [cache_report(output, self._model.tokenizer) for output in outputs]
        return answer

    def of(self, number: int, output: RequestOutput) -> bytes:
        """The chunks of what is new of a prompt's answers."""
        self._count(number, output)
        chunks = b""
        for one in output.outputs:
            index = number * self._n + one.index
            if self._is_plain and not one.finished and index in self._begun:
                chunks += self._form.write(
                    f'{{"index":{index},"text":{quoted(one.text)},'
                    '"logprobs":null,"finish_reason":null,"stop_reason":null}'
                )
                continue
            extra = None
            if self._body.explain_cache and one.index == 0 and index not in self._begun:
                extra = {"cache": cache_report(output, self._model.tokenizer)}
            now = usage(self._counts) if self._usage_always else None
            chunks += self._form.chunk(self._choice(number, output, one), extra, usage=now)
        return chunks

    def end(self) -> bytes:
        """Those after the last answer has ended."""
        return self._form.usage(usage(self._counts)) + DONE if self._usage_at_end else DONE

    def failed(self, error: Exception) -> bytes:
        """Those that end a stream with an error."""
        return error_event(error) + DONE

    def _count(self, number: int, output: RequestOutput) -> None:
        if self._only_echo:
            output.outputs = [_without_tokens(one) for one in output.outputs]
        count = self._counts[number]
        count.add(output)
        if not self._only_echo:
            check_answered(output, count)
        if output.prompt_logprobs is not None:  # a stream has them once, each answer begins with them
            self._prompt_logprobs[number] = output.prompt_logprobs

    def _choice(self, number: int, output: RequestOutput, one: CompletionOutput) -> CompletionChoice:
        index = number * self._n + one.index
        is_first = index not in self._begun
        self._begun.add(index)
        echoed = self._echo(number) if self._body.echo and is_first else ""
        choice: CompletionChoice = {
            "index": index,
            "text": echoed + one.text,
            "logprobs": None,
            "finish_reason": one.finish_reason,
            "stop_reason": one.stop_reason,
        }
        if one.logprobs is not None:
            choice["logprobs"] = self._logprobs_of(index, one.logprobs, echoed if is_first else None)
        if self._body.prompt_logprobs is not None and is_first:
            choice["prompt_logprobs"] = prompt_logprobs_json(self._prompt_logprobs.get(number, []))
        if self._body.return_token_ids:
            choice["token_ids"] = one.token_ids
            choice["prompt_token_ids"] = output.prompt_token_ids if is_first else None
        return choice

    def _echo(self, number: int) -> str:
        new = self._requests[number]
        if new.prompt is not None:
            return new.prompt
        return self._model.tokenizer.decode(new.prompt_token_ids, skip_special_tokens=False)

    def _logprobs_of(self, index: int, positions: Sequence[LogprobDict], echoed: str | None) -> TextLogprobs:
        """Of the next tokens; the prompt's go in front of the first ones where it is echoed."""
        writer = self._text_logprobs.get(index)
        if writer is None:
            writer = self._text_logprobs[index] = TextLogprobWriter(
                self._names, self._num_top, len(echoed or "")
            )
        written = writer.write(sampled_tokens(positions) if positions else [])
        if not (echoed is not None and self._body.echo):
            return written
        number = index // self._n
        new = self._requests[number]
        prompt = writer.echo(new.prompt_token_ids, self._prompt_logprobs[number], self._num_hidden(new))
        return {
            "tokens": prompt["tokens"] + written["tokens"],
            "token_logprobs": prompt["token_logprobs"] + written["token_logprobs"],
            "top_logprobs": prompt["top_logprobs"] + written["top_logprobs"],
            "text_offset": prompt["text_offset"] + written["text_offset"],
        }

    def _num_hidden(self, new: NewRequest) -> int:
        """Tokens in front of a prompt that its text does not have."""
        prefix = self._model.tokenizer.prefix
        if new.prompt is None or new.prompt_token_ids[: len(prefix)] != prefix:
            return 0
        written = self._model.tokenizer.decode(prefix, skip_special_tokens=False)
        return 0 if new.prompt.startswith(written) else len(prefix)


def _without_tokens(one: CompletionOutput) -> CompletionOutput:
    """An answer to a request for the prompt alone, for which one token was drawn."""
    reason = "length" if one.finish_reason == "stop" else one.finish_reason
    answer = replace(one, text="", token_ids=[], finish_reason=reason, stop_reason=None)
    if one.logprobs is not None:
        answer.logprobs = []
    return answer
