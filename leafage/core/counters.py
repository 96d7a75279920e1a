"""Plain counters of the core. They only grow, and counting never raises."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from leafage.core.request import Request


@dataclass(slots=True)
class KVCounters:
    """Totals of a KVManager since the start."""

    evicted_blocks: int = 0
    copied_blocks: int = 0
    merged_blocks: int = 0
    """Duplicates that were replaced by the index's own block when published."""
    fragmented_admissions: int = 0
    """Requests that had to wait although their reservation was free, but not in one run."""


@dataclass(slots=True)
class SchedulerCounters:
    """Totals of a Scheduler since the start."""

    steps: int = 0
    preemptions: int = 0
    swap_outs: int = 0
    """Preempted gangs whose blocks went to the swap space."""
    swap_ins: int = 0
    recomputed_tokens: int = 0
    """Tokens computed again after a preemption."""
    recompute_hits: int = 0
    """Tokens that a resumed sequence found in the cache; not prefix hits."""
    prefix_queries: int = 0
    """Prompt tokens looked up, once per request."""
    prefix_hits: int = 0
    """Prompt tokens served from the cache, once per request."""
    prefix_cache_miss_tokens: Counter[str] = field(default_factory=Counter)
    """Prompt tokens not served, by reason: no_match, below_block, evicted, salt."""
    prompt_tokens: int = 0
    """Tokens computed as part of prompts (or after a preemption), not counting decode rows."""
    generated_tokens: int = 0
    """Tokens drawn; of a beam search those of its running beams."""
    finished: Counter[str] = field(default_factory=Counter)
    """Requests that ended, by kind."""

    def count_prefix(self, request: Request) -> None:
        """Count a request's prefix hits and misses, once: when its prompt is done or it leaves."""
        if request.counted or request.num_cached is None:
            return
        request.counted = True
        if request.params.prompt_logprobs is not None:
            return  # it asked the cache for nothing
        missing = len(request.prompt_token_ids) - request.num_cached
        self.prefix_queries += len(request.prompt_token_ids)
        self.prefix_hits += request.num_cached
        for reason, tokens in request.missed.items():
            counted = min(tokens, missing)
            self.prefix_cache_miss_tokens[reason] += counted
            missing -= counted
        self.prefix_cache_miss_tokens["no_match"] += missing
