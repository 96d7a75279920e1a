"""Why prompt tokens were not in the cache: for the client who asks, and for the operator's counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from leafage.core.protocols import KV
    from leafage.core.request import Request

MISS_REASONS = ("no_match", "below_block", "evicted", "salt")
"""What prompt tokens that were not in the cache are counted under."""


@dataclass(frozen=True, slots=True)
class PrefixMiss:
    """Where a prompt's cached prefix ends, and why. It tells nothing of other cache salts.

    Attributes:
        reason: `no_match`: the tokens from `position` on were never cached behind this prefix. `evicted`:
            they were until lately. `below_block`: they are cached, as a part of a block that could not be
            shared: it is being computed right now, or the index shares whole blocks only.
        position: index in the prompt of the first token that is not served from the cache; for `no_match`
            the first divergent one (with a hash chain, the first of its block).
        token_id: the prompt's token there.
        cached_token_id: for `no_match`, what the most similar cached prefix has there; None where it ends.
    """

    reason: Literal["no_match", "evicted", "below_block"]
    position: int
    token_id: int
    cached_token_id: int | None = None


def note_miss(kv: KV, request: Request) -> None:
    """Fill in `prefix_miss` and `missed` of a request that attached its prefix and has computed nothing of
    what follows.

    The first miss is None when all but the last token (which always runs) was cached. In `missed`, `salt`
    means: another cache_salt holds them, which only the operator may know.
    """
    seq = request.sequences[0]
    index, size = kv.index, kv.block_size
    prompt = tuple(request.prompt_token_ids)
    start = seq.num_published * size
    node = kv.node_of(seq)
    run, cached_token_id = index.nearest(node, prompt[start : start + size])
    known = start + run
    if index.whole_blocks_only and len(prompt) - start < size:
        known = len(prompt)
    evicted = index.evicted_run(node, prompt, start)
    request.missed = {
        "below_block": max(0, known - seq.num_computed),
        "evicted": evicted,
        "salt": max(0, index.elsewhere(seq.cache_salt, prompt) - start - evicted),
    }
    position = seq.num_computed
    if position >= len(prompt) - 1:
        request.prefix_miss = None
    elif start + evicted > known:
        request.prefix_miss = PrefixMiss("evicted", position, prompt[position])
    elif known > position:
        request.prefix_miss = PrefixMiss("below_block", position, prompt[position])
    else:
        request.prefix_miss = PrefixMiss("no_match", position, prompt[position], cached_token_id)
