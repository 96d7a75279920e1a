"""Many steps in one call, while the running sequences only decode and nothing else can happen.

A step is *quiet* when every running gang awaits its next tokens, nobody who waits can get in, all that grow
find a block, and only max_tokens ends sequences. What it does to a sequence inside of a block is known
beforehand: one token more. So a quiet step looks only at those that reach a block boundary in it: they grow
and publish as ever, in the order of service. All others catch up at the end. Decisions, blocks and counters
are those of `schedule` and `update`, step by step.

For simulations: tokens must be known before they are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leafage.core.prefix_index import NoIndex
from leafage.core.request import FinishKind, FinishReason, Request, Sequence

if TYPE_CHECKING:
    from leafage.core.scheduler import Scheduler

Foresight = Callable[[Sequence, int], Iterable[int]]
"""(sequence, count) -> the next so many tokens that it will draw."""


@dataclass(slots=True)
class _Gang:
    """The live members of a request. In lockstep: each has `length` tokens when the fast-forward begins."""

    request: Request
    members: list[Sequence]
    length: int


class FastForward:
    """Quiet steps, one by one. Nothing else may be asked of the scheduler until `end`.

    There are none with beams, pins, stop ids, a StopCheck, prompts under way or a budget that is too small;
    nor while requests wait for memory under the policies `first_fit`, `longest_prefix` and `fair`.

    Args:
        foresight: the tokens that will be drawn.

    Attributes:
        num_seqs: sequences that decode, one token each in a step; 0: there is no quiet step.
        context: tokens that they attended to in the last step, all together.
        num_steps: steps done.
        usage: of the KV cache in the last of them.
    """

    def __init__(self, scheduler: Scheduler, foresight: Foresight) -> None:
        self._scheduler = scheduler
        self._foresight = foresight
        self._gangs = _decoding(scheduler)
        kv, size = scheduler.kv, scheduler.kv.block_size
        num_seqs, context, max_steps = 0, 0, 1 << 62
        boundaries: list[list[_Gang]] = [[] for _ in range(size)]
        for gang in self._gangs:
            request, length, width = gang.request, gang.length, len(gang.members)
            num_seqs += width
            context += width * (length - 1)
            left = len(request.prompt_token_ids) + request.max_tokens - length
            if left < max_steps:
                max_steps = left
            full = -length % size
            boundaries[full].append(gang)
            if size > 1:
                boundaries[full + 1 - size].append(gang)
        self.num_steps = 0
        self.num_seqs = num_seqs if num_seqs <= scheduler.max_num_batched_tokens else 0
        self.context = context
        self._max_steps = max_steps
        """In the last one, somebody ends."""
        self._boundaries = boundaries
        """In step i those of entry i % block_size have filled a block, or need one."""
        if self.num_seqs:
            self.usage = kv.usage(scheduler.roster.running)
        refused = scheduler.admission.refused
        watched = refused is not None and not isinstance(kv.index, NoIndex)
        self._waiting = refused.live if refused is not None and watched else []

    def step(self) -> bool:
        """Do a quiet step. False, and nothing happens: the next one is not, or sequences have ended."""
        number = self.num_steps
        if not self.num_seqs or number == self._max_steps:
            return False
        scheduler, kv = self._scheduler, self._scheduler.kv
        gangs = self._boundaries[number % kv.block_size]
        for gang in gangs:
            self._catch_up(gang)
        if gangs and not self._is_quiet([seq for gang in gangs for seq in gang.members]):
            return False
        scheduler.step += 1
        scheduler.counters.steps += 1
        scheduler.counters.generated_tokens += self.num_seqs
        grown: list[tuple[Request, Sequence]] = []
        if gangs:
            kv.begin_step(scheduler.step)
            for gang in gangs:
                self._pass_boundary(gang, grown)
            if self._waiting:
                all_wait = scheduler.admission.all_wait()
                assert all_wait, "somebody was let in by what others published"
            kv.commit()
        kv.advance_usage(self.usage, self.num_seqs, grown)
        self.num_steps = number + 1
        self.context += self.num_seqs
        return True

    def end(self) -> list[tuple[Request, int]]:
        """All catch up, and those end that have drawn their last token. Returns how many tokens each request
        drew, in the order of service."""
        scheduler, kv = self._scheduler, self._scheduler.kv
        if not self.num_steps:
            return []
        kv.begin_step(scheduler.step)
        kv.commit()
        scheduler.admission.take_released()
        drawn = []
        for gang in self._gangs:
            gang.request.visited = scheduler.step
            self._catch_up(gang)
            drawn.append((gang.request, self.num_steps * len(gang.members)))
        if self.num_steps == self._max_steps:
            reason = FinishReason(FinishKind.LENGTH)
            for gang in self._gangs:
                request = gang.request
                if gang.length + self.num_steps == len(request.prompt_token_ids) + request.max_tokens:
                    for seq in gang.members:
                        scheduler.retire(request, seq, reason)
        return drawn

    def _catch_up(self, gang: _Gang) -> None:
        """The members get the tokens of the steps done."""
        length = gang.length + self.num_steps
        for seq in gang.members:
            tokens = seq.tokens
            missing = length - len(tokens)
            if missing:
                tokens += self._foresight(seq, missing)
                seq.num_computed = seq.num_planned = length - 1

    def _is_quiet(self, members: list[Sequence]) -> bool:
        """Whether there is a block for each that needs one, and no block of these lets somebody in."""
        kv, size = self._scheduler.kv, self._scheduler.kv.block_size
        if kv.num_available < len(members) and not kv.can_grow(members):
            return False
        if not self._waiting:
            return True
        published: set[tuple[int, ...]] = set()
        for seq in members:
            end = len(seq.tokens)
            if end % size:
                continue
            block = seq.tokens[end - size :]
            key = tuple(block)
            if seq.index_node is not None:
                known = kv.knows_next(seq)
            else:  # its root need not be there yet
                known = bool(kv.index.match(seq.cache_salt, block, size))
            if known or key in published:
                return False  # a duplicate would be freed
            if any(waiting.tokens[end - size : end] == block for waiting in self._waiting):
                return False  # what waits would share it
            published.add(key)
        return True

    def _pass_boundary(self, gang: _Gang, grown: list[tuple[Request, Sequence]]) -> None:
        """What `Scheduler.schedule` does to a decoding gang, in a step where it needs or fills blocks."""
        kv, size = self._scheduler.kv, self._scheduler.kv.block_size
        end = gang.length + self.num_steps
        for seq in gang.members:
            if len(seq.block_table) * size < end:
                kv.grow(seq, end)
                grown.append((gang.request, seq))
        if end % size == 0:
            for seq in gang.members:
                kv.publish(seq, end)
                seq.num_planned = end


def _decoding(scheduler: Scheduler) -> list[_Gang]:
    """The running gangs; none when the next step may not be quiet."""
    kv, roster = scheduler.kv, scheduler.roster
    size = kv.block_size
    if not roster.running or scheduler.busy or scheduler.stop_check is not None or len(kv.pins):
        return []
    if not scheduler.admission.all_wait():
        return []
    gangs = []
    for request in roster.running:
        if request.prefilling or not (request.counted and request.ends_by_length) or request.pin is not None:
            return []
        members = request.sequences
        if request.num_unforked:
            if len(members) == 1:
                return []
            members = request.live
        length = len(members[0].tokens)
        if length <= len(request.prompt_token_ids) + (len(members) > 1):
            return []  # no token yet; or a gang that has just forked, which will copy what its members share
        for seq in members:
            if len(seq.tokens) != length:
                return []  # a budget that was too small has set them apart
            if seq.num_offered < seq.num_computed // size:
                return []  # it came from the swap space and publishes all of it first
        gangs.append(_Gang(request, members, length))
    return gangs
