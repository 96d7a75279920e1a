"""A request's conversation on its way into a prompt, and back into the session that it belongs to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from leafage.core.sampling_params import SamplingParams
from leafage.engine.output import CompletionOutput
from leafage.errors import LeafageError
from leafage.server.protocol.answers import SessionReport
from leafage.server.sessions import Conversation, Turn, continued, digests_of, next_digest
from leafage.server.tools.chat_format import ChatFormat
from leafage.server.tools.request import ToolUse
from leafage.text.chat_template import CUT, encode_chat, encode_chat_rest
from leafage.text.tokenizer import Tokenizer

Message = dict[str, Any]
_TOOLS = ("tool", "function")


@dataclass(frozen=True, slots=True)
class Writing:
    """How a request has its messages written.

    Attributes:
        chat_format: of the model.
        options: keyword arguments of `encode_chat`, and variables of the template.
    """

    tokenizer: Tokenizer
    chat_format: ChatFormat
    tools: ToolUse
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def form(self) -> object:
        """What is written besides the messages, as JSON."""
        return {"tools": self.tools.definitions, **self.options}

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the prompt.

        Raises:
            As `ChatFormat.write` and `encode_chat`.
        """
        written, tools = self.chat_format.write(messages, self.tools)
        return encode_chat(self.tokenizer, self.chat_format.template, written, tools=tools, **self.options)

    def encode_rest(self, messages: Sequence[Message], text: str) -> list[int]:
        """Ids of what the prompt has behind CUT, with `text` in front.

        Raises:
            As `ChatFormat.write` and `encode_chat_rest`.
        """
        written, tools = self.chat_format.write(messages, self.tools)
        options = {name: value for name, value in self.options.items() if name != "continue_final_message"}
        template = self.chat_format.template
        return encode_chat_rest(self.tokenizer, template, written, text, tools=tools, **options)

    def unwritten_names(self, messages: Sequence[Message]) -> list[str]:
        """Paths of the `name` fields where they change nothing of the prompt.

        Results of tools are told apart by `tool_call_id`, so their names are not looked at.
        """
        named = [i for i, one in enumerate(messages) if one.get("name") and one["role"] not in _TOOLS]
        if not named:
            return []
        bare = [{key: value for key, value in one.items() if key != "name"} for one in messages]
        return [f"messages[{i}].name" for i in named] if self.encode(bare) == self.encode(messages) else []


class SessionTurn:
    """One request of a conversation whose ids are kept.

    Args:
        before: what was kept of it, None at its first turn.
        messages: those of the request.

    Raises:
        As `encode_chat`.

    Attributes:
        token_ids: of the prompt: those that are kept, and what follows them.
        report: what was kept.
    """

    def __init__(self, before: Conversation | None, messages: Sequence[Message], writing: Writing) -> None:
        self._before = before
        self._messages = messages
        self._writing = writing
        self._turn: Turn | None = None
        self._digests = digests_of(messages, writing.form)
        self.token_ids, why = self._go_on()
        kept = 0 if self._turn is None else self._turn.num_tokens
        self.report: SessionReport = {"kept_tokens": kept, "why": why}

    def _go_on(self) -> tuple[list[int], str | None]:
        before, messages = self._before, self._messages
        turn = None if before is None else before.latest_turn(self._digests)
        if before is None or turn is None:
            return self._writing.encode(messages), "new" if before is None else "edited"
        place = turn.num_messages - 1
        marked = [*messages[:place], {"role": "assistant", "content": CUT}, *messages[place + 1 :]]
        try:
            rest = self._writing.encode_rest(marked, turn.rest)
        except LeafageError:  # where messages are to be blamed, the plain way says so
            return self._writing.encode(messages), "unknown_place"
        self._turn = turn
        return before.up_to(turn) + rest, None

    def after(self, answer: CompletionOutput, message: Message, params: SamplingParams) -> Conversation:
        """What is to be kept.

        Args:
            answer: the whole of it.
            message: the same as the client got it, and will send it back.
        """
        digests = [*self._digests, next_digest(self._digests[-1], message)]
        tokenizer = self._writing.tokenizer
        return continued(self._before, self._turn, self.token_ids, answer, digests, tokenizer, params)


def session_key(request: Request, session_id: str, salt: str, user: str) -> tuple[str, ...]:
    """Sessions of one id are different ones for different API keys, users and salts."""
    return owner_of(request), user, salt, session_id


def owner_of(request: Request) -> str:
    """Whom something is kept for: who has the API key of this request."""
    return hashlib.sha256(request.headers.get("authorization", "").encode()).hexdigest()
