"""What the promise tests share: engines over one copy of the weights, and a witness of all logits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from leafage import LLM, SamplingParams
from leafage.build import Assets, assemble
from leafage.config import EngineConfig
from leafage.core.batch import Batch, Logits, StepOutput
from leafage.engine.output import RequestOutput


@dataclass
class Witness:
    """Promise 1 in one sentence: a row of logits is a function of the tokens before it.

    It remembers a digest of each row under the tokens that led to it, over all engines that it watches, and
    lists every second sight that differs in any bit.
    """

    digests: dict[bytes, bytes] = field(default_factory=dict)
    compared: int = 0
    broken: list[str] = field(default_factory=list)

    def watch(self, llm: LLM) -> None:
        executor: Any = llm.build.engine.executor
        execute, forward = executor.execute, executor.program.forward
        rows: list[tuple[bytes, str]] = []

        def watched_execute(batch: Batch) -> StepOutput:
            rows[:] = _rows(batch)
            return execute(batch)  # type: ignore[no-any-return]

        def watched_forward(*arguments: Any) -> Iterator[tuple[int, np.ndarray]]:
            for first, logits in forward(*arguments):
                for i, row in enumerate(logits):
                    self._see(*rows[first + i], row)
                yield first, logits

        executor.execute, executor.program.forward = watched_execute, watched_forward

    def _see(self, key: bytes, name: str, row: np.ndarray) -> None:
        digest = hashlib.blake2b(row.tobytes(), digest_size=16).digest()
        known = self.digests.setdefault(key, digest)
        if known is not digest:
            self.compared += 1
            if known != digest:
                self.broken.append(name)

    def check(self, at_least: int) -> None:
        """No row differed, and this many were really compared since the last check."""
        assert not self.broken, f"{len(self.broken)} of {self.compared} rows differ: {self.broken[:5]}"
        assert self.compared >= at_least
        self.compared = 0


def _rows(batch: Batch) -> Iterator[tuple[bytes, str]]:
    """(digest of the tokens up to it, name) of each logit row, in the order of `StepInputs.logit_rows`."""
    for item in batch.items:
        last = len(item.token_ids) - 1
        offsets = {Logits.NONE: range(0), Logits.LAST: range(last, last + 1), Logits.ALL: range(last + 1)}
        for offset in offsets[item.logits]:
            position = item.start + offset
            tokens = np.array(item.history[: position + 1], dtype=np.int32).tobytes()
            yield hashlib.blake2b(tokens).digest(), f"{item.request_id} at {position}"


def engine(assets: Assets, **settings: Any) -> LLM:
    """An LLM over weights that are in memory already."""
    settings.setdefault("kv_cache_tokens", 8192)
    return LLM.from_build(assemble(EngineConfig.from_kwargs(**settings), assets))


def salted(prompts: list[list[int]], salt: str) -> list[dict[str, Any]]:
    """The prompts with a cold cache: nothing is shared with other salts."""
    return [{"prompt_token_ids": prompt, "cache_salt": salt} for prompt in prompts]


def tokens_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def random_prompts(count: int, low: int, high: int, seed: int) -> list[list[int]]:
    """Prompts of `low` to `high` - 1 tokens, as in the workloads of the benchmarks."""
    rng = np.random.default_rng(seed)
    return [rng.integers(100, 40_000, size=int(rng.integers(low, high))).tolist() for _ in range(count)]


def mixed_params(count: int, max_tokens: int) -> list[SamplingParams]:
    """Greedy, seeded sampling and penalties in turn."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8, "top_p": 0.95},
        {"temperature": 1.0, "top_k": 50, "repetition_penalty": 1.2},
        {"temperature": 0.0, "frequency_penalty": 0.5, "presence_penalty": 0.2},
    ]
    return [
        SamplingParams(**kinds[i % 4], seed=1000 + i, max_tokens=max_tokens, ignore_eos=True)
        for i in range(count)
    ]
