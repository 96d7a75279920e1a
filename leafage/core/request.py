"""Requests and their sequences: the state that the scheduler moves forward."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from leafage.core.batch import SampledToken
from leafage.core.sampling_params import SamplingParams


class FinishKind(str, Enum):
    """Why a sequence ended, in the OpenAI API's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class FinishReason:
    """`stop_reason` is the stop string or stop token id that ended the output, else None."""

    kind: FinishKind
    stop_reason: str | int | None = None
    error: Exception | None = None


class RequestStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One token stream with one block table.

    Attributes:
        seq_id: unique over the life of the engine.
        index: number of the sequence within its request.
        seed: key of its random draws.
        tokens: prompt and output tokens. K/V of the first `num_computed` is in the cache.
        num_computed: tokens whose K/V exists and is attached; the one rule: it moves to len(tokens).
        block_table: blocks in order; its length only grows while the sequence runs.
        finish: why it ended, None while it lives.
    """

    seq_id: int
    index: int
    seed: int
    tokens: list[int]
    num_prompt_tokens: int
    num_computed: int = 0
    block_table: list[int] = field(default_factory=list)
    finish: FinishReason | None = None

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens


@dataclass(slots=True, eq=False)
class Request:
    """What a client sent, and its gang of sequences.

    Attributes:
        arrival: number that orders requests by arrival; the core knows no clock.
        priority: lower runs first.
        cache_salt: requests share prefixes only within one salt.
        eos_token_ids: the model's end-of-generation ids (empty with ignore_eos).
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    arrival: int = 0
    priority: int = 0
    cache_salt: str = ""
    eos_token_ids: frozenset[int] = frozenset()
    max_tokens: int = 0
    seed: int = 0
    status: RequestStatus = RequestStatus.WAITING
    sequences: list[Sequence] = field(default_factory=list)
    num_cached: int | None = None
    """Prompt tokens found in the cache at first admission; None before it."""
    num_preemptions: int = 0


@dataclass(slots=True)
class Delta:
    """News of one sequence after a step, in the order the tokens were drawn.

    A finished sequence is reported once with `finish` set. `num_cached` is the request's prompt tokens
    served from the cache.
    """

    request_id: str
    index: int
    tokens: list[SampledToken]
    finish: FinishReason | None = None
    prompt_logprobs: list[SampledToken] = field(default_factory=list)
    num_cached: int = 0
