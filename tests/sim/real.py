"""An engine on a real clock whose executor computes nothing: it sleeps, and answers 1."""

from __future__ import annotations

import time

from leafage.core.batch import Batch, ItemOutput, SampledToken, StepOutput
from leafage.core.kv_manager import KVManager
from leafage.core.scheduler import Scheduler
from leafage.core.step_times import StepTimes
from leafage.engine.engine import Engine
from leafage.engine.metrics import EngineMetrics, MonotonicClock
from leafage.engine.output import OutputProcessor
from leafage.engine.stop import StopStringCheck
from leafage.sim.replay import RealEngine


class SleepingExecutor:
    """A step takes `seconds` at least."""

    def __init__(self, seconds: float, times: StepTimes) -> None:
        self.seconds = seconds
        self.times = times
        self.num_steps = 0

    def execute(self, batch: Batch) -> StepOutput:
        self.num_steps += 1
        if self.seconds:
            time.sleep(self.seconds)
        self.times.lap("forward", self.seconds)
        return StepOutput([ItemOutput([SampledToken(1, 0.0) for _ in item.samples]) for item in batch.items])


def sleeping_engine(
    seconds: float = 0.0,
    *,
    num_blocks: int = 512,
    max_num_seqs: int = 16,
    max_num_batched_tokens: int = 64,
    max_model_len: int = 512,
) -> RealEngine:
    """All of an engine but the model."""
    stop_check = StopStringCheck()
    scheduler = Scheduler(
        KVManager(num_blocks, 16),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        stop_check=stop_check,
    )
    clock = MonotonicClock()
    times = StepTimes(clock.now)
    metrics = EngineMetrics(clock, scheduler)
    engine = Engine(
        scheduler,
        SleepingExecutor(seconds, times),
        clock=clock,
        vocab_size=1000,
        observer=metrics,
        times=times,
    )
    return RealEngine(
        engine=engine,
        outputs=OutputProcessor(None, stop_check, metrics),
        metrics=metrics,
        vocab_size=1000,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        kv_tokens=16 * num_blocks,
    )
