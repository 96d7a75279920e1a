"""What the core expects of the world. Implementations live outside: runtime, sim, engine, grammar, tier."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Protocol

from leafage.core.batch import Batch, StepOutput

if TYPE_CHECKING:
    from leafage.core.prefix_index import Key, Node
    from leafage.core.request import FinishReason, Sequence


class Executor(Protocol):
    """Runs batches: the model runner, the simulator's cost model, or a toy in the tests."""

    def execute(self, batch: Batch) -> StepOutput:
        """Run one batch. Raises ExecutorError when nothing of it can be used."""
        ...


class Clock(Protocol):
    """Seconds since an arbitrary start; real or virtual."""

    def now(self) -> float: ...


class StopCheck(Protocol):
    """Decides whether a sequence ends with a token; called in `Scheduler.update` for each sampled token.

    The engine implements it with the incremental detokenizer (stop strings); the simulator has none.
    End-of-generation ids, stop token ids, max_tokens and min_tokens are the core's own business.
    """

    def finished(self, sequence: Sequence, token_id: int) -> FinishReason | None: ...


class Matcher(Protocol):
    """Per-sequence state of a grammar."""

    def accept(self, token_id: int) -> bool: ...
    def forced(self) -> SequenceOf[int]: ...
    def fill_mask(self, buffer: memoryview) -> None: ...


class SwapSpace(Protocol):
    """Bookkeeping of slots outside the KV cache; the data is moved by the executor."""

    @property
    def num_free(self) -> int: ...
    def allocate(self) -> int: ...
    def free(self, slot: int) -> None: ...


class PrefixIndex(Protocol):
    """From token prefixes to blocks. It holds nodes; the KVManager counts references to their blocks.

    A node is `idle` while only the index holds its block. Ancestors of a held node are held, so idle nodes
    can be evicted leaves first. Implementations: RadixTree, HashChain, NoIndex.
    """

    @property
    def whole_blocks_only(self) -> bool:
        """Whether the head of a block that differs later is never found."""
        ...

    @property
    def num_idle(self) -> int: ...
    def nodes(self) -> Iterator[Node]: ...
    def root(self, salt: str) -> Node:
        """Where prefixes of one cache salt start. A detached root means: publish nothing."""
        ...

    def match(self, salt: str, tokens: SequenceOf[int], max_tokens: int) -> list[Node]:
        """The longest known run of whole blocks at the head of `tokens[:max_tokens]`, also pending ones."""
        ...

    def child(self, node: Node, key: Key) -> Node | None: ...
    def longest_run(self, node: Node, tokens: Key) -> tuple[Node, int] | None:
        """The computed child sharing the longest run (> 0) with `tokens`, if blocks can be shared in part."""
        ...

    def nearest(self, node: Node, tokens: Key) -> tuple[int, int | None]:
        """The longest run that any child shares with `tokens`, whether it can be taken or not, and the token
        that this child has behind it (None: there is none)."""
        ...

    def covers(self, parent: Node, key: Key) -> bool:
        """Whether a child's tokens begin with `key`, so that a partial leaf would add nothing."""
        ...

    def superseded(self, parent: Node, key: Key) -> Node | None:
        """The partial leaf that `key` extends."""
        ...

    def subtree(self, top: Node) -> list[Node]:
        """`top` and all below it, parents first."""
        ...

    def insert(self, parent: Node, key: Key, block: int) -> Node: ...
    def detach(self, node: Node) -> None: ...
    def set_idle(self, node: Node, step: int) -> None: ...
    def set_held(self, node: Node) -> None: ...
    def evict(self) -> list[Node]:
        """Remove the least recently used idle leaf, or a unit of nodes from it up. There is one."""
        ...

    def evicted_run(self, node: Node, tokens: SequenceOf[int], start: int) -> int:
        """How many tokens behind `node` were evicted lately."""
        ...

    def elsewhere(self, salt: str, tokens: SequenceOf[int]) -> int:
        """How many leading tokens some other salt holds; for the operator only."""
        ...

    def check(self) -> None: ...
