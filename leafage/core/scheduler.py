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

from leafage.core.admission import MAX_PREEMPTIONS, Admission, at_least, fitting_max_tokens
from leafage.core.batch import Batch, SampledToken, StepOutput
from leafage.core.beam import BeamSearch
from leafage.core.counters import SchedulerCounters
from leafage.core.misses import note_miss
from leafage.core.pins import PrefixPin
from leafage.core.policy import MAX_PASSES, PolicyMaker, make_policy
from leafage.core.protocols import KV, StopCheck
from leafage.core.request import RUNNING, Delta, FinishKind, FinishReason, Request, Sequence
from leafage.core.roster import Roster
from leafage.core.rows import (
    Chunk,
    build_item,
    discard_untrusted,
    finish_reason,
    last_deltas,
    new_prompt_logprobs,
)
from leafage.core.swap import RestoreCost
from leafage.errors import InvalidParameterError, LeafageError, RequestError

Tokens = list[SampledToken]


class Scheduler:
    """Decides the batches and applies their results. Pure: no clock, no I/O.

    Args:
        kv: the blocks.
        max_num_seqs: sequences that may run at once; a gang counts as its n from admission.
        max_num_batched_tokens: tokens that one step computes at most.
        max_model_len: prompt and output tokens of a sequence at most.
        stop_check: asked for each sampled token whether the text ends there.
        policy: admission order within a class; a name in `POLICIES`, or what makes a Policy.
        max_passes: how often a waiting request may be passed by later ones of its class.
        watermark, max_preemptions, preemption, restore_cost: see `Admission`.

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
        policy: str | PolicyMaker = "fcfs",
        max_passes: int = MAX_PASSES,
        watermark: int = 0,
        max_preemptions: int = MAX_PREEMPTIONS,
        preemption: str = "auto",
        restore_cost: RestoreCost | None = None,
    ) -> None:
        at_least(1, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
        at_least(1, max_model_len=max_model_len)
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.stop_check = stop_check
        self.counters = SchedulerCounters()
        self.roster = Roster(make_policy(policy, kv, max_passes))  # the unfinished requests; others only look
        self.admission = Admission(
            kv,
            self.roster,
            self.counters,
            max_num_seqs=max_num_seqs,
            watermark=watermark,
            max_preemptions=max_preemptions,
            preemption=preemption,
            restore_cost=restore_cost or RestoreCost(),
        )
        self._next_arrival = 0
        self.step = 0  # number of the last one
        self._in_flight: Batch | None = None
        self._chunks: list[Chunk] = []  # what the batch in flight computes, item by item
        self._aborting: list[str] = []

    # -- introspection ---------------------------------------------------------------------------

    @property
    def has_unfinished(self) -> bool:
        return len(self.roster) > 0

    @property
    def busy(self) -> bool:
        """Whether a batch is in flight."""
        return self._in_flight is not None

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
        if request.params.beam_width is not None:
            stop_ids = request.eos_token_ids.union(request.params.stop_token_ids)
            request.beams = BeamSearch(request.params, request.max_tokens, len(stop_ids))
        self.admission.new_sequence(request)
        self.roster.add(request)

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
        self.step += 1
        self.counters.steps += 1
        self.kv.begin_step(self.step)
        chunks: list[Chunk] = []
        num_preemptions = self.counters.preemptions
        self.admission.make_way(self.step, self.max_num_batched_tokens)
        budget, prefilling = self._schedule_decodes(chunks, self.max_num_batched_tokens)
        if prefilling or self.roster.waiting:
            prompts: list[Chunk] = []
            budget = self._schedule_prompts(prefilling, prompts, budget)
            if self.counters.preemptions == num_preemptions:
                budget = self._admit(prompts, budget)
            self._spend_rest(prompts, budget)
            chunks += prompts
        items = [build_item(chunk) for chunk in chunks]
        batch = Batch(items, self.kv.copies, self.kv.swap.outgoing, self.kv.swap.incoming)
        assert batch.has_work or not self.roster, "requests wait and nothing runs"
        if batch.has_work:
            batch.released = self.admission.take_released()
        self._in_flight, self._chunks = batch, chunks
        return batch

    def _schedule_decodes(self, chunks: list[Chunk], budget: int) -> tuple[int, list[Request]]:
        """Gangs that only await their next tokens, oldest first, whole. Budget left, and the other gangs."""
        kv, size, step = self.kv, self.kv.block_size, self.step
        prefilling: list[Request] = []
        spent = False
        for request in self.roster.running[:]:
            if request.status is not RUNNING:
                continue  # preempted by an earlier one
            if request.visited == step and request.swapped:
                continue  # just admitted: its blocks arrive in this step
            if request.prefilling:
                prefilling.append(request)
                continue
            members = request.sequences
            if len(members) > 1:
                members = request.live
            spent = spent or len(members) > budget
            if spent:
                continue
            request.visited = step
            if len(request.sequences) > 1 or len(members[0].block_table) * size < len(members[0].tokens):
                if not self.admission.make_room(request, members, step):
                    continue
                for seq in members:
                    kv.grow(seq, len(seq.tokens))
            self._plan_decode(request, members, chunks)
            budget -= len(members)
        return budget, prefilling

    def _plan_decode(self, request: Request, members: list[Sequence], chunks: list[Chunk]) -> None:
        """The last known token of each member."""
        kv, size = self.kv, self.kv.block_size
        for seq in members:
            end = len(seq.tokens)
            if end // size > seq.num_offered:
                kv.publish(seq, end)
            seq.num_planned = end
            chunks.append(Chunk(request, seq, seq.num_computed, end))

    def _schedule_prompts(self, prefilling: list[Request], chunks: list[Chunk], budget: int) -> int:
        """Running gangs with more tokens to compute than their last ones. Returns the budget left."""
        for i, request in enumerate(prefilling):
            if budget == 0:
                break
            if request.status is not RUNNING:
                continue
            request.visited = self.step
            members = request.live
            if self.admission.make_room(request, members, self.step):
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
        members, leader = request.live, request.leader
        assert leader is not None
        whole = budget
        if others:
            budget = min(budget, max(budget // 2, kv.block_size))
        left = budget
        for seq in members:
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
            if seq.num_computed < request.end_of(seq):
                chunk = Chunk(request, seq, seq.num_computed, seq.num_computed)
                left -= self._extend(chunk, left)
                chunks.append(chunk)
        if left == budget and request.ready:  # beams that the cache has brought to their last tokens
            request.prefilling = False
            if len(members) > whole:
                return 0
            self._plan_decode(request, members, chunks)
            return len(members)
        return budget - left

    def _extend(self, chunk: Chunk, budget: int) -> int:
        """Make a chunk longer by at most `budget` tokens, to a block boundary if not the end; by how many."""
        seq = chunk.seq
        end = chunk.request.end_of(seq)
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
            if chunk.end < chunk.request.end_of(chunk.seq) and not self.kv.knows_next(chunk.seq):
                budget -= self._extend(chunk, budget)

    def _admit(self, chunks: list[Chunk], budget: int) -> int:
        """Admit waiting requests in the policy's order while they fit. Returns the budget left."""
        while budget > 0 and (request := self.admission.admit_next(self.step)) is not None:
            if not request.swapped:  # else its blocks arrive in this step
                budget -= self._plan_prompt(request, chunks, budget, bool(self.roster.waiting))
        return budget

    # -- a step: what came of it -------------------------------------------------------------------

    def update(self, batch: Batch, output: StepOutput) -> list[Delta]:
        """Apply the results of a batch: append tokens, end what is finished. Deltas in its order."""
        assert batch is self._in_flight, "this batch is not the one in flight"
        assert len(output.items) == len(batch.items), "one ItemOutput per item"
        deltas: list[Delta] = []
        dropped = self._drop_untrusted(output, deltas).union(self._aborting)
        self.kv.commit({transfer.seq_id for transfer in output.failed_transfers})
        self._in_flight = None
        rows: dict[str, list[SampledToken]] = {}  # what the beams of a request gave, by request id
        for chunk, result in zip(self._chunks, output.items, strict=True):
            request, seq = chunk.request, chunk.seq
            if dropped and request.request_id in dropped:
                continue
            seq.num_computed = chunk.end
            if request.prefilling:
                self.counters.prompt_tokens += chunk.end - chunk.start
                if request.ready:
                    request.prefilling = False
                    self.counters.count_prefix(request)
            prompt_logprobs = new_prompt_logprobs(chunk, result) if result.prompt_logprobs else []
            draws = chunk.end == len(seq.tokens)
            if draws and request.pin is not None:
                self._pin(request, seq, request.pin)
                continue
            if draws and request.beams is None:
                self._append(request, seq, result.sampled, prompt_logprobs, deltas)
                continue
            if draws:
                rows.setdefault(request.request_id, []).append(result.sampled[0])
            if prompt_logprobs:
                num_cached = request.num_cached or 0
                deltas.append(Delta(request.request_id, 0, [], None, prompt_logprobs, num_cached))
        for request_id, beam_rows in rows.items():
            self._advance_beams(request_id, beam_rows, deltas)
        self._chunks = []
        self._finish_aborts()
        if dropped:
            self.kv.pins.recompute_lost(self.add)
        return deltas

    def _pin(self, request: Request, seq: Sequence, pin: PrefixPin) -> None:
        """The prefix is computed: the pin holds it, and its request ends."""
        if self.kv.pins.take_over(self.kv, seq, pin):
            self.admission.leave(seq, keep_tail=False)
            self._finish(request, FinishReason(FinishKind.STOP))
        else:
            self.admission.restart(request)

    def _append(
        self, request: Request, seq: Sequence, sampled: Tokens, prompt: Tokens, deltas: list[Delta]
    ) -> None:
        """The sequence (and, after a prompt, its new siblings) got a token each. `prompt`: its logprobs."""
        self.counters.generated_tokens += len(sampled)
        members = request.sequences if len(sampled) > 1 else (seq,)
        for _ in sampled[1:]:
            self.admission.fork(request, seq)
        for member, token in zip(members, sampled, strict=True):
            finish = finish_reason(request, member, token.token_id, self.stop_check)
            member.tokens.append(token.token_id)
            cached = request.num_cached or 0
            deltas.append(Delta(request.request_id, member.index, [token], finish, prompt, cached))
            prompt = []
            if finish is not None:
                self.retire(request, member, finish)

    def retire(self, request: Request, seq: Sequence, reason: FinishReason) -> None:
        """The sequence drew its last token; with the last sequence the request ends."""
        seq.finish = reason
        self.admission.leave(seq, keep_tail=True)
        if not request.live:
            self._finish(request, reason)

    def _advance_beams(self, request_id: str, rows: list[SampledToken], deltas: list[Delta]) -> None:
        """All beams of a request gave their rows: go on with the best continuations, or end."""
        request = self.roster.get(request_id)
        assert request is not None and request.beams is not None
        parents = request.sequences[:]
        beams = request.beams.advance(
            rows, lambda i, token_id: finish_reason(request, parents[i], token_id, self.stop_check)
        )
        self.counters.generated_tokens += len(beams)
        if not beams:
            self._finish_beams(request, request.beams, deltas)
            return
        self.admission.continue_beams(request, beams)

    def _finish_beams(self, request: Request, beams: BeamSearch, deltas: list[Delta]) -> None:
        answers = beams.finished[: request.params.n]
        if len(answers) < request.params.n:
            error = RequestError(
                "beam search found too few answers",
                value=len(answers),
                limit=f"n = {request.params.n}",
                remedy="lower n, or allow more tokens",
            )
            deltas += self._end(request, FinishReason(FinishKind.ERROR, error=error))
            return
        for seq in request.live:
            self.admission.leave(seq, keep_tail=True)
            seq.finish = answers[0].finish
        cached = request.num_cached or 0
        for i, answer in enumerate(answers):
            tokens = answer.path.tokens()
            deltas.append(Delta(request.request_id, i, tokens, answer.finish, num_cached=cached))
        self._finish(request, answers[0].finish)

    def _drop_untrusted(self, output: StepOutput, deltas: list[Delta]) -> set[str]:
        """End requests with unusable rows; requeue those whose swapped-in or attached K/V never arrived.

        Returns the ids of all of them: their results of this step do not count.
        """
        errors, again = discard_untrusted(self._chunks, output, self.roster.running, self.kv)
        for request in self.roster.running[:] if errors or again else ():
            if request.request_id in errors:
                error = RequestError(
                    "the model gave unusable logits",
                    value=errors[request.request_id],
                    remedy="check the model file, or change the input",
                )
                deltas += self._end(request, FinishReason(FinishKind.ERROR, error=error))
            elif request.request_id in again:
                self.admission.restart(request)
        return errors.keys() | again

    def fail(self, batch: Batch, error: LeafageError) -> list[Delta]:
        """The whole batch failed: end its requests with `error`, un-publish what they were computing.

        Requests without an item that attached blocks of this step, or were given copies, start over.
        """
        assert batch is self._in_flight, "this batch is not the one in flight"
        touched = {id(seq.gang) for seq in self.kv.undo()}
        self._in_flight = None
        self.admission.released[:0] = batch.released
        deltas: list[Delta] = []
        reason = FinishReason(FinishKind.ERROR, error=error)
        for request in dict.fromkeys(chunk.request for chunk in self._chunks):
            deltas += self._end(request, reason)
        self._chunks = []
        for request in self.roster.running[:]:
            if id(request.sequences) in touched:
                self.admission.restart(request)
        self._finish_aborts()
        return deltas

    # -- endings -----------------------------------------------------------------------------------

    def _end(self, request: Request, reason: FinishReason) -> list[Delta]:
        """End all live sequences of a request, running or waiting. An aborted one is not reported."""
        deltas = last_deltas(request, reason)
        for seq in request.live:
            if request.status is RUNNING:
                self.admission.leave(seq, keep_tail=reason.kind is FinishKind.ABORT)
            seq.finish = reason
        self._finish(request, reason)
        return [] if request.pin is not None or request.request_id in self._aborting else deltas

    def _finish(self, request: Request, reason: FinishReason) -> None:
        self.kv.swap.drop(request.sequences)
        self.roster.remove(request)
        for seq in request.sequences:
            seq.gang = []  # no reference cycle: freed at once, without the garbage collector
        if request.pin is not None:
            self.kv.pins.ended(request.pin, reason)
            return
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
        self.kv.swap.check(seq for request in self.roster.requests() for seq in request.sequences)
