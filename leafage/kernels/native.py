"""The native executor of a Program: compiles the op list once; a step is one call, without the GIL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from leafage.kernels import _native
from leafage.kernels.native_sampling import NativeSampler, SamplingPlan
from leafage.kernels.program import MAX_LOGIT_ROWS, Buffer, Kind, Op, Program
from leafage.kernels.step_inputs import StepInputs


class NativeProgram:
    """A Program compiled for this CPU, with its paged KV cache.

    Args:
        program: the model's forward pass.
        weights: packed weights by name; shapes as the program declares them.
        num_blocks, block_size: size of the KV pool in blocks, and of a block in tokens.
        max_rows: most tokens in one step.
        max_position: positions 0 .. max_position - 1 may occur.
        num_threads: threads of the parallel region.
        kv_dtype: "bfloat16", or "int8" with one scale per token and KV head.

    Raises:
        ValueError: a weight is missing or has another shape than the program declares, no kernel has its
            head_dim, or an unknown kv_dtype.
    """

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, _native.PackedWeight],
        *,
        num_blocks: int,
        block_size: int,
        max_rows: int,
        max_position: int,
        num_threads: int,
        kv_dtype: str = "bfloat16",
    ) -> None:
        self.program = program
        self.max_rows = max_rows
        self.max_position = max_position
        self.weights = dict(weights)
        _check_weights(program, self.weights)
        spec = program.kv
        check_head_dim(spec.head_dim)
        self.kv = _native.KVCache(
            kv_dtype, spec.num_layers, num_blocks, block_size, spec.num_kv_heads, spec.head_dim
        )
        self._blocks = self.kv.array().reshape(num_blocks, -1)
        buffers, slot_widths = _plan_buffers(program)
        self._native = _native.Program(
            num_threads, max_rows, MAX_LOGIT_ROWS, buffers, slot_widths, program.head_start, self.kv
        )
        for rope in program.ropes:
            inv_freq = np.asarray(rope.inv_freq, dtype=np.float32)
            self._native.add_rope(inv_freq, rope.scale, max_position, rope.interleaved)
        for op in program.ops:
            self._compile(op)
        max_k = max(w.cols for op in program.ops for w in op.weights)
        max_heads = max(op.params["num_heads"] for op in program.ops if op.kind is Kind.ATTENTION)
        self._native.finish(max_k, max_heads, spec.head_dim)
        self._logits = self._native.logits()

    def _compile(self, op: Op) -> None:
        native, p = self._native, op.params
        out = op.output.id if op.output is not None else -1
        packed = [self.weights[w.name] for w in op.weights]
        if op.kind is Kind.EMBED:
            native.embed(out, packed[0], p["scale"])
        elif op.kind is Kind.RMS_NORM:
            native.rms_norm(op.inputs[0].id, out, op.vectors[0], p["eps"], 0, 1)
        elif op.kind is Kind.HEAD_NORM:
            native.rms_norm(out, out, op.vectors[0], p["eps"], p["column"], p["num_heads"])
        elif op.kind is Kind.LINEAR:
            bias = op.vectors[0] if op.vectors else np.empty(0, np.float32)
            native.linear(op.inputs[0].id, out, packed, bias, p["accumulate"], p["precise"])
        elif op.kind is Kind.ADD:
            native.add(op.inputs[0].id, op.inputs[1].id)
        elif op.kind is Kind.ROPE:
            native.rope(out, p["rope"], p["column"], p["num_heads"], p["head_dim"])
        elif op.kind is Kind.KV_WRITE:
            native.kv_write(op.inputs[0].id, p["layer"], p["k_column"], p["v_column"])
        elif op.kind is Kind.ATTENTION:
            native.attention(
                op.inputs[0].id,
                out,
                p["layer"],
                p["num_heads"],
                p["scale"],
                p["q_column"],
                p["window"],
                p["softcap"],
            )
        elif op.kind is Kind.ACT_MUL:
            native.act_mul(op.inputs[0].id, out, p["activation"])
        elif op.kind is Kind.SELECT_LOGIT_ROWS:
            native.select_logit_rows(op.inputs[0].id, out)
        elif op.kind is Kind.SOFTCAP:
            native.softcap(out, p["cap"])
        else:
            raise AssertionError(f"op without a native kernel: {op.kind}")

    def forward(
        self, inputs: StepInputs, sampler: NativeSampler | None = None, plan: SamplingPlan | None = None
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Run a step; yields (first, logits [<= 64, vocab]) for the logit rows from `first` on.

        The arrays are views that the next slice or step overwrites. A step without logit rows yields nothing,
        but has run: the first `next()` does all the work. With a plan, one row of it per logit row, a slice
        is sampled in the native call that computes it.
        """
        num_logit_rows = inputs.num_logit_rows
        step = (inputs.data, inputs.num_rows, inputs.num_items, num_logit_rows)
        sampling = (None if sampler is None else sampler.native, plan)
        self._native.run(*step, self.program.vocab_size, self.max_position, *sampling)
        for first in range(0, num_logit_rows, MAX_LOGIT_ROWS):
            if first > 0:
                self._native.run_head(*step, first, *sampling)
            yield first, self._logits[: min(MAX_LOGIT_ROWS, num_logit_rows - first)]

    @property
    def block_bytes(self) -> int:
        """Bytes of K and V of one block, all layers."""
        return int(self._blocks.shape[1])

    def get_block(self, block: int) -> np.ndarray:
        """K and V of one block as uint8 [block_bytes], where they are."""
        view: np.ndarray = self._blocks[block]
        return view

    def set_block(self, block: int, data: np.ndarray) -> None:
        """Put back what `get_block` gave."""
        self._blocks[block] = data

    def copy_blocks(self, pairs: np.ndarray) -> None:
        """Copy whole blocks in all layers.

        Args:
            pairs: int32 [num_copies, 2] of (src, dst).

        Raises:
            ValueError: another dtype or shape, a block that does not exist, or a destination that is in
                another copy.
        """
        if pairs.dtype != np.int32 or pairs.ndim != 2 or pairs.shape[1] != 2 or not pairs.flags.c_contiguous:
            raise ValueError(f"expected pairs as contiguous int32 [n, 2], got {pairs.dtype} {pairs.shape}")
        self._native.copy_blocks(pairs)

    @property
    def native_seconds(self) -> float:
        """Seconds that the program's threads have spent in native calls, the sampler's included."""
        return float(self._native.seconds)

    @property
    def num_threads(self) -> int:
        """Threads of the parallel region."""
        return int(self._native.num_threads)

    @property
    def num_bytes(self) -> int:
        """Bytes of activations and tables, without weights and KV pool. Tables grow with the positions."""
        return int(self._native.num_bytes)


def check_head_dim(head_dim: int) -> None:
    """Raises ValueError for heads that the attention kernels do not have: their tiles are 16 columns wide."""
    if head_dim % 16 != 0 or not 16 <= head_dim <= _native.MAX_HEAD_DIM:
        raise ValueError(
            f"expected head_dim as a multiple of 16 up to {_native.MAX_HEAD_DIM}, got {head_dim}"
        )


def _check_weights(program: Program, weights: Mapping[str, _native.PackedWeight]) -> None:
    for op in program.ops:
        for weight in op.weights:
            if weight.name not in weights:
                raise ValueError(f"expected a packed weight named {weight.name}, got none")
            packed = weights[weight.name]
            if (packed.rows, packed.cols) != (weight.rows, weight.cols):
                expected, got = [weight.rows, weight.cols], [packed.rows, packed.cols]
                raise ValueError(f"expected {weight.name} {expected}, got {got}")


def _plan_buffers(program: Program) -> tuple[list[tuple[int, int]], list[int]]:
    """Place buffers in as few arena slots as their lifetimes allow: ([(slot, width)], slot widths).

    A slot holds buffers of one width. Slots of the output head have a negative width: they have
    MAX_LOGIT_ROWS rows. The buffer that `select_logit_rows` reads stays: later slices of the head read it
    again. The logits come last.
    """
    last_use: dict[int, int] = {}
    for index, op in enumerate(program.ops):
        for buffer in (*op.inputs, *((op.output,) if op.output is not None else ())):
            last_use[buffer.id] = index
    end = len(program.ops)
    last_use[program.ops[program.head_start].inputs[0].id] = end
    last_use[program.logits.id] = end

    slot_of: dict[int, int] = {}
    slot_widths: list[int] = []
    free: dict[int, list[int]] = {}
    expiring: dict[int, list[Buffer]] = {}
    for index, op in enumerate(program.ops):
        in_head = index >= program.head_start
        if op.output is not None and op.output.id not in slot_of:
            width = -op.output.width if in_head else op.output.width
            spare = free.get(width)
            if spare:
                slot = spare.pop()
            else:
                slot = len(slot_widths)
                slot_widths.append(width)
            slot_of[op.output.id] = slot
            expiring.setdefault(last_use[op.output.id], []).append(op.output)
        for buffer in expiring.pop(index, []):
            slot = slot_of[buffer.id]
            free.setdefault(slot_widths[slot], []).append(slot)
    buffers = [(slot_of[b.id], b.width) for b in program.buffers]
    assert program.logits.id == len(buffers) - 1, "the logits must be the last buffer"
    return buffers, slot_widths
