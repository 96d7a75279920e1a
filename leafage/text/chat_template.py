"""Chat templates: messages to a prompt, by the Jinja source that comes with the model.

The environment is the one that models' templates are written for (Hugging Face `apply_chat_template`):
sandboxed, immutable, `trim_blocks` and `lstrip_blocks`, loop controls, `{% generation %}`, `raise_exception`,
`strftime_now` and a `tojson` that keeps non-ASCII text.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from leafage.errors import InvalidParameterError, TemplateError, UnsupportedError
from leafage.text.tokenizer import Tokenizer

Message = Mapping[str, Any]

CUT = "\ufdd4\ufdd5"
"""Marks a place in a message's content. Two Unicode noncharacters, as of `special.LITERAL_MARK`."""

_CONTINUATIONS = ("a", "Zz", "7", " ", "\n", "\n\nx", "-", "\u00e9")
"""Contents that begin so differently that no token can hold the beginning of all of them."""

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
OWN_VARIABLES = frozenset(("messages", "tools", "add_generation_prompt", "bos_token", "eos_token"))
"""What every template reads, and nobody else may set."""


class _Refusal(Exception):
    """`raise_exception` was called by the template."""


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's text for training; here: its body."""

    tags = {"generation"}  # noqa: RUF012 (the name and form that jinja2 asks for)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: Jinja source.
        bos_token: text of the BOS token, "" if there is none.
        eos_token: text of the EOS token, "" if there is none.

    Attributes:
        variables: those that it reads besides its own (`enable_thinking`...).

    Raises:
        TemplateError: the source does not parse; the message carries the line.
    """

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.filters["tojson"] = _tojson
        environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        try:
            self._template = environment.from_string(source)
            tree = environment.parse(source)
            self._takes_parts = _iterates_content(tree)
            known = {*OWN_VARIABLES, *environment.globals}
            self.variables = frozenset(meta.find_undeclared_variables(tree) - known)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the chat template does not parse, line {error.lineno}: {error.message}",
                value=_line(source, error.lineno),
                remedy="correct it, or pass another with --chat-template FILE",
            ) from None

    @classmethod
    def of(cls, tokenizer: Tokenizer, source: str | None = None) -> ChatTemplate:
        """The template of a model, or `source` in its place.

        Raises:
            TemplateError: there is none, as with base models.
        """
        source = source if source is not None else tokenizer.chat_template
        if source is None:
            raise TemplateError(
                "the model has no chat template (a base model continues text, it does not chat)",
                remedy="give it plain prompts, or pass a template with --chat-template FILE",
            )

        def text(token_id: int | None) -> str:
            return "" if token_id is None else tokenizer.token_text(token_id)

        return cls(source, bos_token=text(tokenizer.bos_id), eos_token=text(tokenizer.eos_id))

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt of a conversation, as text.

        Args:
            messages: each with `role` and `content` (a string or a list of text parts; None with tool calls).
            add_generation_prompt: end with the opening of the assistant's turn.
            tools: JSON descriptions of the functions that the model may call.
            kwargs: further variables of this template (`enable_thinking=False`...).

        Raises:
            InvalidParameterError: a message is malformed, or a variable is one of the template's own.
            UnsupportedError: content other than text.
            TemplateError: the template failed or refused the messages.
        """
        return self._render(messages, add_generation_prompt, tools, kwargs, lambda text: text)

    def _render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
        protect: Callable[[str], str],
    ) -> str:
        for name in variables:
            if name in OWN_VARIABLES:
                raise InvalidParameterError(
                    "chat template variable is set by Leafage itself", value=name, remedy="leave it out"
                )
        checked = [_check_message(i, message, self._takes_parts) for i, message in _enumerate(messages)]
        try:
            context = {
                "messages": [
                    {name: item if name == "role" else _map_text(item, protect) for name, item in one.items()}
                    for one in checked
                ],
                "tools": _map_text(list(tools), protect) if tools else None,
                "add_generation_prompt": add_generation_prompt,
                **{name: _map_text(value, protect) for name, value in variables.items()},
                **self._tokens,
            }
            return self._template.render(context)
        except _Refusal as refusal:
            raise TemplateError(
                f"the chat template refused the messages: {refusal}", remedy="change the messages accordingly"
            ) from None
        except Exception as error:  # whatever a template's expressions may raise, or deep nesting
            number = _template_line(error.__traceback__)
            raise TemplateError(
                f"the chat template failed{f' in line {number}' if number else ''}: {error}",
                value=_line(self.source, number),
                remedy="check that the messages have what it reads, or pass --chat-template FILE",
            ) from error


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    /,
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **kwargs: Any,
) -> list[int]:
    """Ids of a conversation, ready to be continued by the assistant.

    Control tokens that the template writes become single ids; the same characters inside the messages, the
    tools or `kwargs` stay text. BOS comes in front where the file declares it and the template wrote none.

    Args:
        continue_final_message: end inside the last message, behind its content, so that the answer goes on
            with it. Then `add_generation_prompt` must be off.

    Raises:
        InvalidParameterError: also for both of them.
        TemplateError: also when the template does not end the last message's content as it is.
        As `ChatTemplate.render`.
    """
    if continue_final_message:
        if add_generation_prompt:
            raise InvalidParameterError(
                "continue_final_message and add_generation_prompt exclude each other",
                remedy="set add_generation_prompt to false",
            )
        messages = _marked_at_end(messages)
    text = template._render(messages, add_generation_prompt, tools, kwargs, tokenizer.protect)
    if continue_final_message:
        text = _split_at_cut(text)[0]
    ids = tokenizer.encode(text, add_special=False, parse_special=True)
    if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
        ids = [tokenizer.bos_id, *ids]
    return ids


def encode_chat_rest(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    text: str = "",
    /,
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **kwargs: Any,
) -> list[int]:
    """Ids of what a conversation's prompt has behind CUT, which the content of one message holds.

    Args:
        text: goes in front, as text of that message.

    Raises:
        TemplateError: also when the template drops that content, or writes it twice.
        As `ChatTemplate.render`.
    """
    rendered = template._render(messages, add_generation_prompt, tools, kwargs, tokenizer.protect)
    rest = tokenizer.protect(text) + _split_at_cut(rendered)[1]
    return tokenizer.encode(rest, parse_special=True, continues=True)


def _marked_at_end(messages: Sequence[Message]) -> list[Message]:
    """The messages, with CUT behind the content of the last one."""
    *others, last = (message for _, message in _enumerate(messages))
    content = last.get("content") if isinstance(last, Mapping) else None
    if isinstance(content, str) and content:
        return [*others, {**last, "content": content + CUT}]
    if isinstance(content, Sequence) and content and not isinstance(content, str):
        return [*others, {**last, "content": [*content[:-1], _text_of_part("content", content[-1]) + CUT]}]
    raise InvalidParameterError(
        "continue_final_message: the last message has no content", remedy="give it the text to go on with"
    )


def _split_at_cut(text: str) -> tuple[str, str]:
    before, *after = text.split(CUT)
    if len(after) != 1:
        raise TemplateError(
            "the chat template does not write the message's content once",
            value=f"{len(after)} times",
            remedy="leave continue_final_message out",
        )
    return before, after[0]


def encode_chat_prefix(
    tokenizer: Tokenizer, template: ChatTemplate, messages: Sequence[Message], **kwargs: Any
) -> list[int]:
    """Ids that all conversations share which begin with these messages: the longest common head of some that
    go on differently.

    Args:
        kwargs: as of `encode_chat`.

    Raises:
        As `ChatTemplate.render`.
    """
    after_user = _enumerate(messages)[-1][1]
    role = "assistant" if isinstance(after_user, Mapping) and after_user.get("role") == "user" else "user"
    samples = [
        encode_chat(tokenizer, template, [*messages, {"role": role, "content": content}], **kwargs)
        for content in _CONTINUATIONS
    ]
    if role == "assistant":  # the usual continuation is drawn
        samples.append(encode_chat(tokenizer, template, messages, **kwargs))
    first, last = min(samples), max(samples)  # what these two have in common, all have
    pairs = zip(first, last, strict=False)
    return [token for token, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]


def _enumerate(messages: Sequence[Message]) -> list[tuple[int, Message]]:
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise InvalidParameterError(
            "messages must be a list of messages", value=type(messages).__name__, remedy="pass [{...}, ...]"
        )
    if not messages:
        raise InvalidParameterError("messages is empty", remedy="pass at least one message")
    return list(enumerate(messages))


def _check_message(index: int, message: Message, takes_parts: bool) -> dict[str, Any]:
    """One message, checked, its content in the form that the template reads."""
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise InvalidParameterError(
            f"{where} must be an object with role and content",
            value=type(message).__name__,
            remedy="pass a dict",
        )
    role = message.get("role")
    if role not in ROLES:
        raise InvalidParameterError(
            f"{where}.role is unknown", value=role, limit=", ".join(ROLES), remedy="use one of these roles"
        )
    result = dict(message)
    content = message.get("content")
    if isinstance(content, str):
        pass
    elif content is None:
        if not message.get("tool_calls"):
            raise InvalidParameterError(
                f"{where}.content is missing",
                remedy="pass a string; only a message with tool_calls may have none",
            )
        result["content"] = None
    else:
        parts = _texts_of_content(where, content)
        result["content"] = (
            [{"type": "text", "text": text} for text in parts] if takes_parts else "\n".join(parts)
        )
    if message.get("tool_calls"):
        result["tool_calls"] = [_parse_arguments(where, call) for call in message["tool_calls"]]
    return result


def text_of_content(where: str, content: object) -> str:
    """The text of a message's content: a string, a list of text parts, or None.

    Args:
        where: names the message in errors.

    Raises:
        InvalidParameterError, UnsupportedError: it is something else.
    """
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_texts_of_content(where, content))


def _texts_of_content(where: str, content: object) -> list[str]:
    if not isinstance(content, Sequence):
        raise InvalidParameterError(
            f"{where}.content must be a string or a list of parts",
            value=type(content).__name__,
            remedy="pass text",
        )
    return [_text_of_part(f"{where}.content[{i}]", part) for i, part in enumerate(content)]


def _text_of_part(where: str, part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise InvalidParameterError(
            f"{where} must be an object with a type",
            value=type(part).__name__,
            remedy='pass {"type": "text", ...}',
        )
    if part.get("type") != "text":
        raise UnsupportedError(
            f"{where}: only text can be read",
            value=part.get("type"),
            limit="text",
            remedy="send text parts only",
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidParameterError(
            f"{where}.text must be a string", value=type(text).__name__, remedy="pass the text of the part"
        )
    return text


def _parse_arguments(where: str, call: Any) -> Any:
    """The OpenAI API carries a call's arguments as a JSON string; templates read an object."""
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        return call
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            raise InvalidParameterError(
                f"{where}.tool_calls: arguments is no JSON", value=arguments[:80], remedy="pass a JSON object"
            ) from None
    return {**call, "function": function}


def _map_text(value: Any, change: Callable[[str], str]) -> Any:
    """`value` with `change` applied to every string inside, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_map_text(key, change): _map_text(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_map_text(item, change) for item in value]
    return value


def _iterates_content(tree: nodes.Template) -> bool:
    """Whether a loop of the template goes over a message's content, so that it takes a list of parts."""
    return any(_is_content(loop.iter) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node | None) -> bool:
    """`message.content`, `message["content"]`, `message.get("content")` or `content`, filtered or not."""
    while isinstance(node, nodes.Filter):
        node = node.node
    if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr) and node.node.attr == "get":
        return bool(node.args) and isinstance(node.args[0], nodes.Const) and node.args[0].value == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Name) and node.name == "content"


def _template_line(traceback: TracebackType | None) -> int | None:
    """The innermost line of the template in a traceback, which jinja2 has rewritten to template lines."""
    number = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            number = traceback.tb_lineno
        traceback = traceback.tb_next
    return number


def _line(source: str, number: int | None) -> str | None:
    lines = source.splitlines()
    if number is None or not 0 < number <= len(lines):
        return None
    line = lines[number - 1].strip()
    return line if len(line) <= 120 else line[:117] + "..."


def _raise_exception(message: str) -> None:
    raise _Refusal(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
