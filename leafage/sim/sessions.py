"""Programs of several requests, each made of the answers before it: conversations and agents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Protocol

from leafage.errors import InvalidParameterError
from leafage.sim.distributions import Distribution, Exponential, LogNormal, Uniform
from leafage.sim.generated import Generated, check_at_least, setting
from leafage.sim.workload import FreshTokens, SimRequest, TokenRuns


class Program(Protocol):
    """What goes on when one of its requests has been answered. All that it will say is drawn when it starts,
    so that the order in which answers come changes nothing about them."""

    def follow(self, request: SimRequest, time: float) -> Iterable[SimRequest]:
        """The requests that the end of `request` at `time` brings about."""
        ...


@dataclass(slots=True, eq=False)
class ProgramRequest(SimRequest):
    """A request of a program. It carries the program's state, so the workload itself has none."""

    program: Program | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Programs(Generated):
    """What conversations and agents have in common: programs that start at the arrivals."""

    system_tokens: int = setting(100, "instructions at the head of all prompts")
    max_total_tokens: int | None = setting(
        None, "a program ends before prompt and answer of a request have more tokens than so many"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("system_tokens", self.system_tokens, 0)

    def check_room(self, first: Distribution) -> None:
        """Raises:
        InvalidParameterError: the first prompt may leave no room for an answer.
        """
        if self.max_total_tokens is not None:
            lowest = self.system_tokens + first.bounds[1] + 1
            if self.max_total_tokens < lowest:
                raise InvalidParameterError(
                    "max_total_tokens leaves no room after the first prompt",
                    value=self.max_total_tokens,
                    limit=f"at least {lowest:g}",
                    remedy="raise it, or bound the lengths",
                )

    def finished(self, request: SimRequest, time: float) -> Iterable[SimRequest]:
        assert isinstance(request, ProgramRequest) and request.program is not None
        return request.program.follow(request, time)


# -- conversations -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Turn:
    question: range
    answer: range
    pause: float


@dataclass(slots=True)
class _Conversation:
    name: str
    turns: Iterator[_Turn]
    number: int = 0

    def next(self, history: TokenRuns, time: float) -> Iterator[SimRequest]:
        turn = next(self.turns, None)
        if turn is not None:
            self.number += 1
            yield ProgramRequest(
                request_id=f"{self.name}.{self.number}",
                arrival=time + turn.pause,
                prompt=TokenRuns(history, turn.question),
                output=turn.answer,
                program=self,
            )

    def follow(self, request: SimRequest, time: float) -> Iterator[SimRequest]:
        assert isinstance(request.prompt, TokenRuns) and isinstance(request.output, range)
        return self.next(TokenRuns(request.prompt, request.output), time)


@dataclass(frozen=True, kw_only=True)
class MultiTurn(Programs):
    """Conversations: each prompt is all that was said before, answers too, and a new question. It comes when
    the user has read the last answer. A conversation ends early where a turn is refused."""

    num_sessions: int = setting(100, "conversations in all; `rate` is theirs")
    turns: Distribution = setting(Uniform(1, 8), "distribution of their numbers of turns")
    question_tokens: Distribution = setting(Uniform(20, 99), "distribution of question lengths")
    output_tokens: Distribution = setting(Uniform(40, 119), "distribution of answer lengths")
    think_seconds: Distribution = setting(
        Exponential(20), "distribution of the time from the end of an answer to the next question"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("num_sessions", self.num_sessions, 1)
        self.check_room(self.question_tokens)

    def __iter__(self) -> Iterator[SimRequest]:
        tokens, rng = FreshTokens(), self.rng("sessions")
        system = TokenRuns(tokens.take(self.system_tokens))
        for number, arrival in enumerate(islice(self.arrival_times(), self.num_sessions)):
            conversation = _Conversation(str(number), iter(self._draw(tokens, rng)))
            yield from conversation.next(system, arrival)

    def _draw(self, tokens: FreshTokens, rng: Random) -> list[_Turn]:
        turns: list[_Turn] = []
        length = self.system_tokens
        for number in range(self.turns.draw_length(rng)):
            num_question, num_answer = (
                self.question_tokens.draw_length(rng),
                self.output_tokens.draw_length(rng),
            )
            pause = self.think_seconds.draw(rng)
            length += num_question + num_answer
            if self.max_total_tokens is not None and length > self.max_total_tokens:
                if number:
                    break
                num_answer -= length - self.max_total_tokens
                length = self.max_total_tokens
            turns.append(_Turn(tokens.take(num_question), tokens.take(num_answer), pause if number else 0.0))
        return turns


# -- agents --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Step:
    """One or several calls of the model from the same history: what is said to it and what it answers. Then a
    tool runs, and says something."""

    calls: list[tuple[range, range]]
    tool_seconds: float
    observation: range


@dataclass(slots=True)
class _Agent:
    name: str
    steps: Iterator[_Step]
    history: TokenRuns
    number: int = 0
    step: _Step | None = None
    num_running: int = 0

    def next(self, time: float) -> Iterator[SimRequest]:
        self.step = next(self.steps, None)
        if self.step is None:
            return
        self.number += 1
        self.num_running = len(self.step.calls)
        for branch, (instruction, answer) in enumerate(self.step.calls):
            yield ProgramRequest(
                request_id=f"{self.name}.{self.number}" + (f".{branch}" if len(self.step.calls) > 1 else ""),
                arrival=time,
                prompt=TokenRuns(self.history, instruction),
                output=answer,
                program=self,
            )

    def follow(self, request: SimRequest, time: float) -> Iterable[SimRequest]:
        step = self.step
        assert step is not None
        self.num_running -= 1
        if self.num_running:
            return ()
        said = (part for call in step.calls for part in call)
        self.history = TokenRuns(self.history, *said, step.observation)
        return self.next(time + step.tool_seconds)


@dataclass(frozen=True, kw_only=True)
class Agents(Programs):
    """Agents that think, call a tool, read what it says and go on, all in one growing prompt (Yao et al.,
    "ReAct", ICLR 2023). Now and then several continuations are tried side by side, and all of them are read
    before the next step (Yao et al., "Tree of Thoughts", NeurIPS 2023). An agent stops where a request is
    refused."""

    system_tokens: int = setting(1000, "instructions and tools, at the head of all prompts")
    num_agents: int = setting(100, "agents in all; `rate` is theirs")
    task_tokens: Distribution = setting(Uniform(50, 200), "distribution of task lengths")
    steps: Distribution = setting(Uniform(3, 8), "distribution of their numbers of steps")
    output_tokens: Distribution = setting(Uniform(30, 150), "distribution of answer lengths")
    tool_seconds: Distribution = setting(Exponential(2), "distribution of the time that a tool takes")
    observation_tokens: Distribution = setting(
        LogNormal(200, 0.8, 20, 2000), "distribution of the lengths of what tools say"
    )
    branches: int = setting(3, "continuations that are tried in a step that branches")
    branch_share: float = setting(0.2, "share of the steps that branch")
    branch_tokens: Distribution = setting(
        Uniform(10, 30), "distribution of what each branch is told for itself"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("num_agents", self.num_agents, 1)
        check_at_least("branches", self.branches, 2)
        if not 0 <= self.branch_share <= 1:
            raise InvalidParameterError(
                "branch_share is out of range", value=self.branch_share, limit="0 to 1"
            )
        self.check_room(self.task_tokens)

    def __iter__(self) -> Iterator[SimRequest]:
        tokens, rng = FreshTokens(), self.rng("agents")
        system = tokens.take(self.system_tokens)
        for number, arrival in enumerate(islice(self.arrival_times(), self.num_agents)):
            task = tokens.take(self.task_tokens.draw_length(rng))
            steps = self._draw(len(system) + len(task), tokens, rng)
            yield from _Agent(str(number), iter(steps), TokenRuns(system, task)).next(arrival)

    def _draw(self, length: int, tokens: FreshTokens, rng: Random) -> list[_Step]:
        """All steps of an agent whose first prompt has `length` tokens."""
        steps: list[_Step] = []
        for number in range(self.steps.draw_length(rng)):
            branches = self.branches if rng.random() < self.branch_share else 1
            told = [self.branch_tokens.draw_length(rng) if branches > 1 else 0 for _ in range(branches)]
            answers = [self.output_tokens.draw_length(rng) for _ in range(branches)]
            tool_seconds = self.tool_seconds.draw(rng)
            num_observation = self.observation_tokens.draw_length(rng)
            if self.max_total_tokens is not None:
                room = self.max_total_tokens - length
                if any(t + a > room for t, a in zip(told, answers, strict=True)):
                    if number:
                        break
                    told, answers = [0], [min(answers[0], room)]
            calls = [(tokens.take(t), tokens.take(a)) for t, a in zip(told, answers, strict=True)]
            steps.append(_Step(calls, tool_seconds, tokens.take(num_observation)))
            length += sum(told) + sum(answers) + num_observation
        return steps
