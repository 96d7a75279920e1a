"""Requests and their sequences: the state that the scheduler moves forward."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from leafage.core.batch import SampledToken
from leafage.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from leafage.core.beam import BeamSearch
    from leafage.core.misses import PrefixMiss
    from leafage.core.pins import PrefixPin
    from leafage.core.prefix_index import Key, Node


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


RUNNING = RequestStatus.RUNNING  # for loops: members of an Enum are slow to find


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
        cache_salt: the request's.
        write_from: K/V of earlier positions is in attached blocks and must not be written.
        num_published: leading blocks of the table that the prefix index knows.
        num_offered: leading blocks that it was given, whether it keeps them or not.
        index_node: the node of the last of them, None before the first; a detached one: publish nothing.
        claim: the block (parent node number, tokens) it computes next, for others to wait for.
        swap_slots: where its first blocks are while it is swapped out.
        num_lost: tokens that were computed before the last preemption.
        num_planned: what `num_computed` becomes when the current step succeeds.
        rank: the request's (priority, arrival).
        gang: all sequences of the request, this one among them.
    """

    seq_id: int
    index: int
    seed: int
    tokens: list[int]
    num_prompt_tokens: int
    num_computed: int = 0
    block_table: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    cache_salt: str = ""
    write_from: int = 0
    num_published: int = 0
    num_offered: int = 0
    index_node: Node | None = None
    claim: tuple[int, Key] | None = None
    swap_slots: list[int] = field(default_factory=list)
    num_lost: int = 0
    num_planned: int = 0
    rank: tuple[int, int] = (0, 0)
    gang: list[Sequence] = field(default_factory=list)
    request_id: str = ""

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
        tenant: whom the policy `fair` charges for it.
        eos_token_ids: the model's end-of-generation ids (empty with ignore_eos).
        max_tokens: output tokens at most, of each sequence; set by `Scheduler.add`.
        seed: key of all random draws of the request; sequence i draws with `derive(seed, i)`.
        sequences: the gang; one until the prompt is computed, then `params.num_sequences`. Running beams
            stand in the order of their score.
        passed: how often a later one of its class was admitted while it waited.
        prefilling: some member has known tokens to compute besides its last one.
        visited: last step in which the scheduler gave it a turn.
        num_prompt_logprobs: prompt rows whose log-probabilities were delivered.
        missed: why prompt tokens were not cached, tokens by reason, as seen at first admission.
        prefix_miss: where the cached prefix ended and why, for the client.
        counted: its prefix hits and misses are in the counters.
        leader: the sequence that computes the prompt for the gang.
        beams: the state of its beam search, None for one that draws.
        num_unforked: siblings that the first sequence is forked into when the prompt's last row has drawn.
        pin: what it computes its prompt for, None for one that answers.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    arrival: int = 0
    priority: int = 0
    cache_salt: str = ""
    tenant: str = ""
    eos_token_ids: frozenset[int] = frozenset()
    max_tokens: int = 0
    seed: int = 0
    status: RequestStatus = RequestStatus.WAITING
    sequences: list[Sequence] = field(default_factory=list)
    num_cached: int | None = None
    """Prompt tokens found in the cache at first admission; None before it."""
    num_preemptions: int = 0
    passed: int = 0
    prefilling: bool = True
    visited: int = 0
    num_prompt_logprobs: int = 0
    missed: dict[str, int] = field(default_factory=dict)
    prefix_miss: PrefixMiss | None = None
    counted: bool = False
    leader: Sequence | None = None
    beams: BeamSearch | None = None
    num_unforked: int = field(init=False, default=0)
    pin: PrefixPin | None = None

    def __post_init__(self) -> None:
        if self.params.beam_width is None:
            self.num_unforked = self.params.num_sequences - 1

    @property
    def live(self) -> list[Sequence]:
        """The sequences that have not ended."""
        return [seq for seq in self.sequences if seq.finish is None]

    @property
    def ready(self) -> bool:
        """Whether all live sequences have at most their last known token to compute."""
        return all(len(seq.tokens) - seq.num_computed <= 1 for seq in self.live)

    @property
    def ends_by_length(self) -> bool:
        """Whether only max_tokens ends its sequences, unless a StopCheck does: no stop ids, no beams."""
        return not self.eos_token_ids and not self.params.stop_token_ids and self.beams is None

    @property
    def swapped(self) -> bool:
        """Whether its blocks are in the swap space."""
        return any(seq.swap_slots for seq in self.sequences)

    def new_sequence(self, seq_id: int, parent: Sequence | None = None) -> Sequence:
        """Add the next sequence of the gang, with its parent's tokens, or the prompt."""
        index = len(self.sequences)
        seq = Sequence(
            seq_id=seq_id,
            index=index,
            seed=derive(self.seed, index),
            tokens=list(self.prompt_token_ids if parent is None else parent.tokens),
            num_prompt_tokens=len(self.prompt_token_ids),
            cache_salt=self.cache_salt,
            rank=(self.priority, self.arrival),
            gang=self.sequences,
            request_id=self.request_id,
        )
        self.sequences.append(seq)
        return seq

    def end_of(self, seq: Sequence) -> int:
        """How far to compute `seq` while the request is `prefilling`.

        Beams advance in lockstep: once they run, their last tokens wait until all of them have got so far.
        """
        return len(seq.tokens) - (self.beams is not None and bool(self.beams.running))


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


def derive(seed: int, index: int) -> int:
    """The seed of a request's sequence `index`; that of sequence 0 is the request's own.

    A 64-bit mix (the finalizer of SplitMix64, Steele et al., OOPSLA 2014), so that `n=1, seed=derive(s, i)`
    gives the answer that sequence i of `n>i, seed=s` gave.
    """
    if index == 0:
        return seed
    mask = (1 << 64) - 1
    z = (seed + index * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)
