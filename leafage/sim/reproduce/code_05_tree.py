"""Code 05, demo 1: requests that find the K/V of others in the radix tree of a real engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from leafage.core.prefix_index import Node
from leafage.core.sampling_params import SamplingParams
from leafage.sim.reproduce.demo import Cell, Check, Column, Demo, Outcome, Source, Table, Tools
from leafage.sim.reproduce.engine_runs import MODELS, Answered, Runner

SYSTEM = "You are a helpful assistant. Answer in one short sentence.\n"
QUESTIONS = ("Q: What is the capital of France?\nA:", "Q: Name a large river in Africa.\nA:")
NEXT_QUESTIONS = ("\nQ: How many people live there?\nA:", "\nQ: Which river is there?\nA:")
MAX_TOKENS = 16
PARAMS = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)


@dataclass(slots=True)
class Served:
    """One request, as it went.

    Attributes:
        answered: with the cache of those before it.
        from_scratch: the same prompt with an empty cache.
    """

    name: str
    prompt: list[int]
    answered: Answered
    from_scratch: list[int]

    @property
    def tokens(self) -> list[int]:
        """Prompt and answer."""
        return self.prompt + self.answered.token_ids[0]


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of the tree without a branch: what a radix tree keeps in one node.

    Attributes:
        depth: branches above it.
    """

    depth: int
    tokens: list[int]


def runs_of(nodes: Iterable[Node]) -> list[Run]:
    """The stretches of a tree, parents first, children in the order of their tokens."""
    children: dict[int, list[Node]] = {}
    roots: dict[int, Node] = {}
    for node in nodes:
        assert node.parent is not None
        children.setdefault(node.parent.number, []).append(node)
        if node.parent.depth == 0:
            roots[node.parent.number] = node.parent
    found: list[Run] = []

    def visit(node: Node, depth: int) -> None:
        tokens = list(node.key)
        below = children.get(node.number, [])
        while len(below) == 1:
            tokens += below[0].key
            below = children.get(below[0].number, [])
        found.append(Run(depth, tokens))
        for child in sorted(below, key=lambda node: node.key):
            visit(child, depth + 1)

    for root in roots.values():
        for child in children[root.number]:
            visit(child, 0)
    return found


def serve(tools: Tools, model: str) -> tuple[list[Served], list[Run], Any]:
    """Four requests one after the other, and the tree that they leave; r3 and r4 go on where r1 ended."""
    runner = Runner(tools, model, block_size=1, prefix_index="radix")
    scratch = Runner(tools, model, block_size=1, prefix_index="none")
    encode = runner.build.tokenizer.encode
    system = encode(SYSTEM)
    served: list[Served] = []

    def ask(name: str, prompt: list[int]) -> None:
        [answered] = runner.run([prompt], [PARAMS])
        [alone] = scratch.run([prompt], [PARAMS])
        served.append(Served(name, prompt, answered, alone.token_ids[0]))

    for number, question in enumerate(QUESTIONS, start=1):
        ask(f"r{number}", system + encode(question, add_special=False))
    for number, question in enumerate(NEXT_QUESTIONS, start=3):
        ask(f"r{number}", served[0].tokens + encode(question, add_special=False))
    index = runner.engine.scheduler.kv.index
    return served, runs_of(index.nodes()), runner.build.tokenizer


def common_head(first: list[int], second: list[int]) -> int:
    """How many tokens two prompts begin with alike."""
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )


def demo(tools: Tools) -> Outcome:
    """Hits, answers and the tree, on both models."""
    tables, checks = [], []
    rows: list[list[Cell]] = []
    for model, name in MODELS.items():
        served, runs, tokenizer = serve(tools, model)
        r1, r2, r3, r4 = served
        for request in served:
            length, cached = len(request.prompt), request.answered.num_cached
            same = request.answered.token_ids[0] == request.from_scratch
            rows.append([name, request.name, length, cached, length - cached, "yes" if same else "no"])
            checks.append(
                Check.exact(f"{name}, {request.name}: the answer is the one from scratch", same, True)
            )
        shared = common_head(r1.prompt, r2.prompt)
        turn, fork = len(r1.tokens) - 1, common_head(r3.prompt, r4.prompt)
        checks += [
            Check.exact(f"{name}: r1 finds nothing", r1.answered.num_cached, 0),
            Check.exact(f"{name}: r2 finds all that it shares with r1", r2.answered.num_cached, shared),
            Check.exact(
                f"{name}: r3 finds r1's prompt and answer, but for its last token",
                r3.answered.num_cached,
                turn,
            ),
            Check.exact(f"{name}: r4 finds all that it shares with r3", r4.answered.num_cached, fork),
            Check.exact(
                f"{name}: the tree begins with what r1 and r2 share",
                runs[0].tokens == r1.prompt[:shared],
                True,
            ),
            Check.exact(
                f"{name}: the tree keeps every token once",
                sum(len(run.tokens) for run in runs),
                sum(len(request.tokens) - 1 for request in (r2, r3, r4)) - shared - fork,
            ),
        ]
        tables.append(
            Table(
                f"The tree of the {name}",
                [Column("tokens of a node"), Column("how many", Source.OURS)],
                [[_branch(run, tokenizer), len(run.tokens)] for run in runs],
            )
        )
    columns = [
        Column("model"),
        Column("request"),
        Column("prompt tokens", Source.OURS),
        Column("found", Source.OURS),
        Column("computed", Source.OURS),
        Column("as from scratch", Source.OURS),
    ]
    return Outcome(
        [Table("Requests one after the other", columns, rows), *tables],
        checks,
        [
            "r2 has another question than r1 behind the same system prompt; r3 and r4 are next turns of r1. "
            "The K/V of an answer's last token is computed only when a next turn needs it, by r3. Blocks "
            "have one token, as in the lecture."
        ],
    )


def _branch(run: Run, tokenizer: Any) -> str:
    text = tokenizer.decode(run.tokens).replace("\n", "\\n")
    shown = text if len(text) <= 70 else f"{text[:40]} ... {text[-25:]}"
    return f'{"— " * run.depth}"{shown}"'


DEMOS = (
    Demo(
        "code05-1",
        ("R7-3", "R7-4"),
        "Code 05 demo 1: later requests compute their own part only",
        demo,
        model="smollm2",
        seconds=5,
    ),
)
