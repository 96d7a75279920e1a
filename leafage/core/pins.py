"""Pins: prefixes that stay cached until they are released.

What holds, and is asserted by `check()`:

1. A held pin is an owner of every block of its prefix: the whole blocks on its path in the index, and the
   node that has its last, partly filled block. All pins of a block count as one owner. So none of them is
   evicted, and the ancestors of a pinned node are pinned.
2. Pins together, those still being computed among them, hold at most `max_blocks`. One that might not keep
   to it is refused when it is asked for, never later.
3. A leaf that a sibling extends is in the index only while it is pinned (see RadixTree).
4. What is not computed yet runs as a request without output. The pin takes hold in the update of the step
   that computed the last token, before the request lets go of its blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leafage.core.prefix_index import Key, Node, NoIndex
from leafage.core.request import FinishReason, Request, Sequence
from leafage.core.sampling_params import SamplingParams
from leafage.errors import InvalidParameterError, PinRefusedError, RequestError, UnsupportedError

if TYPE_CHECKING:
    from leafage.core.block_store import BlockStore
    from leafage.core.protocols import KV


@dataclass(slots=True, eq=False)
class PrefixPin:
    """A prefix that is to stay cached.

    Attributes:
        pin_id: unique among pins and unfinished requests: the request that computes it has the same id.
        token_ids: the prefix. With an index that shares whole blocks only, its whole blocks.
        cache_salt: whose prefix it is.
        priority: of the request that computes it.
        nodes: where the index has it, block by block; empty while it is being computed.
        error: why it ended before anybody released it.
    """

    pin_id: str
    token_ids: list[int]
    cache_salt: str = ""
    priority: int = 0
    nodes: list[Node] = field(default_factory=list)
    error: Exception | None = None

    @property
    def held(self) -> bool:
        """Whether the prefix is computed and cannot be evicted."""
        return bool(self.nodes)

    def request(self) -> Request:
        """Computes the prefix and draws no token."""
        return Request(
            request_id=self.pin_id,
            prompt_token_ids=self.token_ids,
            params=SamplingParams(max_tokens=1, temperature=0.0),
            priority=self.priority,
            cache_salt=self.cache_salt,
            tenant=self.cache_salt,
            counted=True,  # nobody's prefix hit
            pin=self,
        )


class Pins:
    """The pins of a KV manager.

    Args:
        store: whose blocks they hold; None where there is none.
        block_size: tokens per block.
        max_blocks: blocks that all pins may hold together.
    """

    def __init__(self, store: BlockStore | None, block_size: int, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self.news: list[PrefixPin] = []
        """Pins that a step brought to hold, or to an error; whoever reads them takes them out."""
        self._store = None if store is None or isinstance(store.index, NoIndex) else store
        self._block_size = block_size
        self._pins: dict[str, PrefixPin] = {}

    def __len__(self) -> int:
        return len(self._pins)

    def __iter__(self) -> Iterator[PrefixPin]:
        return iter(self._pins.values())

    @property
    def num_blocks(self) -> int:
        """Blocks that pins hold; those that several hold count once."""
        return 0 if self._store is None else len(self._store.pinned)

    # -- between steps -----------------------------------------------------------------------------

    def start(self, pin: PrefixPin, add: Callable[[Request], None]) -> None:
        """Hold a prefix that is computed, or have it computed first.

        Args:
            add: `Scheduler.add`.

        Raises:
            UnsupportedError: there is no prefix index.
            InvalidParameterError: the prefix is empty, or has no whole block where only those are shared.
            PinRefusedError: pins might hold more than `max_blocks`.
            RequestTooLargeError: no request could ever use the prefix.
        """
        assert pin.pin_id not in self._pins and not pin.held
        if self._store is None:
            raise UnsupportedError(
                "pins need a prefix index, and this engine keeps none",
                remedy="use kv 'paged' with prefix_index 'radix' or 'hash_chain'",
            )
        if not pin.token_ids:
            raise InvalidParameterError("the prefix is empty", remedy="give at least one token")
        if self._store.index.whole_blocks_only:
            whole = len(pin.token_ids) // self._block_size * self._block_size
            if not whole:
                raise InvalidParameterError(
                    "the prefix is shorter than a block, and this prefix index shares whole blocks only",
                    value=f"{len(pin.token_ids)} tokens",
                    limit=f"at least {self._block_size}",
                    remedy="pin a longer one, or use prefix_index 'radix'",
                )
            pin.token_ids = pin.token_ids[:whole]
        need = self._most_blocks([*self, pin])
        if need > self.max_blocks:
            raise PinRefusedError(
                "pins would hold more of the KV cache than they may",
                value=f"{need} blocks, {need - self._most_blocks(self)} of them for this prefix",
                limit=f"{self.max_blocks} blocks",
                remedy="release others, shorten the prefix, raise pinned_share or enlarge the KV cache",
            )
        if not self._hold(pin):
            add(pin.request())
        self._pins[pin.pin_id] = pin

    def release(self, pin_id: str, abort: Callable[[str], object]) -> PrefixPin | None:
        """Give a pin up. Its blocks are ordinary cache from now on.

        Args:
            abort: `Scheduler.abort`, for one that is still being computed.

        Returns:
            The pin; None when there is none by that id (any more).
        """
        pin = self._pins.pop(pin_id, None)
        if pin is None:
            return None
        if pin.held:
            self._let_go(pin)
        else:
            abort(pin_id)
        return pin

    # -- in a step's update ------------------------------------------------------------------------

    def take_over(self, kv: KV, seq: Sequence, pin: PrefixPin) -> bool:
        """`seq` has computed the prefix: hold it. False when it is not in the index, because an earlier part
        of it was discarded meanwhile: then it must be computed again."""
        kv.hang_tail(seq)
        if not self._hold(pin):
            return False
        self.news.append(pin)
        return True

    def ended(self, pin: PrefixPin, reason: FinishReason) -> None:
        """The request that computed it ended. If it does not hold by now, it never will."""
        if not pin.held and self._pins.pop(pin.pin_id, None) is not None:
            pin.error = reason.error or RequestError(
                "the request that computed the prefix was aborted", remedy="pin it again"
            )
            self.news.append(pin)

    def recompute_lost(self, add: Callable[[Request], None]) -> None:
        """Some nodes were discarded, their K/V cannot be trusted: compute again what was pinned of them."""
        for pin in self._pins.values():
            if pin.held and pin.nodes[-1].detached:
                self._let_go(pin)
                if not self._hold(pin):
                    add(pin.request())

    # -- blocks ------------------------------------------------------------------------------------

    def _hold(self, pin: PrefixPin) -> bool:
        """Own all blocks of the prefix, if all of it is computed."""
        store = self._store
        assert store is not None and not store.in_step, "within a step nobody knows what is computed"
        tokens = pin.token_ids
        nodes = store.index.match(pin.cache_salt, tokens, len(tokens))
        rest = tuple(tokens[len(nodes) * self._block_size :])
        if len(rest) >= self._block_size:
            return False
        if rest:
            above = nodes[-1] if nodes else store.index.root(pin.cache_salt)
            found = store.index.longest_run(above, rest)
            if found is None or found[1] < len(rest):
                return False
            nodes.append(found[0])
        for node in nodes:
            store.pin(node.block)
        pin.nodes = nodes
        return True

    def _let_go(self, pin: PrefixPin) -> None:
        """Own them no longer. Discarded nodes have lost their pins already."""
        store, nodes = self._store, pin.nodes
        assert store is not None
        pin.nodes = []
        for node in reversed(nodes):
            if not node.detached:
                store.unpin(node.block)
        last = nodes[-1]
        if last.detached or last.block in store.pinned or len(last.key) == self._block_size:
            return
        assert last.parent is not None
        if store.index.covers(last.parent, last.key):
            store.forget(last)

    def _most_blocks(self, pins: Iterable[PrefixPin]) -> int:
        """Blocks that these pins hold at most: common whole ones once, and the partly filled of each."""
        size = self._block_size
        known: dict[tuple[str | int, Key], int] = {}
        num_tails = 0
        for pin in pins:
            tokens = pin.token_ids
            above: str | int = pin.cache_salt
            for end in range(size, len(tokens) + 1, size):
                key = (above, tuple(tokens[end - size : end]))
                above = known.setdefault(key, len(known))
            num_tails += len(tokens) % size > 0
        return len(known) + num_tails

    def check(self) -> None:
        """Assert what the head of this module names, but for the ownership, which `check_kv` recomputes."""
        store = self._store
        if store is None:
            assert not self._pins
            return
        holders: Counter[int] = Counter()
        for pin_id, pin in self._pins.items():
            assert pin.pin_id == pin_id and pin.error is None
            holders.update(node.block for node in pin.nodes)
            if not pin.held:
                continue
            assert pin.nodes[-1].path() == pin.nodes, f"{pin_id}: its nodes are no path"
            spelled = [token for node in pin.nodes for token in node.key][: len(pin.token_ids)]
            assert spelled == pin.token_ids, f"{pin_id}: holds other tokens"
            top = pin.nodes[0].parent
            assert top is store.index.root(pin.cache_salt), f"{pin_id}: shares with another cache_salt"
            assert not any(n.detached or n.pending for n in pin.nodes), f"{pin_id}: holds what is not there"
        assert holders == store.pinned, "the pinned blocks are not those of the pins"
        assert len(holders) <= self._most_blocks(self) <= self.max_blocks, "pins hold more than they may"
        for node in store.index.nodes():
            if len(node.key) < self._block_size and node.block not in holders:
                assert node.parent is not None
                assert not store.index.covers(node.parent, node.key), f"leaf {node.number} is of no use"
        alone = sum(store.pool.ref_count[block] == 2 for block in holders)
        assert alone == store.num_only_pinned, f"{alone} blocks are only pinned, the counter is wrong"
