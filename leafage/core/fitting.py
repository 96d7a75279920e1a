"""What a request needs to get in: blocks, next to those that the prefix index has for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leafage.core.prefix_index import Node
from leafage.core.request import Request, Sequence

if TYPE_CHECKING:
    from leafage.core.kv_manager import KVManager


@dataclass(slots=True)
class Match:
    """What the cache holds of a sequence: whole blocks, then the head of one more, to be copied."""

    nodes: list[Node] = field(default_factory=list)
    partial: tuple[Node, int] | None = None


def room_for(kv: KVManager, request: Request, limit: int | None, watermark: int) -> tuple[list[Match], int]:
    """The match of each live sequence, and how many blocks stay above the watermark when all of them get the
    blocks of their known tokens: below 0 the request does not fit.

    Args:
        limit: attach at most this many cached tokens per sequence; None means all.
    """
    members = request.live
    shared = members[0].num_prompt_tokens // kv.block_size if len(members) > 1 else 0
    matches = [_match(kv, seq, limit) for seq in members]
    need = _first_fork_copies(kv, request)
    idle: set[int] = set()
    for seq, match in zip(members, matches, strict=True):
        own = len(match.nodes) if seq is members[0] else max(shared, len(match.nodes))
        need += kv.blocks_for(len(seq.tokens)) - own
        idle.update(node.block for node in match.nodes if node.stamp is not None)
    return matches, kv.num_available - len(idle) - watermark - need


def room_without(
    kv: KVManager, others: list[Request], request: Request, limit: int | None, watermark: int
) -> int:
    """The room for a request if `others` had released all they hold."""
    if request.swapped:  # comes back with what it had computed
        limit = min(seq.num_lost for seq in request.live)
    matches, room = room_for(kv, request, limit, watermark)
    matched = {node.block for match in matches for node in match.nodes}
    held = Counter(block for other in others for seq in other.live for block in seq.block_table)
    for block, count in held.items():
        owners = kv.store.owners(block) - (kv.store.node_of(block) is not None)
        room += count == owners and block not in matched
    return room


def _first_fork_copies(kv: KVManager, request: Request) -> int:
    """Copies of the prompt's last, partly filled block that the first fork will make."""
    if len(request.sequences) > 1 or len(request.prompt_token_ids) % kv.block_size == 0:
        return 0
    return request.params.num_sequences - 1


def _match(kv: KVManager, seq: Sequence, limit: int | None) -> Match:
    size = kv.block_size
    tokens = seq.tokens
    limit = len(tokens) if limit is None else min(limit, len(tokens))
    nodes = kv.index.match(seq.cache_salt, tokens, limit)
    start = len(nodes) * size
    end = min(start + size, limit, len(tokens) - 1)  # the last token always runs: its logits are needed
    if end <= start:
        return Match(nodes)
    node = nodes[-1] if nodes else kv.index.root(seq.cache_salt)
    if kv.claims.held_by_earlier(seq, node, start):
        return Match(nodes)  # someone is computing that block: wait for it instead of copying a part
    return Match(nodes, kv.index.longest_run(node, tuple(tokens[start:end])))
