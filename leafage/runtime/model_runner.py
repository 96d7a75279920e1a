"""LocalExecutor: runs the batches of the scheduler on the model of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from leafage.core.batch import Batch, ItemOutput, StepOutput, Transfer
from leafage.core.protocols import SwapStore
from leafage.core.step_times import StepTimes
from leafage.errors import ExecutorError
from leafage.kernels.native_sampling import NativeSampler, SamplingPlan
from leafage.kernels.step_inputs import StepInputs
from leafage.runtime.inputs import build_inputs
from leafage.runtime.load import LoadedModel
from leafage.runtime.sampler import Sampler


class RunnableProgram(Protocol):
    """What native and reference programs have in common."""

    def forward(
        self, inputs: StepInputs, sampler: NativeSampler | None = None, plan: SamplingPlan | None = None
    ) -> Iterator[tuple[int, np.ndarray]]: ...
    def copy_blocks(self, pairs: np.ndarray) -> None: ...
    def get_block(self, block: int) -> np.ndarray: ...
    def set_block(self, block: int, data: np.ndarray) -> None: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def native_seconds(self) -> float: ...
    @property
    def num_threads(self) -> int: ...


class LocalExecutor:
    """Executes batches; implements the Executor protocol of core.

    Args:
        model: weights and program.
        num_blocks, block_size: the KV pool.
        max_num_batched_tokens: most tokens of one step.
        max_model_len: most tokens of one sequence.
        num_threads: threads of the native step.
        kv_dtype: what the native step keeps K and V in; the reference keeps them in float32.
        times: counts where the time of steps goes.
        new_swap_store: makes the store of swapped blocks, given the bytes of one; None: nothing is swapped.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        num_blocks: int,
        block_size: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        num_threads: int,
        kv_dtype: str = "bfloat16",
        times: StepTimes | None = None,
        new_swap_store: Callable[[int], SwapStore] | None = None,
    ) -> None:
        self.block_size = block_size
        self.vocab_size = model.program.vocab_size
        self.program: RunnableProgram
        if model.compute == "float32":
            from leafage.kernels.reference import ReferenceProgram

            self.program = ReferenceProgram(
                model.program, model.weights, num_blocks=num_blocks, block_size=block_size
            )
        else:
            from leafage.kernels.native import NativeProgram

            self.program = NativeProgram(
                model.program,
                model.weights,
                num_blocks=num_blocks,
                block_size=block_size,
                max_rows=max_num_batched_tokens,
                max_position=max_model_len,
                num_threads=num_threads,
                kv_dtype=kv_dtype,
            )
        self.sampler = Sampler(self.vocab_size, self.program.num_threads)
        self.swap_store = None if new_swap_store is None else new_swap_store(self.program.block_bytes)
        self.times = times or StepTimes()
        self._native_seconds = 0.0

    def execute(self, batch: Batch) -> StepOutput:
        """Transfers, then copies, then the forward pass, then sampling.

        Raises:
            ExecutorError: nothing of the batch can be used.
        """
        self.sampler.release(batch.released)
        try:
            failed = self._transfer(batch) if batch.swap_out or batch.swap_in else []
            if batch.copies:
                pairs = np.array([(c.src, c.dst) for c in batch.copies], dtype=np.int32)
                self.program.copy_blocks(pairs)
            if not batch.items:
                return StepOutput(failed_transfers=failed)
            return StepOutput(self._forward(batch), failed)
        except (MemoryError, ValueError, RuntimeError) as error:
            raise ExecutorError(f"a step of {batch.num_tokens} tokens failed: {error}") from error

    def _transfer(self, batch: Batch) -> list[Transfer]:
        """Move blocks between the pool and the swap store; returns what failed."""
        store, program = self.swap_store, self.program
        assert store is not None, "a batch swaps, and there is no swap store"
        failed = [
            transfer
            for transfer in batch.swap_out
            if not store.save(transfer.swap_slot, program.get_block(transfer.block).data)
        ]
        data = np.empty(program.block_bytes, np.uint8)
        for transfer in batch.swap_in:
            if store.load(transfer.swap_slot, data.data):
                program.set_block(transfer.block, data)
            else:
                failed.append(transfer)
        self._lap("inputs")
        return failed

    def _forward(self, batch: Batch) -> list[ItemOutput]:
        inputs = build_inputs(batch, self.block_size)
        self._lap("inputs")
        sampled = self.sampler.start(batch)
        self._lap("sample")
        for _ in self.program.forward(inputs, self.sampler.native, sampled.plan):
            pass
        self._lap("forward")
        outputs = self.sampler.finish(sampled)
        self._lap("sample")
        return outputs

    def _lap(self, part: str) -> None:
        native = self.program.native_seconds
        self.times.lap(part, native - self._native_seconds)
        self._native_seconds = native
