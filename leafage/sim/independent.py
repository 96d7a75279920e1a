"""Requests that share nothing: lengths from distributions. One answer each, several, or a beam search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from leafage.sim.distributions import MAX_TOKENS, SHAREGPT_OUTPUT, SHAREGPT_PROMPT, Distribution
from leafage.sim.generated import Generated, check_at_least, check_sequences, setting
from leafage.sim.workload import FreshTokens, SimRequest


@dataclass(frozen=True, kw_only=True)
class Independent(Generated):
    """Requests with prompts of their own."""

    num_requests: int = setting(1000, "requests in all")
    prompt_tokens: Distribution = setting(SHAREGPT_PROMPT, "distribution of prompt lengths")
    output_tokens: Distribution = setting(SHAREGPT_OUTPUT, "distribution of answer lengths")
    max_total_tokens: int | None = setting(
        None, "longer answers end where prompt and answer have so many tokens"
    )
    n: int = setting(1, "answers to each prompt, drawn side by side")
    beam_width: int | None = setting(None, "answer by beam search with so many beams")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("num_requests", self.num_requests, 1)
        check_sequences(self.n, self.beam_width)
        if self.max_total_tokens is not None:
            longest = int(self.prompt_tokens.bounds[1])
            check_at_least("max_total_tokens", self.max_total_tokens, min(longest, MAX_TOKENS) + 1)

    def __len__(self) -> int:
        return self.num_requests

    def __iter__(self) -> Iterator[SimRequest]:
        tokens, lengths = FreshTokens(), self.rng("lengths")
        for number, arrival in enumerate(islice(self.arrival_times(), self.num_requests)):
            num_prompt = self.prompt_tokens.draw_length(lengths)
            num_output = self.output_tokens.draw_length(lengths)
            if self.max_total_tokens is not None:
                num_output = min(num_output, self.max_total_tokens - num_prompt)
            yield SimRequest(
                request_id=str(number),
                arrival=arrival,
                prompt=tokens.take(num_prompt),
                output=tokens.take(num_output),
                n=self.n,
                beam_width=self.beam_width,
            )
