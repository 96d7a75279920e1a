"""Requests whose prompts begin alike: few-shot evaluation and retrieval-augmented generation."""

from __future__ import annotations

import random
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, islice

from leafage.errors import InvalidParameterError
from leafage.sim.distributions import Distribution, LogNormal, Uniform
from leafage.sim.generated import Generated, check_at_least, check_sequences, setting
from leafage.sim.workload import FreshTokens, SimRequest, TokenRuns


@dataclass(frozen=True, kw_only=True)
class SharedPrompts(Generated):
    """What few-shot and retrieval have in common: instructions, something that several share, a question."""

    num_requests: int = setting(400, "requests in all")
    system_tokens: int = setting(100, "instructions at the head of all prompts")
    question_tokens: Distribution = setting(
        Uniform(20, 99), "distribution of a request's own end of the prompt"
    )
    output_tokens: Distribution = setting(Uniform(4, 32), "distribution of answer lengths")
    n: int = setting(1, "answers to each prompt, drawn side by side")
    beam_width: int | None = setting(None, "answer by beam search with so many beams")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("num_requests", self.num_requests, 1)
        check_at_least("system_tokens", self.system_tokens, 0)
        check_sequences(self.n, self.beam_width)

    def __len__(self) -> int:
        return self.num_requests

    def __iter__(self) -> Iterator[SimRequest]:
        tokens, lengths = FreshTokens(), self.rng("lengths")
        system = tokens.take(self.system_tokens)
        heads = self.heads(tokens)
        for number, arrival in enumerate(islice(self.arrival_times(), self.num_requests)):
            head = next(heads)
            question = tokens.take(self.question_tokens.draw_length(lengths))
            yield SimRequest(
                request_id=str(number),
                arrival=arrival,
                prompt=TokenRuns(system, head, question),
                output=tokens.take(self.output_tokens.draw_length(lengths)),
                n=self.n,
                beam_width=self.beam_width,
            )

    @abstractmethod
    def heads(self, tokens: FreshTokens) -> Iterator[TokenRuns]:
        """What stands between instructions and question, of each request. Endless."""


@dataclass(frozen=True, kw_only=True)
class FewShot(SharedPrompts):
    """Questions of several tasks, at random; each prompt shows the examples of its task.

    As in the lecture behind this project: 100 tokens of instructions, 8 tasks with examples of 500, 400
    requests submitted at once. After Brown et al., "Language Models are Few-Shot Learners" (NeurIPS 2020).
    """

    arrivals: str = setting(
        "at-once", "when: poisson, gamma (bursts, with cv), constant, or at-once (all at 0)"
    )
    num_tasks: int = setting(8, "tasks, each with examples of its own")
    task_tokens: int = setting(500, "examples of a task")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("num_tasks", self.num_tasks, 1)
        check_at_least("task_tokens", self.task_tokens, 0)

    def heads(self, tokens: FreshTokens) -> Iterator[TokenRuns]:
        tasks, choices = (
            [TokenRuns(tokens.take(self.task_tokens)) for _ in range(self.num_tasks)],
            self.rng("tasks"),
        )
        while True:
            yield tasks[int(choices.random() * self.num_tasks)]


@dataclass(frozen=True, kw_only=True)
class Retrieval(SharedPrompts):
    """Retrieval-augmented generation (Lewis et al., NeurIPS 2020): each prompt holds several documents of a
    collection, some of which are asked for more often than others (Zipf's law)."""

    num_documents: int = setting(1000, "documents in the collection")
    document_tokens: Distribution = setting(LogNormal(400, 0.5, 50, 2000), "distribution of their lengths")
    documents_per_request: int = setting(3, "documents in each prompt, all different")
    zipf: float = setting(1.0, "how unequal: the document of rank r is asked for in proportion to 1 / r^zipf")
    sorted_documents: bool = setting(
        False, "popular documents come first, so that more prompts begin alike; otherwise any order"
    )
    output_tokens: Distribution = setting(LogNormal(150, 0.6, 10, 1000), "distribution of answer lengths")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("num_documents", self.num_documents, 1)
        check_at_least("documents_per_request", self.documents_per_request, 0, self.num_documents)
        if not 0 <= self.zipf <= 10:
            raise InvalidParameterError("zipf is out of range", value=self.zipf, limit="0 (all alike) to 10")

    def heads(self, tokens: FreshTokens) -> Iterator[TokenRuns]:
        lengths, choices = self.rng("documents"), self.rng("retrieval")
        documents = [
            tokens.take(self.document_tokens.draw_length(lengths)) for _ in range(self.num_documents)
        ]
        weights = list(accumulate((rank + 1) ** -self.zipf for rank in range(self.num_documents)))
        while True:
            ranks = _distinct(self.documents_per_request, weights, choices)
            yield TokenRuns(
                *(documents[rank] for rank in (sorted(ranks) if self.sorted_documents else ranks))
            )


TRIES = 1000
"""Draws of one request that may hit what it has; then it takes the most popular of the others."""


def _distinct(count: int, weights: list[float], rng: random.Random) -> list[int]:
    """`count` different ranks in the order in which they were drawn; `weights` add up."""
    ranks: dict[int, None] = {}
    for _ in range(TRIES):
        if len(ranks) == count:
            break
        ranks[bisect_right(weights, rng.random() * weights[-1], hi=len(weights) - 1)] = None
    else:
        for rank in range(len(weights)):
            if len(ranks) == count:
                break
            ranks[rank] = None
    return list(ranks)
