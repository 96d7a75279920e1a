"""From the items of a batch to the sampler's plan, and from its results to outputs.

What a row draws depends on its own logits, parameters, seed and position alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from leafage.core.batch import Batch, Item, ItemOutput, Logits, SampledToken
from leafage.kernels.native_sampling import NativeSampler, SamplingPlan, SamplingState

NOT_FINITE = "the model's logits are not finite"
BAN = float("-inf")
NAN = float("nan")


@dataclass(slots=True)
class _Sequence:
    """What the sampler keeps of a sequence: its native state, how much of its history the penalties have
    counted (None: it has no penalties), and whether its parameters name tokens to favour or to ban."""

    state: SamplingState
    num_seen: int | None
    has_bias: bool

    def see(self, history: list[int], num_prompt_tokens: int) -> None:
        """Count what is new in the history."""
        assert self.num_seen is not None
        if self.num_seen < num_prompt_tokens:
            self.state.see(history[self.num_seen : num_prompt_tokens], False)
            self.num_seen = num_prompt_tokens
        self.state.see(history[self.num_seen :], True)
        self.num_seen = len(history)


@dataclass(slots=True)
class SampledRows:
    """The logit rows of one step, in the order of `StepInputs.logit_rows`.

    Attributes:
        outputs: one per item of the batch, filled by `Sampler.finish`.
        rows: per row the output of its item, the list there that its tokens go to, and how many they are.
        plan: what the rows draw; None without rows.
    """

    outputs: list[ItemOutput]
    rows: list[tuple[ItemOutput, list[SampledToken], int]] = field(default_factory=list)
    plan: SamplingPlan | None = None


class Sampler:
    """Sampling for all sequences of an executor; keeps what the penalties count, per sequence.

    Args:
        vocab_size: length of a row of logits.
        num_threads: threads of the program whose steps sample.
    """

    def __init__(self, vocab_size: int, num_threads: int = 1) -> None:
        self.native = NativeSampler(vocab_size, num_threads=num_threads)
        self._vocab_size = vocab_size
        self._sequences: dict[int, _Sequence] = {}

    def release(self, seq_ids: Iterable[int]) -> None:
        """Forget these sequences."""
        for seq_id in seq_ids:
            self._sequences.pop(seq_id, None)

    def start(self, batch: Batch) -> SampledRows:
        """What to draw from each logit row of a batch."""
        sampled = SampledRows([ItemOutput() for _ in batch.items])
        rows = sampled.rows
        states: list[SamplingState] = []
        seeds: list[int] = []
        positions: list[int] = []
        targets: list[int] = []
        bias: list[tuple[int, int, float]] = []
        for item, output in zip(batch.items, sampled.outputs, strict=True):
            if item.logits is Logits.NONE:
                continue
            samples = item.samples
            if item.logits is Logits.ALL:
                # The model's own view of the prompt: penalties and bias are for drawing.
                state = SamplingState(self._vocab_size, num_top=item.top_k_logprobs)
                for position in range(item.start + 1, item.start + len(item.token_ids) + (not samples)):
                    states.append(state)
                    if position < item.num_prompt_tokens:
                        rows.append((output, output.prompt_logprobs, 1))
                        seeds.append(0)
                        positions.append(0)
                        targets.append(item.history[position])
                    else:
                        rows.append((output, output.prompt_logprobs, 0))
                if not samples:
                    continue
            sequence = self._sequences.get(item.seq_id)
            if sequence is None:
                sequence = self._sequences[item.seq_id] = self._new_sequence(item)
            if sequence.num_seen is not None:
                sequence.see(item.history, item.num_prompt_tokens)
            if sequence.has_bias or item.banned_token_ids:
                bias += [(len(rows), token_id, value) for token_id, value in _bias(item).items()]
            states.append(sequence.state)
            rows.append((output, output.sampled, len(samples)))
            for sample in samples:
                seeds.append(sample.seed)
                positions.append(sample.position)
                targets.append(-1)
        if rows:
            num_draws = [row[2] for row in rows]
            sampled.plan = SamplingPlan(self._vocab_size, states, num_draws, seeds, positions, targets, bias)
        return sampled

    def finish(self, sampled: SampledRows) -> list[ItemOutput]:
        """The outputs of a batch, once its plan has run."""
        plan = sampled.plan
        if plan is None:
            return sampled.outputs
        tokens, logprobs, ranks = plan.tokens, plan.logprobs, plan.ranks
        end = 0
        for (output, to, count), usable, top in zip(sampled.rows, plan.usable, plan.tops, strict=True):
            begin, end = end, end + count
            if usable:
                for i in range(begin, end):
                    rank = ranks[i]  # 0: nothing but the token was asked for
                    to.append(SampledToken(tokens[i], logprobs[i] if rank else NAN, rank, top))
            else:
                output.row_error = NOT_FINITE
        return sampled.outputs

    def _new_sequence(self, item: Item) -> _Sequence:
        params = item.params
        penalties = {
            "repetition_penalty": params.repetition_penalty,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
        }
        state = SamplingState(
            self._vocab_size,
            temperature=params.temperature,
            top_p=params.top_p,
            min_p=params.min_p,
            top_k=params.top_k,
            num_top=_num_top(item),
            **penalties,
        )
        counts = params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty
        return _Sequence(state, 0 if counts else None, bool(params.logit_bias or params.bad_words_token_ids))


def _num_top(item: Item) -> int:
    """How many of the most likely tokens to report; -1: no log-probabilities at all."""
    params = item.params
    if params.beam_width is not None:
        return item.top_k_logprobs
    if params.logprobs is not None:
        return params.logprobs
    return -1 if params.best_of is None else 0


def _bias(item: Item) -> dict[int, float]:
    """What is added to logits: the request's bias; -inf for ids banned before min_tokens, and for the
    last id of each bad word whose other ids end the output."""
    bias = {**item.params.logit_bias, **dict.fromkeys(item.banned_token_ids, BAN)}
    for word in item.params.bad_words_token_ids:
        head = list(word[:-1])
        output = item.history[max(item.num_prompt_tokens, len(item.history) - len(head)) :]
        if output[-len(head) :] == head if head else True:
            bias[word[-1]] = BAN
    return bias
