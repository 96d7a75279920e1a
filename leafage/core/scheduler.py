"""Scheduler: which tokens of which sequences each step computes.

One rule instead of phases: every sequence has `tokens` and `num_computed`, and each step moves `num_computed`
towards `len(tokens)` within a token budget. Prompt, decode, chunked prefill, prefix hit and resume after
preemption are all tokens not yet computed.

What holds after every call, next to the invariants of KVManager:

1. An accepted request ends with its answer or an error. Its worst case fits the pool alone, running gangs take
   memory from later ones only, and nothing of its class passes it while it waits preempted; so the oldest
   gang of the highest priority always progresses, and becomes another one when it ends.
2. A gang is admitted, preempted and resumed as a whole.
3. Within a step a victim is a gang that had no turn yet: nothing already listed in the batch is taken back.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from leafage.core.admission import fitting_max_tokens
from leafage.core.batch import Batch, SampledToken, StepOutput
from leafage.core.counters import SchedulerCounters
from leafage.core.kv_manager import KVManager
from leafage.core.policy import POLICIES, Policy
from leafage.core.protocols import StopCheck
from leafage.core.request import (
    Delta,
    FinishKind,
    FinishReason,
    Request,
    RequestStatus,
    Sequence,
    derive,
)
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
    """

    def __init__(
        self,
        kv: KVManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        stop_check: StopCheck | None = None,
        policy: str | Policy = "fcfs",
        watermark: int = 0,
        max_preemptions: int = MAX_PREEMPTIONS,
    ) -> None:
        for name, value in (
            ("max_num_seqs", max_num_seqs),
            ("max_num_batched_tokens", max_num_batched_tokens),
            ("max_model_len", max_model_len),
        ):
            if value < 1:
                raise InvalidParameterError(f"{name} is out of range", value=value, limit="at least 1")
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
        self._requests: dict[str, Request] = {}
        self._waiting: list[Request] = []  # both sorted by (priority, arrival)
        self._running: list[Request] = []
        self._num_seqs = 0
        self._next_seq_id = 0
        self._next_arrival = 0
        self._step = 0
        self._released: list[int] = []
        self._in_flight: Batch | None = None
        self._chunks: list[Chunk] = []
        self._aborting: set[str] = set()

    # -- introspection ---------------------------------------------------------------------------

    @property
    def has_unfinished(self) -> bool:
        return bool(self._requests)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests in the queue, preempted ones included."""
        return len(self._waiting)

    @property
    def num_running_seqs(self) -> int:
        return self._num_seqs

    @property
    def running(self) -> tuple[Request, ...]:
        return tuple(self._running)

    @property
    def waiting(self) -> tuple[Request, ...]:
        return tuple(self._waiting)

    def request(self, request_id: str) -> Request | None:
        """The unfinished request of that id."""
        return self._requests.get(request_id)

    # -- arrivals ----------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Accept a request, or refuse it at once.

        Sets its arrival, max_tokens and first sequence. From here on it ends with an answer or an error.

        Raises:
            InvalidParameterError: an empty prompt, or an id that is in use.
            RequestTooLargeError: it could never run, however long it waited.
        """
        num_prompt = len(request.prompt_token_ids)
        if request.request_id in self._requests:
            raise InvalidParameterError("the request id is in use", value=request.request_id)
        if num_prompt == 0:
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
        request.status = RequestStatus.WAITING
        request.sequences = []
        self._new_sequence(request)
        self._requests[request.request_id] = request
        insort(self._waiting, request, key=_rank)

    def _new_sequence(self, request: Request) -> Sequence:
        index = len(request.sequences)
        seq = Sequence(
            seq_id=self._next_seq_id,
            index=index,
            seed=derive(request.seed, index),
            tokens=list(request.prompt_token_ids),
            num_prompt_tokens=len(request.prompt_token_ids),
            cache_salt=request.cache_salt,
            rank=_rank(request),
            gang=request.sequences,
        )
        self._next_seq_id += 1
        request.sequences.append(seq)
        return seq

    def abort(self, request_id: str) -> bool:
        """End a request without another delta; its blocks are free when this returns.

        Between `schedule` and `update` it takes effect in `update`. False when no such request is unfinished.
        """
        request = self._requests.get(request_id)
        if request is None or request_id in self._aborting:
            return False
        if self._in_flight is not None:
            self._aborting.add(request_id)
        else:
            self._end(request, FinishReason(FinishKind.ABORT))
        return True

    # -- a step: what to compute -----------------------------------------------------------------------

    def schedule(self) -> Batch:
        """The next batch. `update` or `fail` must follow with its result, whether it has work or not."""
        assert self._in_flight is None, "update or fail the previous batch first"
        self._step += 1
        self.counters.steps += 1
        self.kv.begin_step(self._step)
        batch = Batch()
        decodes: list[Chunk] = []
        prompts: list[Chunk] = []
        num_preemptions = self.counters.preemptions
        budget = self._schedule_decodes(decodes, self.max_num_batched_tokens)
        budget = self._schedule_prompts(prompts, budget)
        if self.counters.preemptions == num_preemptions:
            budget = self._admit(prompts, budget)
        self._spend_rest(prompts, budget)
        self._chunks = decodes + prompts
        batch.items = [build_item(chunk) for chunk in self._chunks]
        batch.copies = self.kv.copies
        batch.released = self._released
        self._released = []
        self._in_flight = batch
        assert batch.items or not self._requests, "requests wait but nothing runs"
        return batch

    def _schedule_decodes(self, chunks: list[Chunk], budget: int) -> int:
        """Gangs that only await their next tokens, oldest first, whole gangs. Returns the budget left."""
        step = self._step
        kv = self.kv
        size = kv.block_size
        for request in list(self._running):
            if request.prefilling or request.status is not RequestStatus.RUNNING:
                continue
            members = request.sequences if len(request.sequences) == 1 else request.live
            if len(members) > budget:
                break
            request.visited = step
            if len(members) > 1 or len(members[0].block_table) * size < len(members[0].tokens):
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
        return budget

    def _schedule_prompts(self, chunks: list[Chunk], budget: int) -> int:
        """Running gangs with more tokens to compute than their last ones. Returns the budget left."""
        prefilling = [r for r in self._running if r.prefilling]
        for i, request in enumerate(prefilling):
            if budget == 0:
                break
            if request.status is not RequestStatus.RUNNING:
                continue
            request.visited = self._step
            members = request.live
            if not self._make_room(request, members):
                continue
            for seq in members:
                self.kv.grow(seq, len(seq.tokens))
            others = i + 1 < len(prefilling) or bool(self._waiting)
            budget -= self._plan_prompt(request, chunks, (budget + 1) // 2 if others else budget)
        return budget

    def _plan_prompt(self, request: Request, chunks: list[Chunk], budget: int) -> int:
        """Chunks for a gang's members; returns how many tokens they take. It yields to earlier gangs."""
        kv = self.kv
        spent = 0
        leader = request.sequences[request.leader]
        shares = request.params.prompt_logprobs is None
        for seq in request.live:
            if spent == budget:
                break
            if seq is not leader and not kv.follow(seq, leader):
                continue
            if shares:
                gained = kv.advance(seq)
                if gained and request.num_preemptions == 0:
                    request.num_cached = (request.num_cached or 0) + gained
                if kv.must_yield(seq):
                    continue
            start = seq.num_computed
            end = self._cut(start, len(seq.tokens), budget - spent)
            kv.publish(seq, end)
            kv.claim(seq, end)
            seq.num_planned = end
            spent += end - start
            chunks.append(Chunk(request, seq, start, end))
        return spent

    def _cut(self, start: int, end: int, budget: int) -> int:
        """Where a chunk ends: a chunk that stops early stops at a block boundary if it reaches one."""
        if end - start <= budget:
            return end
        end = start + budget
        aligned = end - end % self.kv.block_size
        return aligned if aligned > start else end

    def _spend_rest(self, chunks: list[Chunk], budget: int) -> None:
        """Budget that nobody else took goes to the prompts that were cut short, in order."""
        for chunk in chunks:
            if budget == 0:
                break
            seq = chunk.seq
            end = self._cut(chunk.end, len(seq.tokens), budget)
            if end > chunk.end:
                self.kv.publish(seq, end)
                self.kv.claim(seq, end)
                budget -= end - chunk.end
                chunk.end = seq.num_planned = end

    # -- admission and preemption --------------------------------------------------------------------------

    def _admit(self, chunks: list[Chunk], budget: int) -> int:
        """Admit waiting requests in the policy's order until one does not fit. Returns the budget left."""
        if not self._waiting or budget == 0:
            return budget
        barrier = [r for r in self._waiting if r.status is RequestStatus.PREEMPTED]
        admitted: list[Request] = []
        for request in self._policy_order():
            if budget == 0 or self._num_seqs + request.params.n > self.max_num_seqs:
                break
            if any(p.priority <= request.priority and p.arrival < request.arrival for p in barrier):
                continue
            if not self._try_admit(request):
                break
            admitted.append(request)
            if request in barrier:
                barrier.remove(request)
            others = len(admitted) < len(self._waiting)
            budget -= self._plan_prompt(request, chunks, (budget + 1) // 2 if others else budget)
        for request in admitted:
            del self._waiting[self._position(self._waiting, request)]
        return budget

    def _policy_order(self) -> Iterable[Request]:
        return self.policy(self._waiting, self.kv)

    def _try_admit(self, request: Request) -> bool:
        resumed = request.num_preemptions > 0
        request.leader = request.live[0].index
        limit = None if request.params.prompt_logprobs is None else request.num_prompt_logprobs
        reserve = 0
        if request.num_preemptions >= self.max_preemptions:
            reserve = self._growth_left(request) + sum(self._growth_left(r) for r in self._running)
        watermark = self.watermark if self._running else 0
        if not self.kv.admit(request, limit=limit, watermark=watermark, reserve=reserve):
            return False
        request.status = RequestStatus.RUNNING
        request.prefilling = True
        request.visited = self._step
        self._num_seqs += request.params.n
        insort(self._running, request, key=_rank)
        if resumed:
            for seq in request.live:
                self.counters.recompute_hits += seq.num_computed
                self.counters.recomputed_tokens += max(0, seq.num_lost - seq.num_computed)
        elif request.num_cached is None:
            request.num_cached = request.sequences[0].num_computed
            if request.params.prompt_logprobs is None:
                request.missed = self.kv.explain_miss(request.sequences[0])
        return True

    def _growth_left(self, request: Request) -> int:
        """Blocks the gang may still ask for at most, beyond those of its known tokens."""
        most = self.kv.blocks_for(len(request.prompt_token_ids) + request.max_tokens - 1)
        left = sum(most - self.kv.blocks_for(len(seq.tokens)) for seq in request.live)
        forks = request.params.n - len(request.sequences)
        full = len(request.prompt_token_ids) // self.kv.block_size
        return max(0, left) + forks * (most - full) + len(request.sequences)

    def _make_room(self, request: Request, members: list[Sequence]) -> bool:
        """Preempt later gangs until all members can grow; the gang itself when none is left. False: it went."""
        while not self.kv.can_grow(members):
            victim = self._victim(request)
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _victim(self, requester: Request) -> Request:
        """The latest arrived gang of the lowest priority that had no turn in this step, or the requester."""
        for candidate in reversed(self._running):
            if candidate is requester:
                break
            protected = (
                candidate.num_preemptions >= self.max_preemptions and candidate.priority == requester.priority
            )
            if candidate.visited != self._step and not protected:
                return candidate
        return requester

    def _preempt(self, request: Request) -> None:
        self.counters.preemptions += 1
        request.num_preemptions += 1
        self._requeue(request)

    def _requeue(self, request: Request) -> None:
        """Take all blocks back and let the request wait; it will recompute what the cache does not keep."""
        for seq in request.live:
            self.kv.release(seq, keep_tail=False)
            seq.num_lost = seq.num_computed
            seq.num_computed = seq.num_planned = 0
            self._released.append(seq.seq_id)
        request.status = RequestStatus.PREEMPTED
        self._num_seqs -= request.params.n
        del self._running[self._position(self._running, request)]
        insort(self._waiting, request, key=_rank)

    # -- a step: what came of it -------------------------------------------------------------------------------

    def update(self, batch: Batch, output: StepOutput) -> list[Delta]:
        """Apply the results of a batch: append tokens, publish what was computed, end what is finished."""
        assert batch is self._in_flight, "this batch is not the one in flight"
        assert len(output.items) == len(batch.items), "one ItemOutput per item"
        deltas: list[Delta] = []
        dropped = self._drop_untrusted(batch, output, deltas)
        self.kv.commit()
        self._in_flight = None
        generated = 0
        for chunk, result in zip(self._chunks, output.items, strict=True):
            request, seq = chunk.request, chunk.seq
            if dropped and request.request_id in dropped:
                continue
            seq.num_computed = chunk.end
            if request.prefilling:
                self.counters.prompt_tokens += chunk.end - chunk.start
            prompt_logprobs = new_prompt_logprobs(chunk, result) if result.prompt_logprobs else []
            if chunk.end < len(seq.tokens):
                if prompt_logprobs:
                    num_cached = request.num_cached or 0
                    deltas.append(Delta(request.request_id, seq.index, [], None, prompt_logprobs, num_cached))
                continue
            generated += len(result.sampled)
            self._append(request, seq, result.sampled, prompt_logprobs, deltas)
        self.counters.generated_tokens += generated
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
            members += [self._fork(request, seq) for _ in range(len(sampled) - 1)]
        if request.prefilling:
            self._end_prefill(request)
        if request.request_id in self._aborting:
            return
        ended = False
        for member, token in zip(members, sampled, strict=True):
            member.tokens.append(token.token_id)
            finish = finish_reason(request, member, token.token_id, self.stop_check)
            deltas.append(
                Delta(
                    request.request_id,
                    member.index,
                    [token],
                    finish,
                    prompt_logprobs,
                    request.num_cached or 0,
                )
            )
            prompt_logprobs = []
            if finish is not None:
                member.finish = finish
                self._leave(member, keep_tail=True)
                ended = True
        if ended and not request.live:
            self._finish(request, member.finish)

    def _fork(self, request: Request, parent: Sequence) -> Sequence:
        child = self._new_sequence(request)
        self.kv.fork(parent, child)
        return child

    def _end_prefill(self, request: Request) -> None:
        request.prefilling = any(len(seq.tokens) - seq.num_computed > 1 for seq in request.live)
        self.counters.count_prefix(request)

    def _drop_untrusted(self, batch: Batch, output: StepOutput, deltas: list[Delta]) -> set[str]:
        """End requests with unusable rows; requeue those whose swapped-in or attached K/V never arrived.

        Returns the ids of all of them: their results of this step do not count.
        """
        failed = {transfer.seq_id for transfer in output.failed_transfers}
        bad = [result.row_error is not None for result in output.items]
        if not failed and not any(bad):
            return set()
        dropped: set[str] = set()
        again: dict[str, Request] = {}
        for request in self._running:
            for seq in request.live:
                if seq.seq_id in failed:
                    again[request.request_id] = request
                    self._discard(seq, again)
        for chunk, result in zip(self._chunks, output.items, strict=True):
            request = chunk.request
            if result.row_error is not None and request.request_id not in dropped:
                dropped.add(request.request_id)
                for seq in request.live:
                    self._discard(seq, again)
                error = RequestError(
                    "the model gave unusable logits", value=result.row_error, remedy="try other inputs"
                )
                deltas += self._end(request, FinishReason(FinishKind.ERROR, error=error))
        for request_id, request in again.items():
            if request_id not in dropped:
                dropped.add(request_id)
                self._requeue(request)
        return dropped

    def _discard(self, seq: Sequence, again: dict[str, Request]) -> None:
        for other in self.kv.discard(seq):
            for request in self._running:
                if request.sequences is other.gang:
                    again[request.request_id] = request

    def fail(self, batch: Batch, error: LeafageError) -> list[Delta]:
        """The whole batch failed: end its requests with `error`, un-publish what they were computing.

        Requests without an item that attached blocks of this step, or were given copies, start over.
        """
        assert batch is self._in_flight, "this batch is not the one in flight"
        touched = self.kv.undo()
        self._in_flight = None
        self._released = batch.released + self._released
        deltas: list[Delta] = []
        for request in dict.fromkeys(chunk.request for chunk in self._chunks):
            for seq in request.live:
                seq.num_planned = seq.num_computed
            deltas += self._end(request, FinishReason(FinishKind.ERROR, error=error))
        self._chunks = []
        for request in list(self._running):
            if any(seq.gang is request.sequences for seq in touched):
                self._requeue(request)
        self._finish_aborts()
        return deltas

    # -- endings ---------------------------------------------------------------------------------------------

    def _leave(self, seq: Sequence, *, keep_tail: bool) -> None:
        self.kv.release(seq, keep_tail=keep_tail)
        self._released.append(seq.seq_id)

    def _end(self, request: Request, reason: FinishReason) -> list[Delta]:
        """End all live sequences of a request, running or waiting."""
        deltas = []
        for seq in request.live:
            if request.status is RequestStatus.RUNNING:
                self._leave(seq, keep_tail=reason.kind is FinishKind.ABORT)
            seq.finish = reason
            deltas.append(Delta(request.request_id, seq.index, [], reason, [], request.num_cached or 0))
        self._finish(request, reason)
        return deltas

    def _finish(self, request: Request, reason: FinishReason | None) -> None:
        if request.status is RequestStatus.RUNNING:
            self._num_seqs -= request.params.n
            del self._running[self._position(self._running, request)]
        else:
            del self._waiting[self._position(self._waiting, request)]
        self.counters.count_prefix(request)
        request.status = RequestStatus.FINISHED
        del self._requests[request.request_id]
        if reason is not None:
            self.counters.finished[reason.kind.value] += 1

    def _finish_aborts(self) -> None:
        for request_id in self._aborting:
            request = self._requests.get(request_id)
            if request is not None:
                self._end(request, FinishReason(FinishKind.ABORT))
        self._aborting.clear()

    @staticmethod
    def _position(requests: list[Request], request: Request) -> int:
        position = bisect_left(requests, _rank(request), key=_rank)
        assert requests[position] is request
        return position


def _rank(request: Request) -> tuple[int, int]:
    """The order of service."""
    return (request.priority, request.arrival)
