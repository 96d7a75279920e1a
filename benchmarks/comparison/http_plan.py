"""What is run for `compare.py --http`: the servers, spoken to by one client, and OpenVINO in its process."""

from __future__ import annotations

from collections.abc import Callable

from comparison import plan
from comparison.runs import Runner, Step
from comparison.sides import LEAFAGE, Side, Sides
from leafage import bench

WORKLOADS: dict[str, Callable[[int, int], bench.Work]] = {
    "http-w3": bench.w3,
    "http-w4": bench.w4,
    "http-w5": bench.w5,
    "http-w7": bench.w7,
}
ROWS = {
    "http-w3": "64 mixed requests",
    "http-w4": "few-shot with shared prefixes",
    "http-w5": "chat: conversations of five turns",
    "http-w7": "parallel sampling: four sequences of a prompt",
    "http-start": "process start until ready, and until a first answer",
}
OURS = Side(LEAFAGE, "Q4_1", http=True)
VLLM = Side("vllm", "BF16", http=True)
LLAMACPP, LLAMACPP_Q4_1 = (Side("llamacpp", form, http=True) for form in ("Q8_0", "Q4_1"))
PEERS = (LLAMACPP, VLLM, LLAMACPP_Q4_1)
SIDES = (OURS, *PEERS, plan.OPENVINO)
ONCE = (LLAMACPP_Q4_1,)
"""Only printed, and slow: run in the first repetition."""


def groups(name: str) -> Callable[[int], list[list[Step]]]:
    """The steps of a workload: each side with ours next to it."""

    def of_repetition(repetition: int) -> list[list[Step]]:
        work = WORKLOADS[name](100_000 * (repetition + 1), plan.VOCABULARY)
        return [
            [Step(side, name.removeprefix("http-").upper(), work)]
            for side in SIDES
            if repetition == 0 or side not in ONCE
        ]

    return of_repetition


def starts(repetition: int) -> list[list[Step]]:
    return [[Step(side, "start", bench.Work([[1000]], [1]))] for side in (OURS, LLAMACPP, VLLM)]


def run(rows: set[str], sides: Sides, runner: Runner, repetitions: int) -> None:
    """Everything that the rows need. Failures of sides end up in the runner's record."""
    for name in WORKLOADS:
        if name in rows:
            runner.block(f"{name[5:].upper()} over HTTP", repetitions, groups(name))
    if "http-start" in rows:
        sides.end([plan.OPENVINO, *ONCE])
        runner.block("starts of servers", repetitions, starts)
    sides.end(sides.running())
