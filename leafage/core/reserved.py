"""ReservedKVManager: memory reserved at admission for the longest that a request may become.

The baselines of paging. Systems before PagedAttention keep K and V of a sequence in one piece and reserve it
at admission: Orca (Yu et al., OSDI 2022), in the three variants that Kwon et al. (SOSP 2023, section 6.1)
compare with. Here a piece is a run of consecutive blocks of the same pool, so executors run them unchanged;
the scheduler is the same too. With the allocator `scattered` a run's blocks lie anywhere: it tells what the
reservation costs from what the one piece costs.

What follows from it, and is asserted by `check()`:

1. A sequence's blocks are the first of its run; runs are disjoint, and all else is free.
2. Nothing grows beyond its run, which covers prompt and max_tokens. So nothing is preempted, except by a
   higher class.
3. Nothing is shared: sequence i of a request gets a run of its own and a copy of the prompt's K/V, and there
   is no prefix cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Units
from copy import deepcopy

from leafage.core.arena import ARENAS, Arena
from leafage.core.batch import Copy
from leafage.core.block_map import reserved_block_map
from leafage.core.counters import KVCounters
from leafage.core.pins import Pins
from leafage.core.prefix_index import OUTSIDE, Node, NoIndex
from leafage.core.request import Request, Sequence
from leafage.core.swap import Swap, SwapSlots
from leafage.core.usage import Duplicates, Usage, num_computable
from leafage.errors import InvalidParameterError

Reservation = Callable[[int, int, int], int]
"""(prompt tokens, max_tokens, max_model_len) -> slots; grows with max_tokens."""


def reserve_max(num_prompt: int, max_tokens: int, max_model_len: int) -> int:
    """Orca (Max): the longest that any sequence may become."""
    return max_model_len


def reserve_pow2(num_prompt: int, max_tokens: int, max_model_len: int) -> int:
    """Orca (Pow2): the output rounded up to a power of two, so at most twice what it needs."""
    return min(num_prompt + (1 << (max_tokens - 1).bit_length()), max_model_len)


def reserve_oracle(num_prompt: int, max_tokens: int, max_model_len: int) -> int:
    """Orca (Oracle): the true length.

    It is known where requests ignore end-of-generation ids, as in our workloads; of others it is the most
    that they may need. The K/V of the last token is never computed.
    """
    return num_prompt + max_tokens - 1


RESERVATIONS: dict[str, Reservation] = {"max": reserve_max, "pow2": reserve_pow2, "oracle": reserve_oracle}


Run = Units[int]
"""Blocks of a sequence, in the order of its tokens."""


class ReservedKVManager:
    """The interface of KVManager (`protocols.KV`) over reserved runs.

    Args:
        num_blocks: blocks in the pool.
        block_size: tokens per block; reservations are rounded up to it.
        reservation: `max`, `pow2` or `oracle`.
        max_model_len: prompt and output tokens of a sequence at most.
        allocator: `first-fit`, `buddy` or `scattered`.

    Raises:
        InvalidParameterError: for sizes below 1, an unknown reservation or allocator, or a pool that has no
            room for the smallest request.
    """

    max_pinned_blocks = 0
    counts_refusals = True

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        reservation: str,
        *,
        max_model_len: int,
        allocator: str = "first-fit",
    ) -> None:
        sizes = (("num_blocks", num_blocks), ("block_size", block_size), ("max_model_len", max_model_len))
        for name, value in sizes:
            if value < 1:
                raise InvalidParameterError(f"{name} is out of range", value=value, limit="at least 1")
        if reservation not in RESERVATIONS:
            limit = " or ".join(RESERVATIONS)
            raise InvalidParameterError("unknown reservation", value=reservation, limit=limit)
        if allocator not in ARENAS:
            raise InvalidParameterError("unknown allocator", value=allocator, limit=" or ".join(ARENAS))
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.index = NoIndex(block_size)
        self.pins = Pins(None, block_size, 0)
        self.counters = KVCounters()
        self.swap = Swap(block_size, SwapSlots(0))  # who is preempted is computed again
        self.copies: list[Copy] = []
        """Copies for the next batch, or of the current one."""
        self._reserve = RESERVATIONS[reservation]
        self._arena: Arena = ARENAS[allocator](num_blocks)
        self._attached: dict[int, Sequence] = {}
        self._runs: dict[int, Run] = {}  # by seq_id
        self._spare: dict[str, list[Run]] = {}  # for the forks of a gang, by request_id
        self._num_members: Counter[str] = Counter()
        self._beams: set[str] = set()  # gangs that go on forking: they keep the runs of dead beams
        self._copied: dict[int, Sequence] = {}  # children whose copies the step does, by seq_id
        self._duplicates = Duplicates(block_size)
        self._refused = ""
        self._in_step = False
        if self._arena.capacity(self._blocks(1, 1)) < 1:
            raise InvalidParameterError(
                "the KV pool has no room for one reservation",
                value=f"{num_blocks * block_size} tokens, {allocator}",
                limit=f"at least {self._arena.rounded(self._blocks(1, 1)) * block_size} tokens",
                remedy="enlarge the KV cache or lower max_model_len",
            )

    # -- counts ----------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        return self._arena.num_free

    @property
    def num_cached(self) -> int:
        """Nothing is cached."""
        return 0

    @property
    def num_active(self) -> int:
        """Reserved blocks."""
        return self.num_blocks - self.num_free

    @property
    def num_available(self) -> int:
        """Free blocks, wherever they lie."""
        return self.num_free

    def attached(self) -> Iterable[Sequence]:
        """The sequences that hold blocks."""
        return self._attached.values()

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def longest_output(self, num_prompt_tokens: int, n: int) -> int:
        """The largest max_tokens with which n runs fit the empty pool; below 1 when none do."""
        low, high = 0, max(0, self.max_model_len - num_prompt_tokens)
        while low < high:
            middle = (low + high + 1) // 2
            if self._arena.capacity(self._blocks(num_prompt_tokens, middle)) >= n:
                low = middle
            else:
                high = middle - 1
        return low

    def usage(self, running: Iterable[Request]) -> Usage:
        """Where the slots are."""
        size, arena = self.block_size, self._arena
        usage = Usage()
        for request in running:
            longest = num_computable(request)
            for run in self._spare.get(request.request_id, ()):
                usage.reservation += longest
                usage.internal += arena.rounded(len(run)) * size - longest
            for seq in request.live:
                usage.add(seq, arena.rounded(len(self._runs[seq.seq_id])) * size, longest)
        usage.free = arena.largest_free() * size
        usage.external = arena.num_free * size - usage.free
        usage.duplicates = self._duplicates.num_blocks * size
        return usage

    def advance_usage(self, usage: Usage, num_written: int, grown: list[tuple[Request, Sequence]]) -> None:
        """The same one decode step later, in which running sequences wrote so many more slots."""
        usage.stored += num_written
        usage.reservation -= num_written
        usage.duplicates = self._duplicates.num_blocks * self.block_size

    def block_map(self) -> bytes:
        """What each block is for, a letter each, see `core.block_map`."""
        return reserved_block_map(self.num_blocks, self._arena.free_runs(), self.attached())

    def node_at(self, block: int) -> Node | None:
        """There is no index."""
        return None

    def reset_prefix_cache(self) -> int:
        """There is none: frees 0 blocks."""
        return 0

    # -- a step ----------------------------------------------------------------------------------

    def begin_step(self, step: int) -> None:
        assert not self._in_step, "the previous step was neither committed nor undone"
        self._in_step = True

    def commit(self, failed_transfers: Collection[int] = ()) -> None:
        """The step ran: its copies are done."""
        self.copies = []  # a new list: the old one belongs to the batch
        self._copied.clear()
        self._in_step = False

    def undo(self) -> list[Sequence]:
        """The step failed. Returns the sequences whose copies may not have been made."""
        touched = list(self._copied.values())
        self.commit()
        return touched

    def discard(self, seq: Sequence) -> list[Sequence]:
        """Nobody else relies on what `seq` computed."""
        return []

    # -- admission -------------------------------------------------------------------------------

    def admit(self, request: Request, *, limit: int | None = None, watermark: int = 0) -> bool:
        """Reserve a run for every live sequence of a request, and for those it will be forked into.

        Args:
            request: holds no blocks yet.
            limit: of cached tokens; there are none.
            watermark: not kept: it is for growth, and all growth is reserved.

        Returns:
            Whether it fits. Nothing changes when it does not.
        """
        members = request.live
        count, length = self._runs_for(request)
        if self._arena.rounded(length) * count > self.num_free:
            return False
        runs: list[Run] = []
        for _ in range(count):
            run = self._arena.allocate(length)
            if run is None:
                self._give_back(runs)
                if self._refused != request.request_id:  # it asks again in every step
                    self._refused = request.request_id
                    self.counters.fragmented_admissions += 1
                return False
            runs.append(run)
        for seq in members:
            run = self._runs[seq.seq_id] = runs.pop(0)
            seq.block_table = list(run[: self.blocks_for(len(seq.tokens))])
            self._attached[seq.seq_id] = seq
        self._num_members[request.request_id] = len(members)
        if request.params.beam_width is not None:
            self._beams.add(request.request_id)
        if runs:
            self._spare[request.request_id] = runs
        return True

    def swap_in(self, request: Request, watermark: int) -> bool:
        """Nothing is ever swapped out."""
        return False

    def fits_without(
        self, others: list[Request], request: Request, limit: int | None, watermark: int
    ) -> bool:
        """Whether `admit` would succeed if `others` had released all they hold."""
        arena = deepcopy(self._arena)
        runs = [self._runs[seq.seq_id] for other in others for seq in other.live]
        for run in runs + [run for other in others for run in self._spare.get(other.request_id, ())]:
            arena.free(run)
        count, length = self._runs_for(request)
        return all(arena.allocate(length) is not None for _ in range(count))

    def _runs_for(self, request: Request) -> tuple[int, int]:
        """How many runs a request reserves, and how many blocks each has."""
        all_forked = len(request.sequences) > 1 and request.params.beam_width is None
        count = len(request.live) if all_forked else request.params.num_sequences
        return count, self._blocks(len(request.prompt_token_ids), request.max_tokens)

    def _blocks(self, num_prompt: int, max_tokens: int) -> int:
        """Blocks that a sequence reserves."""
        return self.blocks_for(self._reserve(num_prompt, max_tokens, self.max_model_len))

    # -- nothing to share with -------------------------------------------------------------------

    def advance(self, seq: Sequence) -> int:
        """Nobody publishes anything: 0 tokens gained."""
        return 0

    def follow(self, seq: Sequence, leader: Sequence) -> bool:
        """Every member of a gang computes its own prompt."""
        return True

    def must_yield(self, seq: Sequence) -> bool:
        return False

    def knows_next(self, seq: Sequence) -> bool:
        return False

    def claim(self, seq: Sequence, end: int) -> None:
        pass

    def node_of(self, seq: Sequence) -> Node:
        """Outside of the index."""
        return OUTSIDE

    # -- grow, fork, publish, release --------------------------------------------------------------

    def can_grow(self, members: list[Sequence]) -> bool:
        """Always: the run is theirs."""
        return True

    def grow(self, seq: Sequence, end: int) -> None:
        """Make the slots up to `end` exist: the next blocks of the run."""
        table = seq.block_table
        run = self._runs[seq.seq_id]
        while len(table) * self.block_size < end:
            assert len(table) < len(run), f"sequence {seq.seq_id} grows beyond its reservation"
            table.append(run[len(table)])

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """`child` takes the run that was reserved for it; the next batch copies the parent's K/V there."""
        run = self._runs[child.seq_id] = self._spare[child.request_id].pop()
        self._num_members[child.request_id] += 1
        child.block_table = list(run[: len(parent.block_table)])
        child.num_computed = child.num_planned = parent.num_computed
        child.num_offered = parent.num_offered
        self._attached[child.seq_id] = self._copied[child.seq_id] = child
        self._duplicates.fork(parent, child)
        for index in range(self.blocks_for(parent.num_computed)):
            slots = min(parent.num_computed - index * self.block_size, self.block_size)
            self.copies.append(Copy(parent.block_table[index], child.block_table[index], slots))
            self.counters.copied_blocks += 1

    def publish(self, seq: Sequence, end: int) -> None:
        """Count the full blocks of `tokens[:end]` that others hold as well."""
        self._duplicates.extend(seq, end)
        seq.num_offered = end // self.block_size

    def hang_tail(self, seq: Sequence) -> None:
        """There is no index to hang it in."""

    def release(self, seq: Sequence, *, keep_tail: bool) -> None:
        """Give the run back, or to the gang's next fork. Copies into it are not made any more.

        Copies out of it still are: its next owner writes into it in a later step, or in theirs, after them.
        """
        run = self._runs.pop(seq.seq_id)
        if self._copied.pop(seq.seq_id, None) is not None:
            self.copies = [copy for copy in self.copies if copy.dst not in run]
        request_id = seq.request_id
        self._num_members[request_id] -= 1
        if self._num_members[request_id] == 0:
            del self._num_members[request_id]
            self._beams.discard(request_id)
            self._give_back([run, *self._spare.pop(request_id, ())])
        elif request_id in self._beams:
            self._spare.setdefault(request_id, []).append(run)
        else:
            self._give_back([run])
        self._duplicates.remove(seq)
        seq.block_table = []
        seq.num_offered = 0
        seq.write_from = 0
        del self._attached[seq.seq_id]

    def _give_back(self, runs: list[Run]) -> None:
        for run in runs:
            self._arena.free(run)

    # -- invariants --------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert what the head of this module names. For tests: it looks at everything."""
        arena = self._arena
        arena.check()
        spare = [run for runs in self._spare.values() for run in runs]
        owners = [0] * self.num_blocks
        for run in [*self._runs.values(), *spare]:
            beyond = range(run[-1] + 1, run[-1] + 1 + arena.rounded(len(run)) - len(run))
            for block in (*run, *beyond):
                owners[block] += 1
        for start, length in arena.free_runs():
            for block in range(start, start + length):
                owners[block] += 1
        assert owners == [1] * self.num_blocks, "blocks are lost or taken twice"
        assert self._runs.keys() == self._attached.keys(), "a run without a sequence, or the reverse"
        for seq in self._attached.values():
            run, table = self._runs[seq.seq_id], seq.block_table
            name = f"sequence {seq.seq_id}"
            assert table == list(run[: len(table)]), f"{name}: blocks are not the first of its run"
            planned = seq.num_planned
            assert 0 <= seq.num_computed <= planned <= len(seq.tokens), f"{name}: num_computed is wrong"
            assert planned <= len(table) * self.block_size, f"{name}: computed tokens without a block"
        targets = [copy.dst for copy in self.copies]
        assert len(set(targets)) == len(targets), "two copies have the same destination"
        assert not {copy.src for copy in self.copies} & set(targets), "copies overlap"
        children = {block for seq in self._copied.values() for block in seq.block_table}
        assert children.issuperset(targets), "a copy goes to no new sequence"
