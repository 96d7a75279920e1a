from __future__ import annotations

import pickle
from typing import Any

import pytest

from leafage.core.batch import SampledToken
from leafage.core.request import Delta, FinishKind, FinishReason, Request, Sequence, derive
from leafage.core.sampling_params import SamplingParams
from leafage.engine.metrics import EngineMetrics
from leafage.engine.output import Logprob, OutputProcessor, RequestOutput, TokenLogprobs, TokenTexts
from leafage.engine.stop import StopStringCheck
from leafage.errors import RequestError

EOS = FinishReason(FinishKind.STOP)
LENGTH = FinishReason(FinishKind.LENGTH)


class Side:
    """The output side alone: deltas go in by hand."""

    def __init__(self, tokenizer: Any, clock: Any) -> None:
        self.tokenizer = tokenizer
        self.check = StopStringCheck()
        self.metrics = EngineMetrics(clock)
        self.processor = OutputProcessor(tokenizer, self.check, self.metrics)
        self.seen: list[RequestOutput] = []
        self.requests: dict[str, Request] = {}

    def add(self, request_id: str = "r", *, stream: bool = False, **params: Any) -> Request:
        request = Request(request_id, [3, 4, 5], SamplingParams(**params), seed=11)
        number = len(self.requests) * 10
        request.sequences = [
            Sequence(number + i, i, 11 + i, [3, 4, 5], 3, request_id=request_id)
            for i in range(request.params.num_sequences)
        ]
        self.requests[request_id] = request
        self.metrics.added(request)
        self.processor.add(request, "abc", self.seen.append, stream=stream)
        return request

    def give(
        self,
        tokens: str | list[int] = "",
        finish: FinishReason | None = None,
        *,
        request_id: str = "r",
        index: int = 0,
        top: list[tuple[int, float]] | None = None,
        logprob: float = -0.5,
        **fields: Any,
    ) -> list[str]:
        ids = self.tokenizer.encode(tokens) if isinstance(tokens, str) else tokens
        sampled = [SampledToken(token_id, logprob, 2, top or []) for token_id in ids]
        delta = Delta(request_id, index, sampled, finish, **fields)
        return self.processor.process([delta]) + self.processor.deliver()


@pytest.fixture
def side(tokenizer: Any) -> Side:
    class Clock:
        time = 0.0

        def now(self) -> float:
            self.time += 1.0
            return self.time

    return Side(tokenizer, Clock())


def test_one_output_at_the_end_with_everything(side: Side) -> None:
    side.add()
    side.give("he", num_cached=2)
    side.give("llo")
    assert side.seen == []
    side.give([0], EOS)
    [output] = side.seen
    [completion] = output.outputs
    assert output.finished and output.num_cached_tokens == 0 and output.prompt == "abc"
    assert completion.text == "hello"
    assert completion.token_ids == [*side.tokenizer.encode("hello"), 0]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)
    assert completion.seed == 11
    assert completion.logprobs is None and completion.cumulative_logprob is None


def test_streamed_pieces_join_to_the_whole(side: Side) -> None:
    side.add(stream=True, logprobs=0)
    for char in "héllo":
        side.give(char)
    side.give([0], EOS)
    pieces = [output.outputs[0] for output in side.seen]
    assert "".join(piece.text for piece in pieces) == "héllo"
    assert [token_id for piece in pieces for token_id in piece.token_ids] == [
        *side.tokenizer.encode("héllo"),
        0,
    ]
    assert sum(len(piece.logprobs or []) for piece in pieces) == 7
    assert [output.finished for output in side.seen] == [False] * 5 + [True]
    assert pieces[-1].cumulative_logprob == pytest.approx(-3.5)


def test_s06_no_half_characters_in_a_stream(side: Side) -> None:
    text = "삼겹살😊👨‍👩‍👧🇰🇷"
    side.add(stream=True)
    for token_id in side.tokenizer.encode(text):
        side.give([token_id])
    side.give([0], EOS)
    assert "\ufffd" not in "".join(output.outputs[0].text for output in side.seen)
    assert "".join(output.outputs[0].text for output in side.seen) == text


def test_a_character_that_never_ends_shows_as_replacement(side: Side) -> None:
    side.add()
    side.give([0xE2 + 3, 0x82 + 3], LENGTH)
    assert side.seen[0].outputs[0].text == "\ufffd"


def test_stop_token_id_is_in_the_tokens_and_not_in_the_text(side: Side) -> None:
    side.add(stop_token_ids=[ord("!") + 3], skip_special_tokens=False)
    side.give("hi")
    side.give("!", FinishReason(FinishKind.STOP, ord("!") + 3))
    completion = side.seen[0].outputs[0]
    assert completion.text == "hi" and completion.token_ids[-1] == ord("!") + 3
    assert completion.stop_reason == ord("!") + 3


def test_include_stop_str_in_output_shows_the_stop_token(side: Side) -> None:
    side.add(stop_token_ids=[ord("!") + 3], include_stop_str_in_output=True)
    side.give("hi!", FinishReason(FinishKind.STOP, ord("!") + 3))
    assert side.seen[0].outputs[0].text == "hi!"


def test_stop_string_found_by_the_scheduler(side: Side) -> None:
    request = side.add(stream=True, stop=["END"])
    reason = None
    for char in "ok EN":
        assert side.check.finished(request.sequences[0], ord(char) + 3) is None
        side.give(char)
    reason = side.check.finished(request.sequences[0], ord("D") + 3)
    assert reason is not None
    side.give("D", reason)
    assert "".join(output.outputs[0].text for output in side.seen) == "ok "
    assert side.seen[-1].outputs[0].stop_reason == "END"
    assert all("E" not in output.outputs[0].text for output in side.seen)


def test_a_stop_string_completed_by_the_last_allowed_token_is_a_stop(side: Side) -> None:
    """The scheduler may see max_tokens before it asks for stop strings; the user must see 'stop'."""
    side.add(stop=["END"])
    side.give("x")
    side.give("END", LENGTH)
    completion = side.seen[0].outputs[0]
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("x", "stop", "END")


def test_logprobs_have_the_token_first_and_no_duplicates(side: Side) -> None:
    side.add(logprobs=2)
    token = ord("a") + 3
    side.give("a", LENGTH, top=[(9, -0.1), (token, -0.5), (10, -2.0)])
    completion = side.seen[0].outputs[0]
    assert completion.logprobs is not None
    [position] = completion.logprobs
    assert list(position) == [token, 9]
    assert position[token].rank == 2 and position[token].decoded_token == "a"
    assert position[9].rank == 1 and position[9].logprob == -0.1


def test_logprobs_read_like_a_list_and_are_made_when_they_are_read(tokenizer: Any) -> None:
    asked = []

    class Texts(TokenTexts):
        def of(self, token_id: int) -> str:
            asked.append(token_id)
            return f"<{token_id}>"

    tokens = [SampledToken(i, -0.5, 2, [(7, -0.1), (i, -0.5), (8, -2.0)]) for i in range(3)]
    logprobs = TokenLogprobs(tokens, 2, Texts(tokenizer))
    assert len(logprobs) == 3 and not asked
    last = {2: Logprob(-0.5, 2, "<2>"), 7: Logprob(-0.1, 1, "<7>")}
    assert logprobs[-1] == last and logprobs[1:] == [logprobs[1], last]
    assert asked[:2] == [2, 7]
    assert logprobs == list(logprobs) == [logprobs[0], logprobs[1], last] and logprobs != []
    assert logprobs + logprobs == [*logprobs, *logprobs] == list(logprobs) + logprobs
    assert pickle.loads(pickle.dumps(logprobs)) == list(logprobs)
    assert repr(logprobs) == repr(list(logprobs))
    with pytest.raises(IndexError):
        logprobs[3]


def test_prompt_logprobs_start_with_none_and_stream_once(side: Side) -> None:
    side.add(stream=True, prompt_logprobs=1)
    side.give(prompt_logprobs=[SampledToken(4, -1.0, 1, [(4, -1.0)])])
    assert side.seen == []  # nothing that a user reads yet
    side.give("a", prompt_logprobs=[SampledToken(5, -2.0, 3, [(6, -0.2)])])
    side.give("b", LENGTH)
    first, last = side.seen
    assert last.prompt_logprobs is None
    assert first.prompt_logprobs is not None
    assert first.prompt_logprobs[0] is None
    assert [list(position or {}) for position in first.prompt_logprobs[1:]] == [[4], [5, 6]]


def test_all_sequences_of_a_request_come_in_one_output(side: Side) -> None:
    side.add(n=2)
    side.give("a", LENGTH, index=1)
    assert side.seen == []
    side.give("b", LENGTH, index=0)
    [output] = side.seen
    assert [(c.index, c.text, c.seed) for c in output.outputs] == [(0, "b", 11), (1, "a", derive(11, 1))]


def test_abort_gives_what_there_is(side: Side) -> None:
    side.add(stop=["END"])
    request = side.requests["r"]
    side.check.finished(request.sequences[0], ord("E") + 3)
    side.give("E")
    side.processor.end("r", FinishReason(FinishKind.ABORT))
    completion = side.seen[0].outputs[0]
    assert (completion.text, completion.finish_reason) == ("E", "abort")
    assert side.seen[0].finished
    side.processor.end("r", FinishReason(FinishKind.ABORT))
    assert len(side.seen) == 1


def test_abort_in_a_stream_ends_only_what_still_runs(side: Side) -> None:
    side.add(stream=True, n=2)
    side.give("a", LENGTH, index=0)
    side.processor.end("r", FinishReason(FinishKind.ABORT))
    assert [(c.index, c.finish_reason) for o in side.seen for c in o.outputs] == [(0, "length"), (1, "abort")]


def test_deltas_of_unknown_requests_are_dropped(side: Side) -> None:
    assert side.give("x", request_id="gone") == []


@pytest.mark.parametrize("stream", [False, True])
def test_undecodable_token_ends_its_request_and_no_other(side: Side, stream: bool) -> None:
    side.add("bad", stream=stream)
    side.add("good")
    assert side.give([258], None if stream else LENGTH, request_id="bad") == ["bad"]
    side.give("fine", LENGTH, request_id="good")
    bad, good = side.seen
    assert bad.outputs[0].finish_reason == "error" and "KeyError" in str(bad.error)
    assert good.outputs[0].text == "fine" and good.error is None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("end", ["finish", "stop", "abort"])
def test_text_is_made_when_it_is_sent(side: Side, stream: bool, end: str) -> None:
    """Whoever reads only the end pays nothing before; what was sent is the same."""
    side.add("r", stream=stream)
    side.give("caf", request_id="r")
    side.give([0xC3 + 3], request_id="r")
    made = [text.text.num_tokens for text in side.processor._requests["r"].sequences]
    assert made == [4 if stream else 0]
    if end == "abort":
        side.processor.end("r", FinishReason(FinishKind.ABORT))
        assert "".join(o.outputs[0].text for o in side.seen) == "caf\ufffd"
        return
    last, why = ([0xA9 + 3, 0], EOS) if end == "stop" else ([0xA9 + 3], LENGTH)
    side.give(last, why, request_id="r")
    assert "".join(o.outputs[0].text for o in side.seen) == "caf\u00e9"
    assert [t for o in side.seen for t in o.outputs[0].token_ids][-1] == last[-1]


def test_a_sink_that_raises_fails_its_request_and_no_other(side: Side) -> None:
    side.add("good", stream=True)
    request = Request("bad", [3], SamplingParams(), sequences=[Sequence(99, 0, 0, [3], 1)])

    def sink(output: RequestOutput) -> None:
        raise RuntimeError("nobody reads this")

    side.processor.add(request, None, sink, stream=True)
    assert side.give("x", request_id="bad") == ["bad"]
    side.give("x", LENGTH, request_id="good")
    assert len(side.seen) == 1


def test_a_sink_that_raises_once_is_told_of_every_sequence_that_it_missed(side: Side) -> None:
    """Both sequences end in one step, and the sink stumbles over the first: neither may be lost silently."""
    sequences = [Sequence(99 + i, 0, i, [3], 1) for i in range(2)]
    request = Request("bad", [3], SamplingParams(n=2), sequences=sequences)
    seen: list[RequestOutput] = []

    def sink(output: RequestOutput) -> None:
        seen.append(output)
        if len(seen) == 1:
            raise RuntimeError("once")

    side.processor.add(request, None, sink, stream=True)
    deltas = [Delta("bad", i, [SampledToken(ord("x") + 3, 0.0)], finish=LENGTH) for i in range(2)]
    assert side.processor.process(deltas) == []
    assert side.processor.deliver() == ["bad"]
    assert len(seen) == 2 and seen[1].finished and "once" in str(seen[1].error)
    assert [(c.index, c.finish_reason) for c in seen[1].outputs] == [(0, "error"), (1, "error")]


def test_times_are_those_of_the_request(side: Side) -> None:
    side.add()
    side.give("a", LENGTH)
    assert side.seen[0].metrics is not None
    assert side.seen[0].metrics.arrival_time == 1.0


@pytest.mark.parametrize("stream", [False, True])
def test_best_of_gives_the_n_most_likely_best_first_when_all_have_ended(side: Side, stream: bool) -> None:
    request = side.add(n=2, best_of=3, stream=stream)
    for index, logprob in ((2, -0.75), (0, -2.0), (1, -1.0)):
        assert side.seen == []
        side.give("ab", index=index, logprob=logprob)
        side.give("c", LENGTH, index=index, logprob=logprob)
    [output] = side.seen
    assert output.finished
    assert [(c.index, c.cumulative_logprob, c.text) for c in output.outputs] == [
        (0, -2.25, "abc"),
        (1, -3.0, "abc"),
    ]
    assert [c.seed for c in output.outputs] == [derive(request.seed, 2), derive(request.seed, 1)]
    assert all(c.logprobs is None for c in output.outputs)


def test_best_of_as_many_as_n_streams_like_n(side: Side) -> None:
    side.add(n=1, best_of=1, stream=True)
    side.give("a")
    assert len(side.seen) == 1


def test_a_failed_best_of_tells_every_answer_why(side: Side) -> None:
    side.add(n=1, best_of=2, stream=True)
    side.give("a", index=1, logprob=-9.0)
    side.processor.end("r", FinishReason(FinishKind.ERROR, error=RequestError("gone")))
    [output] = side.seen
    assert output.finished and "gone" in str(output.error) and len(output.outputs) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_beams_come_whole_with_their_logprobs(side: Side, stream: bool) -> None:
    side.add(n=2, beam_width=4, logprobs=1, stop=["c"], stream=stream)
    top = [(3, -0.5), (4, -1.0)]
    side.give("abc", FinishReason(FinishKind.STOP, "c"), index=0, top=top)
    side.give([*side.tokenizer.encode("ab"), 0], EOS, index=1, top=top)
    answers = [completion for output in side.seen for completion in output.outputs]
    assert [(c.index, c.text, c.stop_reason, c.seed) for c in answers] == [
        (0, "ab", "c", None),
        (1, "ab", None, None),
    ]
    assert [len(c.logprobs or ()) for c in answers] == [3, 3]
    assert answers[0].cumulative_logprob == -1.5
