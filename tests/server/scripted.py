"""A server whose model says what a test tells it: engine, tokenizer and sockets are real, no weights are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from leafage.core.batch import Batch, ItemOutput, Logits, SampledToken, StepOutput
from leafage.core.kv_manager import KVManager
from leafage.core.sampling_params import SamplingParams
from leafage.core.scheduler import Scheduler
from leafage.engine.async_engine import AsyncEngine
from leafage.engine.engine import Engine
from leafage.engine.inputs import InputProcessor
from leafage.engine.metrics import EngineMetrics, MonotonicClock
from leafage.engine.output import OutputProcessor
from leafage.engine.stop import StopStringCheck
from leafage.server.app import create_app
from leafage.server.config import ServerConfig
from leafage.server.context import Context, ServedModel
from leafage.server.tools.chat_format import ChatFormat
from leafage.text.byte_level import BYTE_OF_CHAR
from leafage.text.chat_template import ChatTemplate
from leafage.text.tokenizer import Tokenizer
from tests.server.conftest import serving

END = 258
"""<|im_end|>"""
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Token = int | SampledToken
Answer = Callable[[str, int], "str | list[Token]"]
"""From a prompt's text and the number of the sequence to an answer: a text, of one token for each byte, or
tokens. The end comes by itself."""


def byte_tokenizer(template: str | None = CHATML) -> Tokenizer:
    """Bytes as ids 0 to 255, then <|endoftext|>, <|im_start|>, <|im_end|>, <think> and </think>."""
    tokens = sorted(BYTE_OF_CHAR, key=BYTE_OF_CHAR.__getitem__)
    tokens += ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    metadata: dict[str, Any] = {
        "model": "gpt2",
        "pre": "qwen2",
        "tokens": tokens,
        "token_type": [1] * 256 + [3] * 3 + [4] * 2,
        "merges": [],
        "bos_token_id": 256,
        "eos_token_id": END,
        "add_bos_token": False,
    }
    tokenizer = Tokenizer.from_gguf({f"tokenizer.ggml.{key}": value for key, value in metadata.items()})
    tokenizer.chat_template = template
    return tokenizer


@dataclass
class Script:
    """An executor that answers what a test says.

    Attributes:
        prompts: texts of the prompts that were answered.
        fail: raised by the next step.
        on_step: called first in a step.
    """

    answer: Answer
    tokenizer: Tokenizer
    fail: Exception | None = None
    on_step: Callable[[Batch], None] = lambda batch: None
    prompts: list[str] = field(default_factory=list)
    _answers: dict[tuple[str, int], list[Token]] = field(default_factory=dict)

    def execute(self, batch: Batch) -> StepOutput:
        self.on_step(batch)
        if self.fail is not None:
            error, self.fail = self.fail, None
            raise error
        output = StepOutput()
        for item in batch.items:
            result = ItemOutput()
            if item.samples and item.samples[0].position == item.num_prompt_tokens:
                prompt = item.history[: item.num_prompt_tokens]
                self.prompts.append(self.tokenizer.decode(prompt, skip_special_tokens=False))
            for sample in item.samples:
                key = (item.request_id, sample.index)
                if key not in self._answers:
                    answer = self.answer(self.prompts[-1], sample.index)
                    self._answers[key] = list(answer.encode()) if isinstance(answer, str) else answer
                tokens = self._answers[key]
                number = sample.position - item.num_prompt_tokens
                result.sampled.append(_sampled(tokens[number] if number < len(tokens) else END))
            if item.logits is Logits.ALL:
                end = min(item.start + len(item.token_ids) + 1, item.num_prompt_tokens)
                result.prompt_logprobs = [_sampled(token) for token in item.history[item.start + 1 : end]]
            output.items.append(result)
        return output


def _sampled(token: Token) -> SampledToken:
    if isinstance(token, SampledToken):
        return token
    best = [(token, -0.5), ((token + 1) % END, -1.5), ((token + 2) % END, -2.5)]
    return SampledToken(token, -0.5, 1, best)


@dataclass
class Served:
    """A running server and what a test looks at."""

    url: str
    context: Context
    script: Script
    client: httpx.Client

    def post(self, path: str, **body: Any) -> httpx.Response:
        """The response to a JSON body."""
        return self.client.post(path, json=body)

    def events(self, path: str, **body: Any) -> list[Any]:
        """The JSON of a stream's events; [DONE] stays as it is."""
        found = []
        with self.client.stream("POST", path, json={**body, "stream": True}) as response:
            data = response.read().decode()
            assert response.status_code == 200, data
        for block in data.removesuffix("\n\n").split("\n\n"):
            line = block.split("\n")[-1].removeprefix("data: ")
            found.append(line if line == "[DONE]" else json.loads(line))
        return found


@contextmanager
def scripted(
    answer: Answer | str = "hello",
    *,
    template: str | None = CHATML,
    default: SamplingParams | None = None,
    num_blocks: int = 512,
    **settings: Any,
) -> Iterator[Served]:
    """A server that answers with a text, or with what a function makes of the prompt.

    Args:
        default: sampling parameters that the model recommends.
        settings: of ServerConfig.
    """
    tokenizer = byte_tokenizer(template)
    script = Script((lambda prompt, index: answer) if isinstance(answer, str) else answer, tokenizer)
    stop_check = StopStringCheck()
    kv = KVManager(num_blocks, 16)
    scheduler = Scheduler(
        kv, max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=4096, stop_check=stop_check
    )
    clock = MonotonicClock()
    metrics = EngineMetrics(clock, scheduler)
    engine = Engine(
        scheduler,
        script,
        clock=clock,
        vocab_size=tokenizer.vocab_size,
        eos_token_ids=tokenizer.eos_ids,
        seed=1,
        observer=metrics,
    )
    inputs = InputProcessor(tokenizer)
    model = ServedModel(
        names=("scripted",),
        created=1,
        max_model_len=4096,
        tokenizer=tokenizer,
        inputs=inputs,
        default_sampling_params=default or SamplingParams(),
        template=lambda: ChatTemplate.of(tokenizer),
        chat_format=lambda: ChatFormat(tokenizer, ChatTemplate.of(tokenizer)),
        kv_dtype="bfloat16",
        fingerprint="fp_scripted",
    )
    outputs = OutputProcessor(tokenizer, stop_check, metrics)
    config = ServerConfig(**settings)
    context = Context(config, model, AsyncEngine(engine, outputs, inputs), engine, metrics)
    try:
        with serving(create_app(context)) as url, httpx.Client(base_url=url, timeout=60) as client:
            yield Served(url, context, script, client)
    finally:
        context.engine.close()
