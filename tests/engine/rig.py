"""A made-up vocabulary, an executor without a model and an engine over both: nothing here needs weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from leafage.core.batch import Batch, ItemOutput, SampledToken, StepOutput
from leafage.core.kv_manager import KVManager
from leafage.core.scheduler import Scheduler
from leafage.engine.engine import Engine
from leafage.engine.inputs import InputProcessor
from leafage.engine.metrics import EngineMetrics
from leafage.engine.output import OutputProcessor
from leafage.engine.stop import StopStringCheck

EOS = 0


class FakeDetokenizer:
    """Ids are UTF-8 bytes above 2; holds back incomplete characters as the real one does."""

    def __init__(self, skip_special_tokens: bool) -> None:
        self.skip = skip_special_tokens
        self.pending = b""

    def push(self, token_id: int) -> str:
        if token_id == 255 + 3:
            raise KeyError(token_id)
        if token_id < 3:
            return "" if self.skip else f"<{token_id}>"
        self.pending += bytes([token_id - 3])
        try:
            text = self.pending.decode()
        except UnicodeDecodeError:
            return ""
        self.pending = b""
        return text

    def flush(self) -> str:
        return "\ufffd" if self.pending else ""

    def copy(self) -> FakeDetokenizer:
        twin = FakeDetokenizer(self.skip)
        twin.pending = self.pending
        return twin


class FakeTokenizer:
    """One id per byte: id = byte + 3; 0 is the end-of-generation id. 258 cannot be decoded at all."""

    vocab_size = 300
    eos_ids = frozenset({EOS})

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        return [byte + 3 for byte in text.encode()]

    def detokenizer(self, *, skip_special_tokens: bool = True) -> FakeDetokenizer:
        return FakeDetokenizer(skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        return chr(token_id - 3) if 3 <= token_id < 131 else f"<{token_id}>"


class FakeClock:
    """One second later at every look."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        self.time += 1.0
        return self.time


@dataclass
class ScriptedExecutor:
    """Every request answers with its script, whatever was computed; then with the end-of-generation id.

    `fail_at` raises an error in that step. `rows` collects the tokens computed in each step. `pace` is how
    many seconds a step takes at least.
    """

    script: Callable[[list[int]], list[int]]
    fail_at: dict[int, Exception] = field(default_factory=dict)
    row_errors: dict[int, str] = field(default_factory=dict)
    pace: float = 0.0
    steps: int = 0
    rows: list[int] = field(default_factory=list)

    def execute(self, batch: Batch) -> StepOutput:
        self.steps += 1
        time.sleep(self.pace)
        self.rows.append(batch.num_tokens)
        error = self.fail_at.get(self.steps)
        if error is not None:
            raise error
        output = StepOutput()
        for item in batch.items:
            answer = self.script(item.history[: item.num_prompt_tokens])
            result = ItemOutput(row_error=self.row_errors.get(item.history[0]))
            for sample in item.samples:
                number = sample.position - item.num_prompt_tokens
                token_id = answer[number] if number < len(answer) else EOS
                result.sampled.append(
                    SampledToken(token_id, -0.5, 1, [(token_id, -0.5), (7, -1.5), (8, -2.5)])
                )
            output.items.append(result)
        return output


@dataclass
class Rig:
    """An engine with everything around it."""

    engine: Engine
    executor: ScriptedExecutor
    outputs: OutputProcessor
    inputs: InputProcessor
    metrics: EngineMetrics
    tokenizer: FakeTokenizer
    kv: KVManager

    def run(self) -> None:
        """Step until nothing is left, checking the books after every step."""
        while self.engine.has_unfinished:
            deltas = self.engine.step()
            self.kv.check()
            for request_id in self.outputs.process(deltas) + self.outputs.deliver():
                self.engine.abort(request_id)
        self.kv.check()


def make_rig(
    answer: str | Callable[[list[int]], list[int]] = "hello",
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    max_num_seqs: int = 16,
    max_num_batched_tokens: int = 64,
    max_model_len: int = 128,
    seed: int | None = None,
    max_pinned_blocks: int = 0,
    clock: Any = None,
) -> Rig:
    """An engine that answers every prompt with a text, or with what a function makes of the prompt's ids."""
    tokenizer = FakeTokenizer()
    script = (lambda prompt: tokenizer.encode(answer)) if isinstance(answer, str) else answer
    executor = ScriptedExecutor(script)
    stop_check = StopStringCheck()
    kv = KVManager(num_blocks, block_size, max_pinned_blocks=max_pinned_blocks)
    scheduler = Scheduler(
        kv,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        stop_check=stop_check,
    )
    clock = clock or FakeClock()
    metrics = EngineMetrics(clock, scheduler)
    engine = Engine(
        scheduler,
        executor,
        clock=clock,
        vocab_size=tokenizer.vocab_size,
        eos_token_ids=tokenizer.eos_ids,
        seed=seed,
        observer=metrics,
    )
    outputs = OutputProcessor(tokenizer, stop_check, metrics)
    return Rig(engine, executor, outputs, InputProcessor(tokenizer), metrics, tokenizer, kv)
