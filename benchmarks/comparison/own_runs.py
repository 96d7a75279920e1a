"""How Leafage does what `bench.run_once` does not: conversations, and each request by itself."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

from peers.chat import Chat

from leafage import bench
from leafage.core.request import derive
from leafage.core.sampling_params import SamplingParams
from leafage.engine.engine_thread import EngineThread
from leafage.engine.output import RequestOutput
from leafage.llm import LLM


def converse(llm: LLM, work: bench.Work, *, reset_cache: bool = True) -> tuple[Chat, bench.Run]:
    """Conversations, greedily. As in the peers' drivers, a turn is there for the step after the one that
    ended the turn before it: it is submitted on the engine's thread, which takes it before its next step.

    Raises the error with which a turn ended or was refused.
    """
    build = llm.build
    chat = Chat(work.prompts, work.output_lengths, work.turns)
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    cached: list[int] = []
    if reset_cache:
        llm.reset_prefix_cache()
    before = llm.stats()
    thread = EngineThread(build.engine, build.outputs)

    def submit(numbers: Sequence[int]) -> None:
        new = [
            build.inputs.request(
                f"turn-{number}",
                chat.send(number),
                SamplingParams(temperature=0.0, max_tokens=chat.length(number), ignore_eos=True),
            )
            for number in numbers
        ]
        accepted = thread.submit(new, [partial(take, number) for number in numbers], stream=True)
        accepted.add_done_callback(refused)

    def refused(accepted: Future[None]) -> None:
        if (error := accepted.exception()) is not None:
            ended.put(error)

    def take(number: int, output: RequestOutput) -> None:
        if output.error is not None:
            ended.put(output.error)
            return
        chat.receive(number, output.outputs[0].token_ids)
        if output.finished:
            cached.append(output.num_cached_tokens)
            following = chat.next(number)
            if following is None:
                ended.put(None)
            else:
                submit([following])

    try:
        submit(chat.first())
        for _ in chat.first():
            if (error := ended.get()) is not None:
                raise error
    finally:
        thread.close()
    after = llm.stats()
    figures = chat.figures()
    run = bench.Run(
        figures["wall"],
        None,
        figures["first_token"],
        after["native_seconds"] - before["native_seconds"],
        int(after["num_steps"] - before["num_steps"]),
        sum(cached),
        tokens=chat.tokens,
        counted=bench.counted(before, after),
    )
    return chat, run


def alone(llm: LLM, work: bench.Work) -> list[bench.Run]:
    """Each sequence by itself from an empty cache: the turns of conversations, and what a request for several
    draws, by the seed of each."""
    runs: list[bench.Run] = []
    said: list[int] = []
    for i, (prompt, length) in enumerate(zip(work.prompts, work.output_lengths, strict=True)):
        said = (said if i % work.turns else []) + prompt
        for index in range(work.n):
            how = {"temperature": work.temperature, "seed": derive(i, index)} if work.temperature else None
            runs.append(bench.run_once(llm, bench.Work([said], [length]), sampling=how))
        said = said + runs[-1].tokens[0]
    return runs
