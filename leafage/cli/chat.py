"""`leafage chat`: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from leafage.cli import terminal
from leafage.cli.flags import ENGINE_FLAGS, SAMPLING_FLAGS, engine_settings, sampling_params, with_flags
from leafage.cli.run import params_for
from leafage.config import DEFAULT_MODEL
from leafage.core.sampling_params import SamplingParams
from leafage.errors import LeafageError

if TYPE_CHECKING:
    from leafage.engine.output import RequestOutput
    from leafage.llm import LLM

DEFAULT_MAX_TOKENS = 1024
CHAT_SAMPLING = {"temperature": 0.7, "top_p": 0.9}
"""Of a chat with a model that recommends nothing."""
HELP = """\
/reset         forget the conversation
/system TEXT   set the system message and begin anew; without TEXT, remove it
/help          this
Ctrl-C         stop the answer
Ctrl-D         end"""


@with_flags(
    (*ENGINE_FLAGS, "chat_template"),
    SAMPLING_FLAGS,
    {
        "max_tokens": DEFAULT_MAX_TOKENS,
        "temperature": "the model's, else 0.7",
        "top_p": "the model's, else 0.9",
    },
)
def chat(
    *,
    model: Annotated[str, Parameter(name=["--model", "-m"], env_var="LEAFAGE_MODEL")] = DEFAULT_MODEL,
    system: str | None = None,
    **flags: Any,
) -> None:
    """Talk with a model. The default model is fetched at first use.

    After each answer: its tokens, the speed, and how many tokens of the prompt came from the cache.
    Temperature is 0.7 and top_p 0.9 unless flags say otherwise or the model recommends settings of its own.

    **Examples**

        leafage chat
        leafage chat --system "Answer in one sentence." --temperature 0
        leafage chat --model my-model.gguf --chat-template template.jinja

    Parameters
    ----------
    model
        A known name (`leafage ls`), a path to a .gguf file or Hugging Face folder, or hf:owner/repo[/file].
    system
        The system message.
    """
    sampling_params(flags, SamplingParams(), max_tokens=DEFAULT_MAX_TOKENS)
    with terminal.open_llm(model, engine_settings(flags)) as llm:
        params = params_for(llm, flags, max_tokens=DEFAULT_MAX_TOKENS, **CHAT_SAMPLING)
        llm.build.encode_chat([{"role": "user", "content": "Hello"}])  # refuse a missing template now
        Conversation(llm, params, system).loop()


class Conversation:
    """The turns so far, and the loop that adds to them."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self.llm = llm
        self.params = params
        self.system = system
        self.messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def loop(self) -> None:
        interactive = sys.stdin.isatty()
        if interactive:
            terminal.say("/help lists the commands, Ctrl-C stops an answer, Ctrl-D ends")
            with contextlib.suppress(ImportError):  # line editing and history
                import readline  # noqa: F401
        for line in _lines(interactive):
            if line.startswith("/"):
                self.command(line)
            elif line.strip():
                with contextlib.suppress(KeyboardInterrupt):  # one that came just after the answer's end
                    self.turn(line)

    def command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if name == "/reset":
            self.reset()
            terminal.say("the conversation is forgotten")
        elif name == "/system":
            self.system = rest.strip() or None
            self.reset()
            terminal.say("a new conversation" + (" with this system message" if self.system else ""))
        elif name == "/help":
            terminal.say(HELP)
        elif name in ("/exit", "/quit", "/bye"):
            raise SystemExit(0)
        else:
            terminal.say(f"no command {name}; /help lists them")

    def turn(self, text: str) -> None:
        """Stream one answer. What Ctrl-C cut off stays in the conversation as far as it came."""
        self.messages.append({"role": "user", "content": text})
        pieces: list[str] = []
        last: RequestOutput | None = None
        stopped = False
        try:
            for last in self.llm.chat_stream(self.messages, self.params):
                pieces.append(last.outputs[0].text)
                sys.stdout.write(pieces[-1])
                sys.stdout.flush()
        except KeyboardInterrupt:
            stopped = True
        except LeafageError as error:
            self.messages.pop()
            print(flush=True)
            print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
            return
        print(flush=True)
        answer = "".join(pieces)
        if answer or not stopped:
            self.messages.append({"role": "assistant", "content": answer})
        else:
            self.messages.pop()
        terminal.say(summary(last, stopped))


def summary(output: RequestOutput | None, stopped: bool) -> str:
    """What is said under an answer."""
    if output is None or output.metrics is None:
        return "[stopped before the first token]"
    metrics = output.metrics
    parts = ["stopped"] if stopped else []
    parts.append(f"{metrics.num_generation_tokens} tokens")
    per_token, first = metrics.time_per_output_token, metrics.time_to_first_token
    if per_token:
        parts.append(f"{1 / per_token:.0f} tokens/s")
    if first is not None:
        parts.append(f"first after {first * 1000:.0f} ms")
    parts.append(f"{output.num_cached_tokens} of {len(output.prompt_token_ids)} prompt tokens cached")
    if output.outputs[0].finish_reason == "length":
        parts.append("cut at the length limit")
    return f"[{', '.join(parts)}]"


def _lines(interactive: bool) -> Iterator[str]:
    """Lines of the user until the end of input. Ctrl-C at the prompt clears the line."""
    while True:
        try:
            yield input(_prompt()) if interactive else input()
        except EOFError:
            if interactive:
                print()
            return
        except KeyboardInterrupt:
            if not interactive:
                raise
            print()
            terminal.say("Ctrl-D ends the program")


def _prompt() -> str:
    """Colours are marked as taking no room, so that line editing counts right."""
    return "\x01\x1b[1m\x02>>> \x01\x1b[0m\x02" if terminal.colored(sys.stdout) else ">>> "
