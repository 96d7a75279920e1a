"""The contract between scheduler and executor: what one step computes, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from leafage.core.sampling_params import SamplingParams


class Logits(Enum):
    """Which rows of an item need logits."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


@dataclass(slots=True)
class Sample:
    """One token to draw from the last row of an item.

    Attributes:
        index: which of the request's sequences the token is for.
        position: absolute position the token will take; with `seed` it keys the generator.
        seed: the sequence's own seed (`derive(request seed, index)`).
    """

    index: int
    position: int
    seed: int


@dataclass(slots=True)
class Item:
    """The tokens of one sequence that one step computes.

    Attributes:
        seq_id: unique over the life of the engine.
        request_id: the request the sequence belongs to.
        block_table: the sequence's blocks in order. Owned by the core; executors only read it.
        start: absolute position of `token_ids[0]`; K/V of all earlier positions is in the cache.
        token_ids: tokens at positions `start ...`; never empty.
        write_from: K/V is written only for positions >= write_from; earlier ones are there already.
        logits: which rows need logits. ALL asks for prompt log-probabilities.
        samples: tokens to draw from the last row; empty while a prompt is unfinished.
        top_k_logprobs: how many alternatives to report per sampled (or prompt) token.
        params: the request's sampling parameters.
        history: all tokens of the sequence so far (prompt and output). Read only.
        num_prompt_tokens: how many of `history` are prompt.
        banned_token_ids: ids that must not be drawn in this step: the request's end-of-generation and stop
            ids while it has fewer than `min_tokens` output tokens, else empty.
    """

    seq_id: int
    request_id: str
    block_table: list[int]
    start: int
    token_ids: list[int]
    write_from: int
    logits: Logits
    samples: list[Sample]
    top_k_logprobs: int
    params: SamplingParams
    history: list[int]
    num_prompt_tokens: int
    banned_token_ids: frozenset[int] = frozenset()


@dataclass(slots=True)
class Copy:
    """Copy the first `num_slots` slots of block `src` to block `dst`, all layers, before the forward."""

    src: int
    dst: int
    num_slots: int


@dataclass(slots=True)
class Transfer:
    """Move one block between the KV cache and a slot of the swap space."""

    seq_id: int
    block: int
    swap_slot: int


@dataclass(slots=True)
class Batch:
    """All the work of one step. Order inside a step: swap_out, swap_in, copies, forward."""

    items: list[Item] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    swap_out: list[Transfer] = field(default_factory=list)
    swap_in: list[Transfer] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    """seq_ids that left (finished, aborted, preempted) since the last batch: drop per-sequence state."""

    @property
    def has_work(self) -> bool:
        return bool(self.items or self.copies or self.swap_out or self.swap_in)

    @property
    def num_tokens(self) -> int:
        return sum(len(item.token_ids) for item in self.items)


@dataclass(slots=True)
class SampledToken:
    """One drawn token. `logprob` is its natural log-probability under the model after penalties and
    bias, before temperature and truncation; `top` holds (token id, logprob), best first."""

    token_id: int
    logprob: float
    rank: int = 0
    top: list[tuple[int, float]] = field(default_factory=list)


@dataclass(slots=True)
class ItemOutput:
    """What an item gave: one SampledToken per sample, in order.

    `prompt_logprobs[i]` belongs to the token at position `start + i + 1` of the sequence (the row at
    `start + i` predicts it); only for items with `Logits.ALL`. `row_error` says why the item's logits
    are unusable (NaN), else None.
    """

    sampled: list[SampledToken] = field(default_factory=list)
    prompt_logprobs: list[SampledToken] = field(default_factory=list)
    row_error: str | None = None


@dataclass(slots=True)
class StepOutput:
    """Results of one batch, `items[i]` for `batch.items[i]`."""

    items: list[ItemOutput] = field(default_factory=list)
    failed_transfers: list[Transfer] = field(default_factory=list)


NO_OUTPUT = StepOutput()
