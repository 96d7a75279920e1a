"""A toy executor that proves the bookkeeping: its answers depend on all that it reads from a paged cache.

Every slot stores the hash of the whole token prefix that led to it, as K/V does. A step first makes the
copies, then writes, then reads each item's context back through its block table. A wrong table, a lost copy,
a slot written twice or not at all, or a block freed too early gives another answer (or, when `strict`, fails
at once).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from leafage.core.batch import Batch, Item, ItemOutput, Logits, SampledToken, StepOutput, Transfer
from leafage.core.kv_manager import KVManager
from leafage.core.pins import PrefixPin
from leafage.core.protocols import KV, PrefixIndex
from leafage.core.request import Delta, FinishReason, Request
from leafage.core.reserved import ReservedKVManager
from leafage.core.sampling_params import SamplingParams
from leafage.core.scheduler import Scheduler
from leafage.core.swap import SwapSlots
from tests.core.naive_beam import naive_beam_search

POISON = -1


def prefix_hashes(tokens: list[int], known: list[int] | None = None) -> list[int]:
    """One hash per position, of all tokens up to it; `known` holds the first ones and is extended."""
    hashes = known if known is not None else []
    for position in range(len(hashes), len(tokens)):
        before = hashes[-1] if hashes else 0
        hashes.append(hash((before, tokens[position], position)))
    return hashes


def numbers(count: int, start: int = 0) -> list[int]:
    """A prompt of so many consecutive ids."""
    return list(range(start, start + count))


def draw(context: list[int], seed: int, vocab_size: int, banned: frozenset[int] = frozenset()) -> int:
    """The toy model: a token from what was read and the sequence's seed, the next allowed one if banned."""
    token = hash((tuple(context), seed, len(context))) % vocab_size
    for _ in range(vocab_size):
        if token not in banned:
            break
        token = (token + 1) % vocab_size
    return token


def logprobs(context: list[int], vocab_size: int, banned: frozenset[int] = frozenset()) -> list[float]:
    """The toy model for beam search: a log-probability for each token, with ties."""
    base = hash((tuple(context), len(context)))
    row = [-(hash((base, token)) % 97) / 16 - 0.125 for token in range(vocab_size)]
    return [float("-inf") if token in banned else value for token, value in enumerate(row)]


class ToyExecutor:
    """Runs batches on a fake paged cache.

    Args:
        num_blocks, block_size: the cache's shape.
        vocab_size: answers are 0 .. vocab_size - 1.
        strict: fail where a wrong value is read, instead of answering from it.
        whole_copies: a full block may be copied, too: nothing is shared.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        vocab_size: int = 50,
        *,
        strict: bool = True,
        whole_copies: bool = False,
    ) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.strict = strict
        self.whole_copies = whole_copies or block_size == 1
        self.slots = [POISON] * (num_blocks * block_size)
        self.swapped: dict[int, list[int]] = {}
        self.num_prompt_rows = 0
        self.num_rows = 0
        self.row_errors: dict[str, str] = {}
        self.failed_transfers: list[Transfer] = []
        self.before_execute: Callable[[Batch], None] | None = None
        self._hashes: dict[int, list[int]] = {}

    def execute(self, batch: Batch) -> StepOutput:
        if self.before_execute is not None:
            self.before_execute(batch)
        for seq_id in batch.released:
            self._hashes.pop(seq_id, None)
        self._transfer(batch)
        self._copy(batch)
        written: set[int] = set()
        for item in batch.items:
            self._write(item, written)
        output = StepOutput([self._answer(item) for item in batch.items])
        for item in batch.items:
            if item.request_id in self.row_errors:
                self._spoil(item)
        for transfer in self.failed_transfers:
            for item in batch.items:
                if item.seq_id == transfer.seq_id:
                    self._spoil(item)
        output.failed_transfers = list(self.failed_transfers)
        return output

    def spoil(self, batch: Batch) -> None:
        """What a failed step leaves behind: every slot it was to write is garbage."""
        size = self.block_size
        for transfer in batch.swap_in:
            self.slots[transfer.block * size : (transfer.block + 1) * size] = [POISON] * size
        for copy in batch.copies:
            self.slots[copy.dst * size : (copy.dst + 1) * size] = [POISON] * size
        for item in batch.items:
            self._spoil(item)
        self._hashes.clear()

    def _spoil(self, item: Item) -> None:
        for position in range(max(item.start, item.write_from), item.start + len(item.token_ids)):
            self.slots[self._slot(item, position)] = POISON

    def _transfer(self, batch: Batch) -> None:
        """What fails leaves garbage."""
        size = self.block_size
        assert len({t.swap_slot for t in batch.swap_in + batch.swap_out}) == len(
            batch.swap_in + batch.swap_out
        )
        for out in batch.swap_out:
            values = self.slots[out.block * size : (out.block + 1) * size]
            self.swapped[out.swap_slot] = [POISON] * size if out in self.failed_transfers else values
        for back in batch.swap_in:
            values = self.swapped.pop(back.swap_slot)
            failed = back in self.failed_transfers
            self.slots[back.block * size : (back.block + 1) * size] = [POISON] * size if failed else values

    def _copy(self, batch: Batch) -> None:
        size = self.block_size
        sources = [self.slots[c.src * size : c.src * size + c.num_slots] for c in batch.copies]
        for copy, values in zip(batch.copies, sources, strict=True):
            assert 0 < copy.num_slots < size + self.whole_copies, "a whole block is shared, not copied"
            rest = [POISON] * (size - copy.num_slots)
            self.slots[copy.dst * size : (copy.dst + 1) * size] = values + rest

    def _slot(self, item: Item, position: int) -> int:
        return item.block_table[position // self.block_size] * self.block_size + position % self.block_size

    def _write(self, item: Item, written: set[int]) -> None:
        end = item.start + len(item.token_ids)
        assert item.token_ids == item.history[item.start : end] and item.token_ids, (
            "token_ids are not the history's"
        )
        hashes = prefix_hashes(item.history[:end], self._hashes.setdefault(item.seq_id, []))
        self.num_rows += len(item.token_ids)
        self.num_prompt_rows += max(0, min(end, item.num_prompt_tokens) - item.start)
        for position in range(max(item.start, item.write_from), end):
            slot = self._slot(item, position)
            assert slot not in written, f"slot {slot} is written twice in one step"
            written.add(slot)
            self.slots[slot] = hashes[position]

    def _answer(self, item: Item) -> ItemOutput:
        end = item.start + len(item.token_ids)
        context = [self.slots[self._slot(item, position)] for position in range(end)]
        if self.strict:
            expected = self._hashes[item.seq_id][:end]
            assert context == expected, (
                f"{item.request_id} reads wrong K/V at {_first_difference(context, expected)}"
            )
        draws = end == len(item.history) and not item.request_id.startswith("pin")
        assert bool(item.samples) == draws, "samples without the last token, or none with it"
        assert all(sample.position == end for sample in item.samples), "a sample has the wrong position"
        assert (item.logits is Logits.NONE) <= (not item.samples), "samples need logits"
        output = ItemOutput(row_error=self.row_errors.get(item.request_id))
        if item.params.beam_width is not None and item.samples:
            row = logprobs(context, self.vocab_size, item.banned_token_ids)
            best = sorted(range(self.vocab_size), key=lambda token: (-row[token], token))
            top = [(token, row[token]) for token in best[: item.top_k_logprobs]]
            output.sampled.append(SampledToken(best[0], row[best[0]], 1, top))
        for sample in item.samples if item.params.beam_width is None else []:
            token = draw(context, sample.seed, self.vocab_size, item.banned_token_ids)
            output.sampled.append(SampledToken(token, -1.0))
        if item.logits is Logits.ALL:
            last = min(end, item.num_prompt_tokens - 1)
            output.prompt_logprobs = [
                SampledToken(item.history[row + 1], float(row)) for row in range(item.start, last)
            ]
        return output


def _first_difference(first: list[int], second: list[int]) -> int:
    return next(i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)


def undisturbed(
    request: Request, vocab_size: int, index: int = 0, *, max_model_len: int = 10**9
) -> list[int]:
    """The tokens of a run without cache, batch or scheduler, by the rules that SamplingParams states."""
    from leafage.core.request import derive

    params = request.params
    if params.beam_width is not None:
        return searched(request, vocab_size)[index]
    seed = derive(params.seed if params.seed is not None else request.seed, index)
    eos = frozenset() if params.ignore_eos else request.eos_token_ids
    tokens = list(request.prompt_token_ids)
    hashes: list[int] = []
    output: list[int] = []
    while len(output) < request.max_tokens and len(tokens) < max_model_len:
        may_stop = len(output) >= params.min_tokens
        banned = frozenset() if may_stop else eos.union(params.stop_token_ids)
        token = draw(prefix_hashes(tokens, hashes), seed, vocab_size, banned)
        tokens.append(token)
        output.append(token)
        if len(output) >= params.min_tokens and (token in eos or token in params.stop_token_ids):
            break
    return output


def num_answers(request: Request) -> int:
    """How many sequences the deltas tell of: best_of's are ranked by whoever reads them."""
    params = request.params
    return params.n if params.beam_width is not None else params.num_sequences


def searched(request: Request, vocab_size: int) -> list[list[int]]:
    """The answers of a naive beam search."""
    params = request.params
    prompt = request.prompt_token_ids
    eos = frozenset() if params.ignore_eos else request.eos_token_ids
    stop_ids = eos.union(params.stop_token_ids)

    def row(tokens: list[int]) -> np.ndarray:
        banned = stop_ids if len(tokens) - len(prompt) < params.min_tokens else frozenset()
        return np.array(logprobs(prefix_hashes(tokens), vocab_size, banned))

    assert params.beam_width is not None
    answers = naive_beam_search(
        row,
        prompt,
        width=params.beam_width,
        max_tokens=request.max_tokens,
        stop_ids=stop_ids,
        min_tokens=params.min_tokens,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
    )
    return [answer.tokens for answer in answers]


@dataclass
class Answer:
    """What the deltas told of one sequence."""

    tokens: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    num_cached: int = 0
    prompt_logprobs: list[SampledToken] = field(default_factory=list)


class Loop:
    """Scheduler and toy executor in the engine's loop; `KVManager.check` runs after every half step."""

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 16,
        *,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 4096,
        max_model_len: int = 4096,
        prefix_index: str | PrefixIndex = "radix",
        vocab_size: int = 50,
        strict: bool = True,
        check: bool = True,
        block_order: list[int] | None = None,
        reservation: str | None = None,
        allocator: str = "first-fit",
        num_swap_slots: int = 0,
        max_pinned_blocks: int = 0,
        **options: object,
    ) -> None:
        self.kv: KV
        if reservation is None:
            space = SwapSlots(num_swap_slots)
            self.kv = KVManager(
                num_blocks,
                block_size,
                prefix_index,
                max_pinned_blocks=max_pinned_blocks,
                block_order=block_order,
                swap_space=space,
            )
        else:
            self.kv = ReservedKVManager(
                num_blocks, block_size, reservation, max_model_len=max_model_len, allocator=allocator
            )
        self.scheduler = Scheduler(
            self.kv,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            **options,  # type: ignore[arg-type]
        )
        self.executor = ToyExecutor(
            num_blocks, block_size, vocab_size, strict=strict, whole_copies=reservation is not None
        )
        self.check = check
        self.answers: dict[tuple[str, int], Answer] = {}
        self.requests: dict[str, Request] = {}
        self.num_added = 0
        self.num_pins = 0

    def add(
        self,
        prompt: Iterable[int],
        request_id: str | None = None,
        *,
        salt: str = "",
        tenant: str = "",
        priority: int = 0,
        eos: Iterable[int] = (),
        **params: object,
    ) -> str:
        request_id = request_id if request_id is not None else f"r{self.num_added}"
        params.setdefault("temperature", 0.0)
        request = Request(
            request_id,
            list(prompt),
            SamplingParams(**params),  # type: ignore[arg-type]
            priority=priority,
            cache_salt=salt,
            tenant=tenant,
            eos_token_ids=frozenset(eos),
        )
        self.scheduler.add(request)
        self.num_added += 1
        self.requests[request_id] = request
        return request_id

    def pin(self, prefix: Iterable[int], *, salt: str = "", priority: int = 0) -> PrefixPin:
        """The ids of pins start with "pin"."""
        pin = PrefixPin(f"pin{self.num_pins}", list(prefix), salt, priority)
        self.num_pins += 1
        self.kv.pins.start(pin, self.scheduler.add)
        self.verify()
        return pin

    def unpin(self, pin: PrefixPin) -> bool:
        released = self.kv.pins.release(pin.pin_id, self.scheduler.abort)
        self.verify()
        return released

    def verify(self) -> None:
        if self.check:
            self.scheduler.check()
            kv = self.kv
            assert kv.num_free + kv.num_cached + kv.num_active == kv.num_blocks

    def step(self) -> list[Delta]:
        batch = self.scheduler.schedule()
        self.verify()
        assert batch.num_tokens <= self.scheduler.max_num_batched_tokens, "the token budget is exceeded"
        assert self.scheduler.roster.num_seqs <= self.scheduler.max_num_seqs, "too many sequences run"
        output = self.executor.execute(batch) if batch.has_work else StepOutput()
        deltas = self.scheduler.update(batch, output)
        self.verify()
        self.record(deltas)
        return deltas

    def record(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            answer = self.answers.setdefault((delta.request_id, delta.index), Answer())
            assert answer.finish is None, "a delta after the end"
            answer.tokens += [token.token_id for token in delta.tokens]
            answer.finish = delta.finish
            answer.num_cached = delta.num_cached
            answer.prompt_logprobs += delta.prompt_logprobs

    def run(self, max_steps: int = 100_000) -> None:
        for _ in range(max_steps):
            if not self.scheduler.has_unfinished:
                return
            self.step()
        raise AssertionError(f"not done after {max_steps} steps")

    def tokens(self, request_id: str, index: int = 0) -> list[int]:
        return self.answers[request_id, index].tokens

    def assert_undisturbed(self, request_id: str) -> None:
        """The request's answers are those of a run alone."""
        request = self.requests[request_id]
        for index in range(num_answers(request)):
            expected = undisturbed(
                request, self.executor.vocab_size, index, max_model_len=self.scheduler.max_model_len
            )
            assert self.tokens(request_id, index) == expected, f"{request_id}/{index} differs"
