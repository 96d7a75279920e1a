"""Who may have memory: what can ever fit, what a gang may still ask for, and who makes room for whom."""

from __future__ import annotations

from collections.abc import Sequence

from leafage.core.protocols import KV
from leafage.core.request import Request
from leafage.core.roster import rank
from leafage.errors import InvalidParameterError, RequestTooLargeError


def at_least(low: int, **limits: int) -> None:
    """Raise InvalidParameterError for a limit below `low`, naming it."""
    for name, value in limits.items():
        if value < low:
            raise InvalidParameterError(f"{name} is out of range", value=value, limit=f"at least {low}")


def fitting_max_tokens(request: Request, kv: KV, *, max_seqs: int, max_model_len: int) -> int:
    """The request's max_tokens, or as many as fit when it is unset.

    Args:
        max_seqs: the largest n that can run at once.
        max_model_len: prompt and output tokens of a sequence at most.

    Raises:
        RequestTooLargeError: n, the prompt, or the prompt and an explicit max_tokens are too large.
    """
    params = request.params
    num_prompt = len(request.prompt_token_ids)
    if params.n > max_seqs:
        raise RequestTooLargeError(
            "n is larger than what can run at once",
            value=params.n,
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
    longest = kv.longest_output(num_prompt, params.n)
    capacity = (kv.num_blocks - kv.max_pinned_blocks) * kv.block_size
    many = f" and n = {params.n}" if params.n > 1 else ""
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


def growth_left(request: Request, kv: KV) -> int:
    """Blocks that a gang may still ask for at worst: beyond those it holds or, waiting, gets at admission."""
    num_prompt = len(request.prompt_token_ids)
    most = kv.blocks_for(num_prompt + request.max_tokens - 1)
    left = request.params.n - len(request.sequences)  # not forked yet
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
