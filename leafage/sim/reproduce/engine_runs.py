"""Requests through a real engine, step by step: answers, and the blocks that they hold meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from leafage.core.batch import Batch, SampledToken
from leafage.core.request import Delta, Request
from leafage.core.sampling_params import SamplingParams
from leafage.engine.engine import Engine
from leafage.sim.reproduce.demo import RealEngine, Tools

TEXT = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of "
    "foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season of Light, "
    "it was the season of Darkness, it was the spring of hope, it was the winter of despair."
)
MODELS = {"tiny": "tiny random model", "smollm2": "SmolLM2-135M"}
"""What demos run on, by the name that `Tools.engine` takes."""


@dataclass(slots=True)
class Answered:
    """What came of a request.

    Attributes:
        sequences: the tokens of each; of beams, the best first.
        num_cached: prompt tokens that the prefix index had.
    """

    sequences: list[list[SampledToken]]
    num_cached: int = 0

    @property
    def token_ids(self) -> list[list[int]]:
        """Of each sequence."""
        return [[token.token_id for token in sequence] for sequence in self.sequences]


class Runner:
    """One engine, one set of requests after another.

    Args:
        tools: make the engine.
        model: one of MODELS.
        settings: of `EngineConfig`.
    """

    def __init__(self, tools: Tools, model: str, **settings: object) -> None:
        # One thread: demos run side by side in processes, and the tokens are the same with any number.
        defaults = {"threads": 1, "kv_cache_tokens": 4096, "max_model_len": 1024}
        self.build: RealEngine = tools.engine(model, {**defaults, **settings})
        self.engine: Engine = self.build.engine
        self.on_scheduled: Callable[[Batch], None] | None = None
        """Told of each batch before it runs."""
        self._numbers = count()
        self._answers: dict[str, Answered] = {}
        self.engine.observer = self

    def prompt(self, num_tokens: int, skip: int = 0) -> list[int]:
        """A prompt of just so many tokens, from `TEXT`."""
        ids: list[int] = self.build.tokenizer.encode(TEXT)[skip : skip + num_tokens]
        assert len(ids) == num_tokens, "TEXT is too short"
        return ids

    def run(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> list[Answered]:
        """Answer all of them in one batch."""
        ids = [str(next(self._numbers)) for _ in prompts]
        for request_id, prompt, own in zip(ids, prompts, params, strict=True):
            self._answers[request_id] = Answered([[] for _ in range(own.n)])
            self.engine.add_request(request_id, prompt, own)
        while self.engine.has_unfinished:
            for delta in self.engine.step():
                if delta.finish is not None and delta.finish.error is not None:
                    raise delta.finish.error
                answered = self._answers[delta.request_id]
                answered.sequences[delta.index] += delta.tokens
                answered.num_cached = delta.num_cached
        return [self._answers.pop(request_id) for request_id in ids]

    def tables(self) -> list[list[int]]:
        """The block tables of all sequences that hold blocks."""
        return [seq.block_table for seq in self.engine.scheduler.kv.attached()]

    # What an engine tells its observer.

    def scheduled(self, batch: Batch) -> None:
        if self.on_scheduled is not None:
            self.on_scheduled(batch)

    def added(self, request: Request) -> None: ...
    def stepped(self, batch: Batch, deltas: list[Delta]) -> None: ...
    def aborted(self, request_id: str) -> None: ...
