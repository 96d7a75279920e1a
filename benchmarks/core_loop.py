"""The scheduler and the KV manager without a model, for measurements of what they decide."""

from __future__ import annotations

from collections.abc import Callable

from leafage.core.batch import Batch, ItemOutput, SampledToken, StepOutput
from leafage.core.kv_manager import KVManager
from leafage.core.policy import MAX_PASSES, PolicyMaker
from leafage.core.request import Request
from leafage.core.sampling_params import SamplingParams
from leafage.core.scheduler import Scheduler


class CoreLoop:
    """Requests in, steps out. All answers are the same token."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        policy: str | PolicyMaker = "fcfs",
        max_passes: int = MAX_PASSES,
        max_num_seqs: int = 1,
        max_num_batched_tokens: int = 1_000_000,
        prefix_index: str = "radix",
    ) -> None:
        self.kv = KVManager(num_blocks, block_size, prefix_index)
        self.scheduler = Scheduler(
            self.kv,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=num_blocks * block_size,
            policy=policy,
            max_passes=max_passes,
        )
        self.num_added = 0

    def add(self, prompt: list[int], *, max_tokens: int = 1, salt: str = "") -> Request:
        """Queue a request."""
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        request = Request(str(self.num_added), prompt, params, cache_salt=salt, tenant=salt)
        self.scheduler.add(request)
        self.num_added += 1
        return request

    def step(self, schedule: Callable[[], Batch] | None = None) -> Batch:
        """One step; `schedule` may wrap the scheduler's own."""
        batch = (schedule or self.scheduler.schedule)()
        token = SampledToken(7, -1.0)
        outputs = [ItemOutput([token] * len(item.samples)) for item in batch.items]
        self.scheduler.update(batch, StepOutput(outputs))
        return batch

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens so far that came from the cache."""
        counters = self.scheduler.counters
        return counters.prefix_hits / counters.prefix_queries
