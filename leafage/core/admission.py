"""Who may have memory: what can ever fit, what a gang may still ask for, and who makes room for whom."""

from __future__ import annotations

from collections.abc import Sequence

from leafage.core.beam import Beam
from leafage.core.counters import SchedulerCounters
from leafage.core.misses import note_miss
from leafage.core.prefix_index import NoIndex
from leafage.core.protocols import KV
from leafage.core.request import Request
from leafage.core.request import Sequence as Seq
from leafage.core.roster import Roster, rank
from leafage.core.sampling_params import SamplingParams
from leafage.core.swap import RestoreCost
from leafage.errors import InvalidParameterError, RequestTooLargeError

PREEMPTIONS = ("auto", "swap", "recompute")
MAX_TRIES = 8
"""Under a policy that skips: how many waiting requests that do not fit are tried in a step."""
MAX_PREEMPTIONS = 4
"""B: a gang preempted this often is not a victim for its own priority again."""


def at_least(low: int, **limits: int) -> None:
    """Raise InvalidParameterError for a limit below `low`, naming it."""
    for name, value in limits.items():
        if value < low:
            raise InvalidParameterError(f"{name} is out of range", value=value, limit=f"at least {low}")


def fitting_max_tokens(request: Request, kv: KV, *, max_seqs: int, max_model_len: int) -> int:
    """The request's max_tokens, or as many as fit when it is unset.

    Args:
        max_seqs: the most sequences that can run at once.
        max_model_len: prompt and output tokens of a sequence at most.

    Raises:
        RequestTooLargeError: n, the prompt, or the prompt and an explicit max_tokens are too large.
    """
    params = request.params
    num_prompt = len(request.prompt_token_ids)
    num_seqs = params.num_sequences
    if num_seqs > max_seqs:
        raise RequestTooLargeError(
            f"{_width_name(params)} is larger than what can run at once",
            value=num_seqs,
            limit=max_seqs,
            remedy="ask for fewer sequences, or raise max_num_seqs and max_num_batched_tokens",
        )
    room = max_model_len - num_prompt
    if room < 1:
        raise RequestTooLargeError(
            "the prompt leaves no room for an output token",
            value=f"{num_prompt} prompt tokens",
            limit=f"{max_model_len - 1} (max_model_len is {max_model_len})",
            remedy="shorten the prompt or raise max_model_len",
        )
    longest = kv.longest_output(num_prompt, num_seqs)
    capacity = (kv.num_blocks - kv.max_pinned_blocks) * kv.block_size
    many = f" and {_width_name(params)} = {num_seqs}" if num_seqs > 1 else ""
    if longest < 1 and num_seqs > 1 and kv.longest_output(num_prompt, 1) >= 1:
        raise RequestTooLargeError(
            "so many sequences do not fit the KV cache",
            value=f"{num_prompt} prompt tokens{many}",
            limit=f"{capacity} tokens",
            remedy=f"lower {_width_name(params)} or enlarge the KV cache",
        )
    if longest < 1:
        raise RequestTooLargeError(
            "the prompt does not fit the KV cache",
            value=f"{num_prompt} prompt tokens{many}",
            limit=f"{capacity} tokens for prompt and output together",
            remedy="shorten the prompt or enlarge the KV cache",
        )
    fitting = min(room, longest)
    if params.max_tokens is None:
        return fitting
    if params.max_tokens > room:
        raise RequestTooLargeError(
            "prompt and max_tokens exceed the context",
            value=f"{num_prompt} prompt tokens + max_tokens {params.max_tokens}",
            limit=f"{max_model_len} (max_model_len)",
            remedy=f"set max_tokens to at most {fitting}, or leave it unset",
        )
    if params.max_tokens > longest:
        raise RequestTooLargeError(
            "prompt and max_tokens exceed the KV cache",
            value=f"{num_prompt} prompt tokens + max_tokens {params.max_tokens}{many}",
            limit=f"{capacity} tokens",
            remedy=f"set max_tokens to at most {fitting}, or leave it unset, or enlarge the KV cache",
        )
    return params.max_tokens


def _width_name(params: SamplingParams) -> str:
    """The parameter that says how many sequences run."""
    return "beam_width" if params.beam_width else "best_of" if params.best_of else "n"


def growth_left(request: Request, kv: KV) -> int:
    """Blocks that a gang may still ask for at worst: beyond those it holds or, waiting, gets at admission."""
    num_prompt = len(request.prompt_token_ids)
    most = kv.blocks_for(num_prompt + request.max_tokens - 1)
    left = request.params.num_sequences - len(request.sequences)  # not forked yet
    growth = left * (most - num_prompt // kv.block_size)
    for seq in request.live:
        growth += most - (len(seq.block_table) or kv.blocks_for(len(seq.tokens)))
    return growth + len(request.live) - 1  # the copies of a shared, partly filled block


def victim_for(requester: Request, running: Sequence[Request], step: int, max_preemptions: int) -> Request:
    """The gang that gives its blocks to `requester`: the latest arrived of the lowest priority.

    Only gangs behind the requester that had no turn in this step, so nothing listed is taken back; and none
    of the requester's own priority that was preempted `max_preemptions` times. Without one, the requester.
    """
    for candidate in reversed(running):
        if rank(candidate) <= rank(requester):
            break
        spared = candidate.priority == requester.priority and candidate.num_preemptions >= max_preemptions
        if candidate.visited != step and not spared:
            return candidate
    return requester


class Admission:
    """Moves gangs between waiting and running: each is admitted, preempted and resumed as a whole.

    Args:
        kv: the blocks.
        roster: the unfinished requests.
        counters: of the scheduler.
        max_num_seqs: sequences that may run at once.
        watermark: blocks kept available at admission while anything runs.
        max_preemptions: B above.
        preemption: how a victim's K/V comes back: `recompute`, `swap`, or `auto`, the cheaper of both. What
            the swap space has no room for is recomputed.
        restore_cost: what `auto` compares.

    Raises:
        InvalidParameterError: a limit out of range.
    """

    def __init__(
        self,
        kv: KV,
        roster: Roster,
        counters: SchedulerCounters,
        *,
        max_num_seqs: int,
        watermark: int,
        max_preemptions: int,
        preemption: str,
        restore_cost: RestoreCost,
    ) -> None:
        at_least(0, watermark=watermark)
        at_least(1, max_preemptions=max_preemptions)
        if preemption not in PREEMPTIONS:
            raise InvalidParameterError(
                "unknown preemption", value=preemption, limit=" or ".join(PREEMPTIONS)
            )
        self.preemption = preemption
        self.restore_cost = restore_cost
        self.kv = kv
        self.roster = roster
        self.counters = counters
        self.max_num_seqs = max_num_seqs
        self.watermark = watermark
        self.max_preemptions = max_preemptions
        self._next_seq_id = 0
        self.refused: Request | None = None
        """Who was first in line and did not get in at the last try; None when memory was given back since."""
        self.released: list[int] = []
        """seq_ids whose per-sequence state the executor may drop."""

    def admit_next(self, step: int) -> Request | None:
        """Admit the next waiting request in the policy's order.

        When it does not fit, nobody gets in; under a policy that skips, a few behind it are tried, unless it
        was passed too often.
        """
        roster, policy = self.roster, self.roster.policy
        self.refused = None
        if roster.num_seqs >= self.max_num_seqs:
            return None
        tries = MAX_TRIES if policy.skips_blocked else 1
        for request in policy.order(roster.waiting):
            if roster.blocked(request):
                continue
            if self.admit(request, step):
                return request
            self.refused = self.refused or request
            tries -= 1
            if tries == 0 or request.passed >= policy.max_passes:
                break
        return None

    def all_wait(self) -> bool:
        """Whether nobody gets in as long as nobody comes or goes and those that run take what they need.

        Whoever does not fit now never does while memory only shrinks: what running gangs may still ask for at
        worst shrinks with it. With a prefix index it also depends on what is published: ask again then.
        """
        roster, policy = self.roster, self.roster.policy
        if not roster.waiting:
            return True
        if roster.waiting[0].priority < roster.running[-1].priority:
            return False  # it might take from those that run
        if roster.num_seqs >= self.max_num_seqs:
            return True
        if not policy.steady or policy.skips_blocked:
            return False
        request = next(policy.order(roster.waiting), None)
        tried = request is self.refused
        indexed = not isinstance(self.kv.index, NoIndex)
        if request is None or (tried and not indexed):
            return tried
        if not tried and (indexed or self.kv.counts_refusals or roster.blocked(request)):
            return False  # trying it would leave a trace
        if roster.num_seqs + request.params.num_sequences > self.max_num_seqs:
            return True
        if request.swapped and (indexed or request.params.num_sequences > 1):
            return False  # coming back takes other blocks than these
        terms = self._terms(request, roster.running)
        return not self.kv.fits_without([], request, *terms)

    def make_way(self, step: int, budget: int) -> None:
        """Admit waiting requests of a higher class than some that run, at their expense if need be.

        To be called before anything is listed, so that all that runs of lower classes can be a victim.

        Args:
            budget: tokens of the step; nobody is admitted who could not get one.
        """
        roster = self.roster
        while budget > 0 and roster.waiting and roster.running:
            if roster.waiting[0].priority >= roster.running[-1].priority:
                break
            order = roster.policy.order(roster.waiting)
            request = next((request for request in order if not roster.blocked(request)), None)
            if request is None:  # a static batch is under way
                break
            if not self.admit(request, step) and not self._replace_lower(request, step):
                break
            budget -= sum(len(seq.tokens) - seq.num_computed for seq in request.live)

    def _replace_lower(self, request: Request, step: int) -> bool:
        """Admit a request by preempting gangs of lower classes, latest first. False, and nothing happens, if
        that would not help."""
        running = self.roster.running
        lower = [gang for gang in running if gang.priority > request.priority]
        higher = running[: len(running) - len(lower)]
        num_seqs = sum(gang.params.num_sequences for gang in [*higher, request])
        if num_seqs > self.max_num_seqs or not self.kv.fits_without(
            lower, request, *self._terms(request, higher)
        ):
            return False
        for victim in reversed(lower):
            self._preempt(victim)
            if self.admit(request, step):
                return True
        raise AssertionError(f"{request.request_id} was to fit and does not")

    def _terms(self, request: Request, running: list[Request]) -> tuple[int | None, int]:
        """How many cached tokens a request may attach, and how many blocks must stay available.

        A gang preempted too often gets in only when it and all that run could finish without another
        preemption, at worst.
        """
        watermark = self.watermark if running else 0
        if running and request.num_preemptions >= self.max_preemptions:
            watermark += sum(growth_left(gang, self.kv) for gang in [*running, request])
        logprobs = request.params.prompt_logprobs is not None  # cached positions have none
        return request.num_prompt_logprobs if logprobs else None, watermark

    def admit(self, request: Request, step: int) -> bool:
        """Attach the cached prefix, get blocks for the rest and run; False if it does not fit."""
        if self.roster.num_seqs + request.params.num_sequences > self.max_num_seqs:
            return False
        request.leader = request.live[0]
        limit, watermark = self._terms(request, self.roster.running)
        swapped = request.swapped
        if swapped:
            fits = self.kv.swap_in(request, watermark)
        else:
            fits = self.kv.admit(request, limit=limit, watermark=watermark)
        if not fits:
            return False
        self.roster.start(request)
        request.prefilling = not (request.swapped and request.ready)
        request.visited = step
        if swapped:
            self.counters.swap_ins += 1
        elif request.num_preemptions > 0:
            for seq in request.live:
                self.counters.recompute_hits += seq.num_computed
                self.counters.recomputed_tokens += max(0, seq.num_lost - seq.num_computed)
        elif request.num_cached is None:  # else it was told: this is a start after a failed step
            request.num_cached = request.sequences[0].num_computed
            if request.params.prompt_logprobs is None:
                note_miss(self.kv, request)
        return True

    def make_room(self, request: Request, members: list[Seq], step: int) -> bool:
        """Preempt later gangs until all members can grow; the gang itself when none is left: then False."""
        while not self.kv.can_grow(members):
            victim = victim_for(request, self.roster.running, step, self.max_preemptions)
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        self.counters.preemptions += 1
        request.num_preemptions += 1
        if self._swaps(request) and self.kv.swap.out(request):
            self.counters.swap_outs += 1
        self._requeue(request)

    def restart(self, request: Request) -> None:
        """Let a request wait that was not preempted: what it attached in this step was never computed."""
        if request.num_preemptions == 0 and not request.counted:
            request.num_cached = None
        self.kv.swap.drop(request.sequences)
        self._requeue(request)

    def _swaps(self, request: Request) -> bool:
        """Whether to swap a victim out rather than compute it again later."""
        if self.preemption != "auto":
            return self.preemption == "swap"
        cost = self.restore_cost
        first, *others = request.live
        shared = cost.recompute(min(first.num_computed, first.num_prompt_tokens))
        recompute = cost.recompute(first.num_computed)
        recompute += sum(cost.recompute(seq.num_computed) - shared for seq in others)
        return cost.swap(self.kv.swap.num_blocks(request)) < recompute

    def _requeue(self, request: Request) -> None:
        """Take all blocks back and let the request wait."""
        for seq in request.live:
            seq.num_lost = seq.num_computed
            self.leave(seq, keep_tail=False)
            seq.num_computed = seq.num_planned = 0
        self.roster.stop(request)

    def new_sequence(self, request: Request, parent: Seq | None = None) -> Seq:
        """The next sequence of a gang, with the tokens of its parent or the prompt."""
        self._next_seq_id += 1
        return request.new_sequence(self._next_seq_id, parent)

    def fork(self, request: Request, parent: Seq) -> Seq:
        """A new member of the gang that shares all its parent has."""
        child = self.new_sequence(request, parent)
        self.kv.fork(parent, child)
        return child

    def continue_beams(self, request: Request, beams: list[Beam]) -> None:
        """Make the gang these beams: the first child of a beam goes on with its sequence, further ones fork
        off, and sequences without a child leave."""
        parents = request.sequences[:]
        continued: set[int] = set()
        for i in set(range(len(parents))).difference(beam.parent for beam in beams):
            self.leave(parents[i], keep_tail=False)
            parents[i].gang = []
        members = []
        for beam in beams:
            parent = parents[beam.parent]
            members.append(self.fork(request, parent) if beam.parent in continued else parent)
            continued.add(beam.parent)
        request.sequences[:] = members
        for seq, beam in zip(members, beams, strict=True):
            seq.tokens.append(beam.path.token.token_id)

    def leave(self, seq: Seq, *, keep_tail: bool) -> None:
        """Take a sequence's blocks back, see `KVManager.release`."""
        self.refused = None
        self.kv.release(seq, keep_tail=keep_tail)
        self.released.append(seq.seq_id)

    def take_released(self) -> list[int]:
        """The seq_ids for the next batch."""
        released, self.released = self.released, []
        return released
