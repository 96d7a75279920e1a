"""POST /tokenize and /detokenize: what is sent, and what is answered."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from leafage.server.protocol.chat import MAX_MESSAGES, Message
from leafage.server.protocol.common import List, Only, Strict


class TokenizeRequest(Strict):
    """A text, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[List[Message], Field(max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: Annotated[
        bool | None,
        Field(description="put BOS in front of the prompt as the model declares it; default true"),
    ] = None
    add_generation_prompt: Annotated[bool | None, Field(description="as of chat completions")] = None
    continue_final_message: Annotated[bool | None, Field(description="as of chat completions")] = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: Annotated[Any, Only(why="the server's chat template is used")] = None
    tools: List[dict[str, Any]] | None = None
    return_token_strs: bool | None = None


class Tokenized(TypedDict):
    """Token ids. `token_strs`: the text of each, where asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(Strict):
    """Token ids."""

    model: str | None = None
    tokens: List[int]


class Detokenized(TypedDict):
    """Their text."""

    prompt: str
