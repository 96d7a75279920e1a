"""Code 03: parallel samples and beams that share blocks, computed by the real engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean

import numpy as np

from leafage.core.batch import Batch
from leafage.core.request import derive
from leafage.core.sampling_params import SamplingParams
from leafage.sim.reproduce.demo import Cell, Check, Column, Demo, Outcome, Source, Table, Tools
from leafage.sim.reproduce.engine_runs import MODELS, Runner

PROMPT, OUTPUT, BLOCK = 62, 40, 8
SAMPLES = {2: (26, 19, 26.9, 30.4), 4: (52, 31, 40.4, 45.6), 8: (104, 55, 47.1, 53.2)}
"""n: blocks without and with sharing, saved by counting and by formula in per cent; from exercise 2."""
SEED = 7

BEAM_PROMPT, BEAM_STEPS, BEAM_BLOCK = 40, 30, 4
LECTURE_BEAMS = {2: 47, 4: 70, 8: 80}
"""Width: mean saving in per cent."""
NAIVE_WIDTHS = {"tiny": (2, 4, 8), "smollm2": (4,)}
"""By model; computing everything again takes the real one seconds."""


@dataclass(slots=True)
class Blocks:
    """Blocks that sequences held, step by step, while they were several.

    Attributes:
        held: different ones.
        separate: as many as there would be if none were shared.
    """

    held: list[int] = field(default_factory=list)
    separate: list[int] = field(default_factory=list)

    def watch(self, runner: Runner) -> None:
        """Count from now on."""

        def look(batch: Batch) -> None:
            tables = runner.tables()
            if len(tables) > 1:
                self.held.append(len({block for table in tables for block in table}))
                self.separate.append(sum(map(len, tables)))

        runner.on_scheduled = look

    @property
    def mean_saving(self) -> float:
        """Share of the blocks that sharing saves, mean over the steps."""
        return mean(1 - held / separate for held, separate in zip(self.held, self.separate, strict=True))


def formula(n: int) -> float:
    """What n samples save if blocks had one token: (n - 1) prompts of n whole sequences."""
    return (n - 1) * PROMPT / (n * (PROMPT + OUTPUT))


@dataclass(slots=True)
class Sampled:
    """One run of n parallel samples: blocks at the end, copies, and the answers' ids."""

    blocks: int
    copies: int
    answers: list[list[int]]


def sample(runner: Runner, prompt: list[int], n: int) -> Sampled:
    """n answers to one prompt."""
    blocks = Blocks()
    blocks.watch(runner)
    before = runner.engine.scheduler.kv.counters.copied_blocks
    params = SamplingParams(n=n, seed=SEED, temperature=1.0, max_tokens=OUTPUT, ignore_eos=True)
    [answered] = runner.run([prompt], [params])
    copies = runner.engine.scheduler.kv.counters.copied_blocks - before
    return Sampled(max(blocks.held), copies, answered.token_ids)


def alone(runner: Runner, prompt: list[int], i: int) -> list[int]:
    """The answer to the prompt with sample i's own seed, by itself."""
    params = SamplingParams(seed=derive(SEED, i), temperature=1.0, max_tokens=OUTPUT, ignore_eos=True)
    [answered] = runner.run([prompt], [params])
    return answered.token_ids[0]


def apart(runner: Runner, prompt: list[int], n: int) -> int:
    """Blocks of the same answers as n requests that share nothing."""
    blocks = Blocks()
    blocks.watch(runner)
    params = [
        SamplingParams(seed=derive(SEED, i), temperature=1.0, max_tokens=OUTPUT, ignore_eos=True)
        for i in range(n)
    ]
    runner.run([prompt] * n, params)
    return max(blocks.held)


def demo_samples(tools: Tools) -> Outcome:
    """Blocks, copies and answers of parallel sampling, on both models."""
    rows: list[list[Cell]] = []
    checks = []
    for model, name in MODELS.items():
        runner = Runner(tools, model, block_size=BLOCK, prefix_index="none")
        prompt = runner.prompt(PROMPT)
        expected = [alone(runner, prompt, i) for i in range(max(SAMPLES))]
        for n, (separate, shared, saved, by_formula) in SAMPLES.items():
            result, without = sample(runner, prompt, n), apart(runner, prompt, n)
            saving = round(100 * (1 - result.blocks / without), 1)
            rows.append([name, n, without, result.blocks, saving, saved, by_formula, result.copies])
            same = result.answers == expected[:n] and len(set(map(tuple, result.answers))) == n
            checks += [
                Check.exact(f"{name}, n = {n}: blocks without sharing", without, separate),
                Check.exact(f"{name}, n = {n}: blocks with sharing, 7 + n x (1 + 5)", result.blocks, shared),
                Check.exact(f"{name}, n = {n}: saved, %", saving, saved),
                Check.exact(f"{name}, n = {n}: copies on write", result.copies, n - 1),
                Check.exact(f"{name}, n = {n}: every answer is that of its seed alone", same, True),
            ]
        full = sample(runner, runner.prompt(PROMPT + 2), 4)
        checks.append(Check.exact(f"P4: {name}: copies when the prompt fills its last block", full.copies, 0))
    for n, row in SAMPLES.items():
        checks.append(Check.exact(f"n = {n}: saved by the formula, %", round(100 * formula(n), 1), row[3]))
    columns = [
        Column("model"),
        Column("n"),
        Column("blocks, not shared", Source.OURS),
        Column("blocks, shared", Source.OURS),
        Column("saved, %", Source.OURS),
        Column("saved, %", Source.LECTURE),
        Column("saved by formula, %", Source.LECTURE),
        Column("copies", Source.OURS),
    ]
    return Outcome(
        [Table("Parallel sampling", columns, rows)],
        checks,
        [
            f"Prompt {PROMPT}, {OUTPUT} output tokens, blocks of {BLOCK}. The formula, (n - 1) Lp / (n (Lp + "
            "Lo)), knows no blocks; what it promises too much is the prompt's last block, which every "
            "sequence has for itself: n - 1 copies and the original.",
            "P4: a copy is made at the first write into a shared block alone: with n = 8, 7 copies for "
            f"{8 * OUTPUT} tokens.",
        ],
    )


Tops = Callable[[list[list[int]]], list[list[tuple[int, float]]]]
"""Token sequences -> for each the likeliest next tokens with their log-probabilities, best first."""


def naive_beam_search(tops: Tops, prompt: list[int], width: int, num_steps: int) -> list[list[int]]:
    """Beam search by its definition: a step computes every beam from its first token. Best answer first."""
    beams: list[tuple[np.float32, list[int]]] = [(np.float32(0), [])]
    for _ in range(num_steps):
        rows = tops([prompt + tokens for _, tokens in beams])
        candidates = [
            (-(score + np.float32(logprob)), i, token_id)
            for i, ((score, _), row) in enumerate(zip(beams, rows, strict=True))
            for token_id, logprob in row
        ]
        candidates.sort()
        beams = [(-negated, [*beams[i][1], token_id]) for negated, i, token_id in candidates[:width]]
    return [tokens for _, tokens in beams]


def tops_of(runner: Runner, width: int) -> Tops:
    """By an engine that keeps nothing between two calls. A step of `width` beams needs `width` a beam."""
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=width, ignore_eos=True)

    def tops(sequences: list[list[int]]) -> list[list[tuple[int, float]]]:
        answers = runner.run(sequences, [params] * len(sequences))
        return [answered.sequences[0][0].top[:width] for answered in answers]

    return tops


def beam_search(runner: Runner, prompt: list[int], width: int) -> tuple[list[list[int]], Blocks]:
    """The engine's answers, best first, and its blocks."""
    blocks = Blocks()
    blocks.watch(runner)
    params = SamplingParams(beam_width=width, n=width, max_tokens=BEAM_STEPS, ignore_eos=True)
    [answered] = runner.run([prompt], [params])
    runner.on_scheduled = None
    return answered.token_ids, blocks


def bound(width: int) -> float:
    """What beams would save that have all blocks in common, in per cent."""
    return 100 * (width - 1) / width


def demo_beams(tools: Tools) -> Outcome:
    """Beam search against one that computes everything again, and the blocks that it shares."""
    rows: list[list[Cell]] = []
    checks = []
    savings: dict[tuple[str, int], float] = {}
    for model, name in MODELS.items():
        runner = Runner(tools, model, block_size=BEAM_BLOCK, prefix_index="none", max_num_batched_tokens=1024)
        prompt = runner.prompt(BEAM_PROMPT)
        for width, said in LECTURE_BEAMS.items():
            answers, blocks = beam_search(runner, prompt, width)
            saving = savings[model, width] = round(100 * blocks.mean_saving, 1)
            rows.append([name, width, saving, said if model == "tiny" else None, bound(width)])
            if model == "tiny":
                low, high, text = bound(width) - 10, bound(width), f"{name}, width {width}: mean saving, %"
                checks.append(Check.band(text, saving, low, high, format="{:.1f}"))
            if width in NAIVE_WIDTHS[model]:
                naive = naive_beam_search(tops_of(runner, width), prompt, width, BEAM_STEPS)
                text = f"{name}, width {width}: all answers are those of naive beam search"
                checks.append(Check.exact(text, answers == naive, True))
    trained = [savings["smollm2", width] for width in LECTURE_BEAMS]
    checks.append(
        Check.shape(
            f"{MODELS['smollm2']}: the wider, the more is saved",
            ", ".join(f"{saving:.1f}%" for saving in trained),
            "rising, half of what can be and more",
            trained == sorted(trained)
            and all(bound(w) / 2 < s <= bound(w) for w, s in zip(LECTURE_BEAMS, trained, strict=True)),
        )
    )
    columns = [
        Column("model"),
        Column("width"),
        Column("mean saving, %", Source.OURS, "{:.1f}"),
        Column("mean saving, %", Source.LECTURE),
        Column("if all were shared, %", Source.NONE, "{:.1f}"),
    ]
    return Outcome(
        [Table("Beam search", columns, rows)],
        checks,
        [
            f"Prompt {BEAM_PROMPT}, {BEAM_STEPS} steps, blocks of {BEAM_BLOCK}. Saving: of the blocks that "
            "so many sequences without sharing would hold, mean over the steps. The lecture's model, of "
            "random weights, is not known; the band for ours ends where beams have all blocks in common.",
            "SmolLM2's beams have less in common than those of random weights: at width 8 it saves less than "
            "the lecture's model. The paper's 37.6% to 66.3% are of trained models, too, with less prompt "
            "for their output.",
        ],
    )


MIXED = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True),
    "3 samples": SamplingParams(n=3, seed=SEED, temperature=1.0, max_tokens=16, ignore_eos=True),
    "4 beams": SamplingParams(beam_width=4, n=4, max_tokens=16, ignore_eos=True),
    "one sample": SamplingParams(seed=SEED, temperature=1.0, max_tokens=16, ignore_eos=True),
}
"""Ways of decoding, for one batch."""


def demo_mixed(tools: Tools) -> Outcome:
    """Requests that decode in different ways, together and each alone."""
    rows: list[list[Cell]] = []
    checks = []
    for model, name in MODELS.items():
        runner = Runner(tools, model, block_size=BEAM_BLOCK, prefix_index="none")
        prompts = [runner.prompt(20 + i, skip=i) for i in range(len(MIXED))]
        sizes: list[int] = []

        def count(batch: Batch, sizes: list[int] = sizes) -> None:
            sizes.append(len({item.request_id for item in batch.items}))

        runner.on_scheduled = count
        together = runner.run(prompts, list(MIXED.values()))
        runner.on_scheduled = None
        for (way, params), prompt, answered in zip(MIXED.items(), prompts, together, strict=True):
            [by_itself] = runner.run([prompt], [params])
            same = answered.token_ids == by_itself.token_ids
            rows.append([name, way, len(answered.token_ids), "yes" if same else "no"])
            checks.append(
                Check.exact(f"{name}, {way}: the answers are those of the request alone", same, True)
            )
        checks.append(Check.exact(f"{name}: ways of decoding in one batch", max(sizes), len(MIXED)))
    columns = [
        Column("model"),
        Column("decoding"),
        Column("answers", Source.OURS),
        Column("as alone", Source.OURS),
    ]
    return Outcome(
        [Table("One batch", columns, rows)],
        checks,
        ["Who shares what stands in block tables and reference counts; the kernel sees lists of blocks."],
    )


DEMOS: Sequence[Demo] = (
    Demo(
        "code03-1",
        ("R4-1", "R4-2", "E2", "P4"),
        "Code 03 demo 1 and exercise 2: parallel samples share their prompt",
        demo_samples,
        model="smollm2",
        seconds=10,
    ),
    Demo(
        "code03-2",
        ("R4-3",),
        "Code 03 demo 2: beam search shares blocks and equals the naive one",
        demo_beams,
        model="smollm2",
        seconds=20,
    ),
    Demo(
        "mixed",
        ("R4-6",),
        "Section 4.3: samples, beams and greedy requests in one batch",
        demo_mixed,
        model="smollm2",
        seconds=3,
    ),
)
