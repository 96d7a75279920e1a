"""Scheduler: which tokens of which sequences each step computes.

One rule instead of phases: every sequence has `tokens` and `num_computed`, and each step moves `num_computed`
towards `len(tokens)` within a token budget. Prompt, decode, chunked prefill, prefix hit and resume after
preemption are all tokens not yet computed.

What holds after every call, next to the invariants of KVManager:

1. An accepted request ends with its answer or an error: its worst case fits the pool alone, a gang takes
   memory from later ones only, and nothing of its class passes it while it waits preempted. So the oldest
   gang of the highest priority always progresses, and when it ends another one is the oldest.
2. A gang is admitted, preempted and resumed as a whole.
3. Within a step a victim is a gang that had no turn yet: nothing that the batch lists is taken back.
"""

from __future__ import annotations

from leafage.core.admission import at_least, fitting_max_tokens, growth_left, victim_for
from leafage.core.batch import Batch, SampledToken, StepOutput
from leafage.core.counters import SchedulerCounters
from leafage.core.misses import note_miss
from leafage.core.policy import POLICIES, Policy
from leafage.core.protocols import KV, StopCheck
from leafage.core.request import Delta, FinishKind, FinishReason, Request, RequestStatus, Sequence
from leafage.core.roster import Roster
from leafage.core.rows import Chunk, build_item, finish_reason, new_prompt_logprobs
from leafage.errors import InvalidParameterError, LeafageError, RequestError

MAX_PREEMPTIONS = 4
"""B: a gang preempted this often is not a victim for its own priority again."""


class Scheduler:
    """Decides the batches and applies their results. Pure: no clock, no I/O.

    Args:
        kv: the blocks.
        max_num_seqs: sequences that may run at once; a gang counts as its n from admission.
        max_num_batched_tokens: tokens that one step computes at most.
        max_model_len: prompt and output tokens of a sequence at most.
        stop_check: asked for each sampled token whether the text ends there.
        policy: admission order; a name in `POLICIES` or a function.
        watermark: blocks kept available at admission while anything runs.
        max_preemptions: B above.

    Raises:
        InvalidParameterError: a limit out of range, or an unknown policy.
    """

    def __init__(
        self,
        kv: KV,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        stop_check: StopCheck | None = None,
        policy: str | Policy = "fcfs",
        watermark: int = 0,
        max_preemptions: int = MAX_PREEMPTIONS,
    ) -> None:
        at_least(
            1,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            max_preemptions=max_preemptions,
        )
        at_least(0, watermark=watermark)
        if isinstance(policy, str):
            if policy not in POLICIES:
                raise InvalidParameterError("unknown policy", value=policy, limit=" or ".join(POLICIES))
            policy = POLICIES[policy]
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.stop_check = stop_check
        self.policy = policy
        self.watermark = watermark
        self.max_preemptions = max_preemptions
        self.counters = SchedulerCounters()
        self.roster = Roster()  # the unfinished requests; others only look
        self._next_seq_id = 0
        self._next_arrival = 0
        self._step = 0
        self._released: list[int] = []  # seq_ids whose per-sequence state the executor may drop
        self._in_flight: Batch | None = None
        self._chunks: list[Chunk] = []  # what the batch in flight computes, item by item
        self._aborting: list[str] = []

    # -- introspection ---------------------------------------------------------------------------

    @property
    def has_unfinished(self) -> bool:
        return len(self.roster) > 0

    @property
    def num_running(self) -> int:
        return len(self.roster.running)

    @property
    def num_waiting(self) -> int:
        return len(self.roster.waiting)

    # -- arrivals --------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Accept a request, or refuse it at once.

        Sets arrival, max_tokens, seed and first sequence. From here on it ends with an answer or an error.

        Raises:
            InvalidParameterError: an empty prompt, an id that is in use, or a request that was added before.
            RequestTooLargeError: it could never run, however long it waited.
        """
        if self.roster.get(request.request_id) is not None:
            raise InvalidParameterError("the request id is in use", value=request.request_id)
        if request.sequences:
            raise InvalidParameterError("the request was added before", value=request.request_id)
        if not request.prompt_token_ids:
            raise InvalidParameterError("the prompt is empty", remedy="give at least one token")
        request.max_tokens = fitting_max_tokens(
            request,
            self.kv,
            max_seqs=min(self.max_num_seqs, self.max_num_batched_tokens),
            max_model_len=self.max_model_len,
        )
        if request.params.seed is not None:
            request.seed = request.params.seed
        if request.params.ignore_eos:
            request.eos_token_ids = frozenset()
        request.arrival = self._next_arrival
        self._next_arrival += 1
        self._new_sequence(request)
        self.roster.add(request)

    def _new_sequence(self, request: Request) -> Sequence:
        self._next_seq_id += 1
        return request.new_sequence(self._next_seq_id)

    def abort(self, request_id: str) -> bool:
        """End a request without another delta; its blocks are free when this returns.

        Between `schedule` and `update` it takes effect in `update`. False when no such request is unfinished.
        """
        request = self.roster.get(request_id)
        if request is None or request_id in self._aborting:
            return False
        self._aborting.append(request_id)
        if self._in_flight is None:
            self._finish_aborts()
        return True

    # -- a step: what to compute -----------------------------------------------------------------

    def schedule(self) -> Batch:
        """The next batch. `update` or `fail` must follow with its result, whether it has work or not."""
        assert self._in_flight is None, "update or fail the previous batch first"
        self._step += 1
        self.counters.steps += 1
        self.kv.begin_step(self._step)
        chunks: list[Chunk] = []
        num_preemptions = self.counters.preemptions
        budget, prefilling = self._schedule_decodes(chunks, self.max_num_batched_tokens)
        if prefilling or self.roster.waiting:
            prompts: list[Chunk] = []
            budget = self._schedule_prompts(prefilling, prompts, budget)
            if self.counters.preemptions == num_preemptions:
                budget = self._admit(prompts, budget)
            self._spend_rest(prompts, budget)
            chunks += prompts
        batch = Batch([build_item(chunk) for chunk in chunks], self.kv.copies)
        assert batch.items or not self.roster, "requests wait and nothing runs"
        if batch.items:
            batch.released = self._released
            self._released = []
        self._in_flight, self._chunks = batch, chunks
        return batch

    def _schedule_decodes(self, chunks: list[Chunk], budget: int) -> tuple[int, list[Request]]:
        """Gangs that only await their next tokens, oldest first, whole. Budget left, and the other gangs."""
        kv, size = self.kv, self.kv.block_size
        prefilling: list[Request] = []
        spent = False
        for request in self.roster.running[:]:
            if request.status is not RequestStatus.RUNNING:
                continue  # preempted by an earlier one
            if request.prefilling:
                prefilling.append(request)
                continue
            members = request.sequences
            if len(members) > 1:
                members = request.live
            spent = spent or len(members) > budget
            if spent:
                continue
            request.visited = self._step
            if len(request.sequences) > 1 or len(members[0].block_table) * size < len(members[0].tokens):
                if not self._make_room(request, members):
                    continue
                for seq in members:
                    kv.grow(seq, len(seq.tokens))
            for seq in members:
                end = len(seq.tokens)
                if end // size > seq.num_published:
                    kv.publish(seq, end)
                seq.num_planned = end
                chunks.append(Chunk(request, seq, seq.num_computed, end))
            budget -= len(members)
        return budget, prefilling

    def _schedule_prompts(self, prefilling: list[Request], chunks: list[Chunk], budget: int) -> int:
        """Running gangs with more tokens to compute than their last ones. Returns the budget left."""
        for i, request in enumerate(prefilling):
            if budget == 0:
                break
            if request.status is not RequestStatus.RUNNING:
                continue
            request.visited = self._step
            members = request.live
            if self._make_room(request, members):
                for seq in members:
                    self.kv.grow(seq, len(seq.tokens))
                others = i + 1 < len(prefilling) or bool(self.roster.waiting)
                budget -= self._plan_prompt(request, chunks, budget, others)
        return budget

    def _plan_prompt(self, request: Request, chunks: list[Chunk], budget: int, others: bool) -> int:
        """Chunks for a gang's members; returns how many tokens they take.

        While others wait it takes at most half of the budget, or a block. It yields to earlier gangs that
        compute what it needs next.
        """
        kv = self.kv
        if others:
            budget = min(budget, max(budget // 2, kv.block_size))
        left = budget
        leader = request.sequences[request.leader]
        for seq in request.live:
            if left == 0:
                break
            if seq is not leader and not kv.follow(seq, leader):
                continue
            if request.params.prompt_logprobs is None:
                gained = kv.advance(seq)
                if gained and request.num_preemptions == 0 and not request.counted:
                    request.num_cached = (request.num_cached or 0) + gained
                    note_miss(kv, request)
                if kv.must_yield(seq):
                    continue
            chunk = Chunk(request, seq, seq.num_computed, seq.num_computed)
            left -= self._extend(chunk, left)
            chunks.append(chunk)
        return budget - left

    def _extend(self, chunk: Chunk, budget: int) -> int:
        """Make a chunk longer by at most `budget` tokens, to a block boundary if not the end; by how many."""
        seq = chunk.seq
        end = len(seq.tokens)
        if end - chunk.end > budget:
            end = chunk.end + budget
            aligned = end - end % self.kv.block_size
            if aligned > chunk.end or chunk.end > chunk.start:
                end = max(aligned, chunk.end)
        gained = end - chunk.end
        if gained:
            chunk.end = seq.num_planned = end
            self.kv.publish(seq, end)
            self.kv.claim(seq, end)
        return gained

    def _spend_rest(self, chunks: list[Chunk], budget: int) -> None:
        """Budget that nobody else took goes to the prompts that were cut short, in order.

        Not when somebody published the next block in this step: it is attached in the next one.
        """
        for chunk in chunks:
            if budget == 0:
                break
            if chunk.end < len(chunk.seq.tokens) and not self.kv.knows_next(chunk.seq):
                budget -= self._extend(chunk, budget)

    # -- admission and preemption ------------------------------------------------------------------

    def _admit(self, chunks: list[Chunk], budget: int) -> int:
        """Admit waiting requests in the policy's order until one does not fit. Returns the budget left."""
        roster = self.roster
        if not roster.waiting or budget == 0:
            return budget
        for request in list(self.policy(roster.waiting, self.kv)):
            if budget == 0 or roster.num_seqs + request.params.n > self.max_num_seqs:
                break
            if roster.blocked(request):
                continue
            if not self._try_admit(request):
                break
            budget -= self._plan_prompt(request, chunks, budget, bool(roster.waiting))
        return budget

    def _try_admit(self, request: Request) -> bool:
        """Attach the cached prefix, get blocks for the rest and run; False if it does not fit.

        A gang preempted too often gets in only when it and all that run could finish without another
        preemption, at worst.
        """
        running = self.roster.running
        watermark = self.watermark if running else 0
        if running and request.num_preemptions >= self.max_preemptions:
            watermark += sum(growth_left(gang, self.kv) for gang in [*running, request])
        logprobs = request.params.prompt_logprobs is not None  # cached positions have none
        limit = request.num_prompt_logprobs if logprobs else None
        request.leader = request.live[0].index
        if not self.kv.admit(request, limit=limit, watermark=watermark):
            return False
        self.roster.start(request)
        request.prefilling = True
        request.visited = self._step
        if request.num_preemptions > 0:
            for seq in request.live:
                self.counters.recompute_hits += seq.num_computed
                self.counters.recomputed_tokens += max(0, seq.num_lost - seq.num_computed)
        else:
            request.num_cached = request.sequences[0].num_computed
            if not logprobs:
                note_miss(self.kv, request)
        return True

    def _make_room(self, request: Request, members: list[Sequence]) -> bool:
        """Preempt later gangs until all members can grow; the gang itself when none is left: then False."""
        while not self.kv.can_grow(members):
            victim = victim_for(request, self.roster.running, self._step, self.max_preemptions)
            self.counters.preemptions += 1
            victim.num_preemptions += 1
            self._requeue(victim)
            if victim is request:
                return False
        return True

    def _requeue(self, request: Request) -> None:
        """Take all blocks back and let the request wait; it recomputes what the cache does not keep."""
        for seq in request.live:
            seq.num_lost = seq.num_computed
            self._leave(seq, keep_tail=False)
            seq.num_computed = seq.num_planned = 0
        self.roster.stop(request)

    # -- a step: what came of it -------------------------------------------------------------------

    def update(self, batch: Batch, output: StepOutput) -> list[Delta]:
        """Apply the results of a batch: append tokens, end what is finished. Deltas in its order."""
        assert batch is self._in_flight, "this batch is not the one in flight"
        assert len(output.items) == len(batch.items), "one ItemOutput per item"
        deltas: list[Delta] = []
        dropped = self._drop_untrusted(output, deltas).union(self._aborting)
        self.kv.commit()
        self._in_flight = None
        for chunk, result in zip(self._chunks, output.items, strict=True):
            request, seq = chunk.request, chunk.seq
            if dropped and request.request_id in dropped:
                continue
            seq.num_computed = chunk.end
            if request.prefilling:
                self.counters.prompt_tokens += chunk.end - chunk.start
            prompt_logprobs = new_prompt_logprobs(chunk, result) if result.prompt_logprobs else []
            if chunk.end == len(seq.tokens):
                self._append(request, seq, result.sampled, prompt_logprobs, deltas)
            elif prompt_logprobs:
                num_cached = request.num_cached or 0
                deltas.append(Delta(request.request_id, seq.index, [], None, prompt_logprobs, num_cached))
        self._chunks = []
        self._finish_aborts()
        return deltas

    def _append(
        self,
        request: Request,
        seq: Sequence,
        sampled: list[SampledToken],
        prompt_logprobs: list[SampledToken],
        deltas: list[Delta],
    ) -> None:
        """The sequence (and, after a prompt, its new siblings) got a token each."""
        members = [seq]
        if len(sampled) > 1:
            members += [self._new_sequence(request) for _ in sampled[1:]]
            for child in members[1:]:
                self.kv.fork(seq, child)
        if request.prefilling:
            request.prefilling = any(len(m.tokens) - m.num_computed > 1 for m in request.live)
            self.counters.count_prefix(request)
        self.counters.generated_tokens += len(sampled)
        ended = None
        for member, token in zip(members, sampled, strict=True):
            member.tokens.append(token.token_id)
            member.finish = finish = finish_reason(request, member, token.token_id, self.stop_check)
            cached = request.num_cached or 0
            deltas.append(Delta(request.request_id, member.index, [token], finish, prompt_logprobs, cached))
            prompt_logprobs = []
            if finish is not None:
                ended = finish
                self._leave(member, keep_tail=True)
        if ended is not None and not request.live:
            self._finish(request, ended)

    def _drop_untrusted(self, output: StepOutput, deltas: list[Delta]) -> set[str]:
        """End requests with unusable rows; requeue those whose swapped-in or attached K/V never arrived.

        Returns the ids of all of them: their results of this step do not count.
        """
        errors = {
            chunk.request.request_id: result.row_error
            for chunk, result in zip(self._chunks, output.items, strict=True)
            if result.row_error is not None
        }
        if not errors and not output.failed_transfers:
            return set()
        failed = {transfer.seq_id for transfer in output.failed_transfers}
        again: set[str] = set()
        for request in self.roster.running:
            for seq in request.live:
                if seq.seq_id in failed:
                    again.add(request.request_id)
                if seq.seq_id in failed or request.request_id in errors:
                    owners = {id(other.gang) for other in self.kv.discard(seq)}
                    again |= {r.request_id for r in self.roster.running if id(r.sequences) in owners}
        for request in self.roster.running[:]:
            if request.request_id in errors:
                error = RequestError(
                    "the model gave unusable logits",
                    value=errors[request.request_id],
                    remedy="check the model file, or change the input",
                )
                deltas += self._end(request, FinishReason(FinishKind.ERROR, error=error))
            elif request.request_id in again:
                self._restart(request)
        return again.union(errors)

    def fail(self, batch: Batch, error: LeafageError) -> list[Delta]:
        """The whole batch failed: end its requests with `error`, un-publish what they were computing.

        Requests without an item that attached blocks of this step, or were given copies, start over.
        """
        assert batch is self._in_flight, "this batch is not the one in flight"
        touched = {id(seq.gang) for seq in self.kv.undo()}
        self._in_flight = None
        self._released = batch.released + self._released
        deltas: list[Delta] = []
        reason = FinishReason(FinishKind.ERROR, error=error)
        for request in dict.fromkeys(chunk.request for chunk in self._chunks):
            deltas += self._end(request, reason)
        self._chunks = []
        for request in self.roster.running[:]:
            if id(request.sequences) in touched:
                self._restart(request)
        self._finish_aborts()
        return deltas

    def _restart(self, request: Request) -> None:
        """Let a request wait that was not preempted: what it attached in this step was never computed."""
        if request.num_preemptions == 0 and not request.counted:
            request.num_cached = None
        self._requeue(request)

    # -- endings -----------------------------------------------------------------------------------

    def _leave(self, seq: Sequence, *, keep_tail: bool) -> None:
        self.kv.release(seq, keep_tail=keep_tail)
        self._released.append(seq.seq_id)

    def _end(self, request: Request, reason: FinishReason) -> list[Delta]:
        """End all live sequences of a request, running or waiting. An aborted one is not reported."""
        deltas = []
        for seq in request.live:
            if request.status is RequestStatus.RUNNING:
                self._leave(seq, keep_tail=reason.kind is FinishKind.ABORT)
            seq.finish = reason
            deltas.append(Delta(request.request_id, seq.index, [], reason, [], request.num_cached or 0))
        self._finish(request, reason)
        return [] if request.request_id in self._aborting else deltas

    def _finish(self, request: Request, reason: FinishReason) -> None:
        self.roster.remove(request)
        for seq in request.sequences:
            seq.gang = []  # no reference cycle: freed at once, without the garbage collector
        self.counters.count_prefix(request)
        self.counters.finished[reason.kind.value] += 1

    def _finish_aborts(self) -> None:
        for request_id in self._aborting:
            request = self.roster.get(request_id)
            if request is not None:
                self._end(request, FinishReason(FinishKind.ABORT))
        self._aborting = []

    def check(self) -> None:
        """Assert the invariants of the queues and of the KV bookkeeping. For tests: O(everything)."""
        self.roster.check()
        self.kv.check()
