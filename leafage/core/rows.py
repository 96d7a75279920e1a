"""From the scheduler's decision to a batch item, and from an item's result to what the sequence learns."""

from __future__ import annotations

from dataclasses import dataclass

from leafage.core.batch import Item, ItemOutput, Logits, Sample, SampledToken, StepOutput
from leafage.core.protocols import KV, StopCheck
from leafage.core.request import Delta, FinishKind, FinishReason, Request, Sequence, derive

LAST = Logits.LAST  # every decode row asks for it, and members of an Enum are slow to find
NOTHING: frozenset[int] = frozenset()


@dataclass(slots=True)
class Chunk:
    """Tokens [start, end) of a sequence, to be computed in this step."""

    request: Request
    seq: Sequence
    start: int
    end: int


def build_item(chunk: Chunk) -> Item:
    """What the executor is told: a chunk that reaches the last known token draws the next one.

    A prompt's last row draws for all sequences of the gang at once; their seeds differ.
    """
    request, seq, start, end = chunk.request, chunk.seq, chunk.start, chunk.end
    params, tokens = request.params, seq.tokens
    top_k = params.logprobs or 0
    if request.beams is not None:
        top_k = max(top_k, request.beams.num_candidates)
    if end == len(tokens) and request.pin is None:
        logits, samples = LAST, [Sample(seq.index, end, seq.seed)]
        if request.num_unforked and len(request.sequences) == 1:
            samples += [Sample(i, end, derive(request.seed, i)) for i in range(1, 1 + request.num_unforked)]
    else:
        logits, samples = Logits.NONE, []
    if params.prompt_logprobs is not None and seq.index == 0:
        last_row = min(end, seq.num_prompt_tokens - 1)
        if request.num_prompt_logprobs < last_row:
            logits = Logits.ALL
            top_k = max(top_k, params.prompt_logprobs)
    banned = NOTHING
    if params.min_tokens and samples and params.min_tokens > len(tokens) - seq.num_prompt_tokens:
        banned = request.eos_token_ids.union(params.stop_token_ids)
    return Item(
        seq.seq_id,
        request.request_id,
        seq.block_table,
        start,
        tokens[start:end],
        start if start > seq.write_from else seq.write_from,
        logits,
        samples,
        top_k,
        params,
        tokens,
        seq.num_prompt_tokens,
        banned,
    )


def new_prompt_logprobs(chunk: Chunk, result: ItemOutput) -> list[SampledToken]:
    """The chunk's prompt rows that were not delivered before; a resumed prompt computes some again."""
    request = chunk.request
    rows = range(chunk.start, min(chunk.end, chunk.seq.num_prompt_tokens - 1))
    done = request.num_prompt_logprobs
    new = [result.prompt_logprobs[row - chunk.start] for row in rows if row >= done]
    request.num_prompt_logprobs = max(done, rows.stop)
    return new


def last_deltas(request: Request, reason: FinishReason) -> list[Delta]:
    """What is said of a request that ends early: of its answers that have not ended before."""
    params = request.params
    num_answers = params.n if request.beams is not None else params.num_sequences
    ended = {seq.index for seq in request.sequences if seq.finish is not None}
    cached = request.num_cached or 0
    return [
        Delta(request.request_id, i, [], reason, num_cached=cached)
        for i in range(num_answers)
        if i not in ended
    ]


def discard_untrusted(
    chunks: list[Chunk], output: StepOutput, running: list[Request], kv: KV
) -> tuple[dict[str, str], set[str]]:
    """Un-publish what unusable rows and failed transfers leave behind; before the step is committed.

    Returns:
        The errors of requests with unusable rows, by request id; and the ids of requests that rely on what
        never arrived.
    """
    errors = {
        chunk.request.request_id: result.row_error
        for chunk, result in zip(chunks, output.items, strict=True)
        if result.row_error is not None
    }
    again: set[str] = set()
    if not errors and not output.failed_transfers:
        return errors, again
    failed = {transfer.seq_id for transfer in output.failed_transfers}
    for request in running:
        for seq in request.live:
            if seq.seq_id in failed:
                again.add(request.request_id)
            if seq.seq_id in failed or request.request_id in errors:
                owners = {id(other.gang) for other in kv.discard(seq)}
                again |= {r.request_id for r in running if id(r.sequences) in owners}
    return errors, again


def finish_reason(
    request: Request, seq: Sequence, token_id: int, stop_check: StopCheck | None
) -> FinishReason | None:
    """Why the sequence would end with this token as its next. Ids win over strings, both over lengths."""
    params = request.params
    num_output = len(seq.tokens) - seq.num_prompt_tokens + 1
    may_stop = num_output >= params.min_tokens
    if may_stop and token_id in request.eos_token_ids:
        return FinishReason(FinishKind.STOP)
    if may_stop and params.stop_token_ids and token_id in params.stop_token_ids:
        return FinishReason(FinishKind.STOP, token_id)
    reason = stop_check.finished(seq, token_id) if stop_check is not None else None
    if reason is not None and (may_stop or reason.kind is FinishKind.ERROR):
        return reason
    if num_output >= request.max_tokens:  # which keeps the sequence within max_model_len
        return FinishReason(FinishKind.LENGTH)
    return None
