"""What a step takes on a device: what was measured there with this model, else a roofline over its work.

Constants as the lecture behind this project used them: 2 operations per weight and token, the output head for
rows that are sampled only, exact causal attention; weights read once a step without the input embedding, and
the K/V of every item's context.
"""

from __future__ import annotations

from dataclasses import dataclass

from leafage.core.batch import Batch
from leafage.core.swap import RestoreCost
from leafage.errors import InvalidParameterError
from leafage.sim.hardware import Hardware
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.step_costs import MeasuredSteps


@dataclass(slots=True)
class Load:
    """The work of a step, counted.

    Attributes:
        tokens: that go through the layers.
        rows: that go through the output head.
        pairs: of a token and a token that it attends to, itself included.
        context: tokens whose K/V is read, once for each item that has them.
        moved_blocks: between the KV cache and swap space.
        copied_slots: inside the KV cache.
        items: sequences that have tokens in it.
        decode_context: of `context`, and of `pairs`, what belongs to items with one token.
        starts: 1 when the engine had nothing to do before, else 0.
    """

    tokens: int = 0
    rows: int = 0
    pairs: int = 0
    context: int = 0
    moved_blocks: int = 0
    copied_slots: int = 0
    items: int = 0
    decode_context: int = 0
    starts: int = 0


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of computing, of reading weights, of reading K and V, and of overhead (launching, reducing,
    moving blocks)."""

    compute: float
    weights: float
    context: float
    overhead: float


def load_of(batch: Batch) -> Load:
    """Count the work of a batch."""
    tokens = rows = pairs = context = decode_context = 0
    for item in batch.items:
        count, start = len(item.token_ids), item.start
        tokens += count
        rows += count if item.params.prompt_logprobs is not None else (1 if item.samples else 0)
        pairs += count * start + count * (count + 1) // 2
        context += start + count
        if count == 1:
            decode_context += start + 1
    moved = len(batch.swap_out) + len(batch.swap_in)
    copied = sum(copy.num_slots for copy in batch.copies)
    return Load(tokens, rows, pairs, context, moved, copied, len(batch.items), decode_context)


def decode_load(num_seqs: int, context: int) -> Load:
    """The work of a step in which sequences with `context` tokens in all decode one token each."""
    return Load(
        tokens=num_seqs,
        rows=num_seqs,
        pairs=context,
        context=context,
        items=num_seqs,
        decode_context=context,
    )


class CostModel:
    """Seconds of a batch on one device, or on `tensor_parallel` linked ones that share the model.

    Weights and KV heads are divided among the devices; each layer ends with two all-reduces of its tokens'
    activations (Shoeybi et al., Megatron-LM, 2019), in rings.

    Raises:
        InvalidParameterError: the heads cannot be divided, or the devices are not linked.
    """

    def __init__(
        self, hardware: Hardware, spec: LLMSpec, *, tensor_parallel: int = 1, block_size: int = 16
    ) -> None:
        if tensor_parallel < 1 or spec.num_heads % tensor_parallel:
            raise InvalidParameterError(
                "tensor_parallel does not divide the heads",
                value=tensor_parallel,
                limit=f"a divisor of {spec.num_heads}",
            )
        if tensor_parallel > 1 and not hardware.link_bandwidth:
            raise InvalidParameterError(
                f"{hardware.name} has no link to share a model over",
                value=f"tensor_parallel = {tensor_parallel}",
                limit="1",
                remedy="set link_bandwidth in a hardware file, or with --set hardware.link_bandwidth",
            )
        self.hardware, self.spec = hardware, spec
        self.tensor_parallel = tensor_parallel
        self.block_size = block_size
        # KV heads that cannot be divided further are kept several times.
        self.kv_bytes_per_token = spec.kv_bytes_per_token / min(tensor_parallel, spec.num_kv_heads)
        """On each device."""
        flops = hardware.product_flops * tensor_parallel
        decode, prompt = hardware.attention_slowdown(block_size)
        bandwidth = hardware.bandwidth * hardware.memory_efficiency
        self._per_token = 2 * spec.num_layer_params / flops
        self._per_row = 2 * spec.num_head_params / flops
        self._per_pair = 4 * spec.num_layers * spec.num_heads * spec.head_dim * prompt
        self._per_pair /= hardware.attention_flops * tensor_parallel
        read = spec.weight_bytes_each * (spec.num_layer_params + spec.num_head_params) / tensor_parallel
        self._weights = read / bandwidth
        self._per_context = self.kv_bytes_per_token * decode / bandwidth
        self._per_slot = 2 * self.kv_bytes_per_token / bandwidth
        self._per_moved = (
            self.kv_bytes_per_token * block_size / hardware.host_bandwidth + hardware.copy_seconds
        )
        self._step = hardware.step_seconds
        self._measured: MeasuredSteps | None = None
        steps = hardware.steps
        if steps is not None and steps.spec.has_shape_of(spec) and tensor_parallel == 1:
            there = hardware.attention_slowdown(steps.block_size)
            self._measured = MeasuredSteps(steps, decode=decode / there[0], prompt=prompt / there[1])
        if tensor_parallel > 1:
            ring = 2 * (tensor_parallel - 1) / tensor_parallel
            reduces = 2 * spec.num_layers
            self._per_token_reduced = reduces * ring * 2 * spec.hidden_size / hardware.link_bandwidth
            self._step += reduces * hardware.link_seconds
        else:
            self._per_token_reduced = 0.0

    @property
    def is_measured(self) -> bool:
        """Steps take what was measured with this model; else the roofline."""
        return self._measured is not None

    def seconds(self, batch: Batch) -> float:
        """What the batch takes."""
        return self.seconds_of(load_of(batch))

    def seconds_of(self, load: Load) -> float:
        """What a step with this work takes."""
        if self._measured is not None:
            seconds = self._measured.seconds_of(load) if load.tokens else 0.0
        else:
            seconds = self._roofline(load)
        if load.moved_blocks or load.copied_slots:
            seconds += load.moved_blocks * self._per_moved + load.copied_slots * self._per_slot
        return seconds

    def _roofline(self, load: Load) -> float:
        compute = self._compute(load)
        memory = self._weights + load.context * self._per_context
        seconds = (compute if compute > memory else memory) + self._step if load.tokens else 0.0
        if self._per_token_reduced:
            seconds += load.tokens * self._per_token_reduced
        return seconds

    def parts_of(self, load: Load, steps: int, seconds: float) -> Parts:
        """What so many steps, whose work adds up to `load`, would take for each reason alone.

        Args:
            seconds: what they took. Measured steps are no roofline but a sum: of it, a step without tokens is
                overhead, one token reads the weights, decode rows read K and V, and computing is the rest.
        """
        moving = load.moved_blocks * self._per_moved
        if self._measured is not None:
            overhead = steps * self._step
            weights = max(0.0, steps * self._measured.seconds_of(Load(tokens=1, rows=1, items=1)) - overhead)
            context = self._measured.seconds_of_context(load.context)
            computing = max(0.0, seconds - weights - context - overhead - moving)
            return Parts(computing, weights, context, overhead + moving)
        return Parts(
            compute=self._compute(load),
            weights=steps * self._weights,
            context=load.context * self._per_context,
            overhead=steps * self._step + load.tokens * self._per_token_reduced + moving,
        )

    def compute_seconds(self, num_tokens: int, num_rows: int) -> float:
        """What computing so many tokens in large steps takes, attention left out."""
        return self._compute(Load(tokens=num_tokens, rows=num_rows))

    def _compute(self, load: Load) -> float:
        return load.tokens * self._per_token + load.rows * self._per_row + load.pairs * self._per_pair

    def prefill_seconds(self, num_tokens: int, num_cached: int = 0) -> float:
        """A step with one prompt of `num_tokens`, the first `num_cached` of which are in the cache."""
        count = num_tokens - num_cached
        pairs = count * num_cached + count * (count + 1) // 2
        return self.seconds_of(Load(tokens=count, rows=1, pairs=pairs, context=num_tokens, items=1))

    @property
    def kv_pool_bytes(self) -> int:
        """Memory of one device that weights leave to the KV cache.

        Raises:
            InvalidParameterError: the weights do not fit.
        """
        hardware, spec = self.hardware, self.spec
        room = hardware.memory_share * hardware.memory_bytes
        weights = spec.weight_bytes / self.tensor_parallel
        if weights >= room:
            raise InvalidParameterError(
                f"{spec.name} does not fit on {self.tensor_parallel} x {hardware.name}",
                value=f"{weights / 1e9:.1f} GB of weights on each",
                limit=f"{room / 1e9:.1f} GB",
                remedy="raise tensor_parallel, or choose other hardware",
            )
        return int(room - weights)

    @property
    def restore_cost(self) -> RestoreCost:
        """What `preemption = auto` compares, by the same constants."""
        block_bytes = self.kv_bytes_per_token * self.block_size
        return RestoreCost(
            per_block=2 * block_bytes / self.hardware.host_bandwidth,
            per_transfer=self.hardware.copy_seconds,
            per_token=self._per_token,
            per_pair=self._per_pair,
        )
