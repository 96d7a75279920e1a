from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leafage.core.misses import PrefixMiss
from leafage.core.request import FinishKind, FinishReason
from leafage.core.sampling_params import SamplingParams
from leafage.engine.output import RequestOutput
from leafage.errors import ExecutorError, InvalidParameterError, RequestTooLargeError

MakeRig = Callable[..., Any]


def submit(
    rig: Any, request_id: str, prompt: Any, *, stream: bool = False, **params: Any
) -> list[RequestOutput]:
    """Add a request; the list fills as the rig runs."""
    seen: list[RequestOutput] = []
    params.setdefault("max_tokens", 20)
    new = rig.inputs.request(request_id, prompt, SamplingParams(**params))
    request = rig.engine.add_request(
        request_id,
        new.prompt_token_ids,
        new.params,
        priority=new.priority,
        cache_salt=new.cache_salt,
        tenant=new.tenant,
    )
    rig.outputs.add(request, new.prompt, seen.append, stream=stream)
    return seen


def text_of(seen: list[RequestOutput]) -> str:
    return "".join(output.outputs[0].text for output in seen)


def test_answer_and_finish_reasons(make_rig: MakeRig) -> None:
    rig = make_rig("hello")
    by_eos = submit(rig, "eos", "question")
    by_length = submit(rig, "length", "question", max_tokens=3)
    by_id = submit(rig, "id", "question", stop_token_ids=[ord("l") + 3])
    by_string = submit(rig, "string", "question", stop=["lo"])
    rig.run()
    results = [s[0].outputs[0] for s in (by_eos, by_length, by_id, by_string)]
    assert [(r.text, r.finish_reason, r.stop_reason) for r in results] == [
        ("hello", "stop", None),
        ("hel", "length", None),
        ("he", "stop", ord("l") + 3),
        ("hel", "stop", "lo"),
    ]
    assert results[0].token_ids[-1] == 0 and len(results[0].token_ids) == 6


def test_ignore_eos_goes_on(make_rig: MakeRig) -> None:
    rig = make_rig("hi")
    seen = submit(rig, "r", "question", ignore_eos=True, max_tokens=5)
    rig.run()
    assert len(seen[0].outputs[0].token_ids) == 5
    assert seen[0].outputs[0].finish_reason == "length"


def test_min_tokens_holds_for_stop_strings(make_rig: MakeRig) -> None:
    rig = make_rig("a.b.c.d")
    seen = submit(rig, "r", "question", stop=["."], min_tokens=3)
    rig.run()
    assert seen[0].outputs[0].text == "a.b"


def test_min_tokens_bans_the_ids_that_would_end_it(make_rig: MakeRig) -> None:
    """The sampler is told; masking is its business."""
    rig = make_rig("abcdef")
    banned: list[frozenset[int]] = []
    execute = rig.executor.execute
    rig.executor.execute = lambda batch: (
        banned.extend(i.banned_token_ids for i in batch.items) or execute(batch)
    )
    submit(rig, "r", "question", min_tokens=2, stop_token_ids=[9])
    rig.run()
    assert banned[:2] == [frozenset({0, 9})] * 2
    assert set(banned[2:]) == {frozenset()}


def test_many_requests_each_get_their_own_answer(make_rig: MakeRig) -> None:
    rig = make_rig(lambda prompt: prompt[::-1], num_blocks=24, max_num_seqs=5, max_num_batched_tokens=16)
    seen = {f"r{i}": submit(rig, f"r{i}", f"text number {i}", max_tokens=30) for i in range(12)}
    rig.run()
    for i in range(12):
        assert text_of(seen[f"r{i}"]) == f"text number {i}"[::-1]


def test_m11_a_full_pool_preempts_and_all_finish(make_rig: MakeRig) -> None:
    """4 x long outputs in a pool for one and a half."""
    rig = make_rig(lambda prompt: [*prompt, *prompt, *prompt], num_blocks=24, block_size=4)
    seen = [submit(rig, f"r{i}", f"prompt no. {i} ---", max_tokens=60) for i in range(4)]
    rig.run()
    assert rig.engine.scheduler.counters.preemptions > 0
    assert [text_of(s) for s in seen] == [f"prompt no. {i} ---" * 3 for i in range(4)]


def test_executor_error_ends_its_batch_and_the_engine_goes_on(make_rig: MakeRig) -> None:
    rig = make_rig("hello")
    rig.executor.fail_at = {3: ExecutorError("the GPU that is not there fell off")}
    first, second = submit(rig, "a", "one"), submit(rig, "b", "two")
    rig.run()
    assert [s[0].outputs[0].finish_reason for s in (first, second)] == ["error", "error"]
    assert "fell off" in str(first[0].error)
    third = submit(rig, "c", "one")
    rig.run()
    assert text_of(third) == "hello"


@pytest.mark.parametrize("error", [ValueError("bad shape"), MemoryError(), KeyError(3)])
def test_any_exception_of_an_executor_is_an_executor_error(make_rig: MakeRig, error: Exception) -> None:
    rig = make_rig("hello")
    rig.executor.fail_at = {2: error}
    seen = submit(rig, "a", "one")
    rig.run()
    assert isinstance(seen[0].error, ExecutorError)
    assert seen[0].error.__cause__ is error
    again = submit(rig, "b", "one")
    rig.run()
    assert text_of(again) == "hello"


def test_m07_keyboard_interrupt_is_not_swallowed(make_rig: MakeRig) -> None:
    rig = make_rig("hello")
    rig.executor.fail_at = {1: KeyboardInterrupt()}  # type: ignore[dict-item]
    submit(rig, "a", "one")
    with pytest.raises(KeyboardInterrupt):
        rig.engine.step()


def test_a_row_error_ends_one_request_only(make_rig: MakeRig) -> None:
    rig = make_rig("hello")
    rig.executor.row_errors = {ord("x") + 3: "logits are not finite"}
    bad, good = submit(rig, "bad", "xyz"), submit(rig, "good", "abc")
    rig.run()
    assert bad[0].outputs[0].finish_reason == "error" and "finite" in str(bad[0].error)
    assert text_of(good) == "hello"


def test_a_token_that_cannot_be_decoded_ends_one_request_only(make_rig: MakeRig) -> None:
    rig = make_rig(lambda prompt: [100, 258, 100] if prompt[0] == ord("x") + 3 else [104] * 5)
    bad = submit(rig, "bad", "xyz")
    bad_with_stop = submit(rig, "bad2", "xyzz", stop=["END"])
    good = submit(rig, "good", "abc")
    rig.run()
    for seen in (bad, bad_with_stop):
        assert seen[-1].outputs[0].finish_reason == "error"
    assert text_of(good) == "eeeee"


def test_abort_frees_everything_at_once(make_rig: MakeRig) -> None:
    rig = make_rig("a long answer")
    seen = submit(rig, "r", "question")
    other = submit(rig, "other", "question two")
    for _ in range(3):
        rig.outputs.process(rig.engine.step())
    active = rig.kv.num_active
    assert rig.engine.abort("r")
    rig.outputs.end("r", FinishReason(FinishKind.ABORT))
    rig.kv.check()
    assert rig.kv.num_active < active
    assert not rig.engine.abort("r")
    assert seen[0].outputs[0].finish_reason == "abort"
    rig.run()
    assert text_of(other) == "a long answer"


def test_p04_p19_the_books_balance_after_a_thousand_requests(make_rig: MakeRig) -> None:
    """free + cached + active = total, and nothing is active when nothing runs. Aborts included."""
    rig = make_rig(lambda prompt: prompt[:3], num_blocks=32)
    for i in range(1000):
        submit(rig, str(i), f"{i % 17} {i % 5} text", max_tokens=4)
        if i % 3 == 0:
            rig.outputs.process(rig.engine.step())
        if i % 7 == 0:
            rig.engine.abort(str(i))
    rig.run()
    assert rig.kv.num_active == 0
    assert rig.kv.num_free + rig.kv.num_cached == rig.kv.num_blocks


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], {}, "prompt is empty"),
        ([3, 300], {}, "prompt token id is outside the vocabulary; got 300; limit: 0 to 299"),
        ([3, -1], {}, "prompt token id is outside the vocabulary; got -1"),
        ([3], {"logit_bias": {300: 1.0}}, "logit_bias token id is outside the vocabulary; got 300"),
        ([3], {"stop_token_ids": [5, 301]}, "stop_token_ids is outside the vocabulary; got 301"),
        (
            [3],
            {"bad_words_token_ids": [[5], [4, 302]]},
            "bad_words_token_ids is outside the vocabulary; got 302",
        ),
    ],
)
def test_refused_by_name(make_rig: MakeRig, prompt: Any, params: dict[str, Any], message: str) -> None:
    rig = make_rig()
    with pytest.raises(InvalidParameterError, match=message):
        rig.engine.add_request("r", prompt, SamplingParams(**params))
    assert not rig.engine.has_unfinished


def test_m01_too_long_is_refused_at_once_with_length_limit_and_remedy(make_rig: MakeRig) -> None:
    rig = make_rig(max_model_len=64, num_blocks=16)
    with pytest.raises(RequestTooLargeError, match=r"100 prompt tokens.*63.*max_model_len"):
        rig.engine.add_request("r", [5] * 100, SamplingParams())
    seen = submit(rig, "next", "short")
    rig.run()
    assert text_of(seen) == "hello"


def test_a_running_id_is_refused_and_a_finished_one_is_free(make_rig: MakeRig) -> None:
    rig = make_rig()
    submit(rig, "r", "one")
    with pytest.raises(InvalidParameterError, match="in use"):
        rig.engine.add_request("r", [5], SamplingParams())
    rig.run()
    assert text_of(submit(rig, "r", "one")) == ""
    rig.run()


def test_drawn_seeds_are_reported_and_repeat_with_the_engines_seed(make_rig: MakeRig) -> None:
    def seeds(**settings: Any) -> list[int | None]:
        rig = make_rig(**settings)
        seen = [submit(rig, str(i), "one") for i in range(3)]
        rig.run()
        return [s[0].outputs[0].seed for s in seen]

    assert seeds(seed=1) == seeds(seed=1)
    assert len(set(seeds(seed=1))) == 3
    assert seeds(seed=1) != seeds(seed=2)
    rig = make_rig()
    seen = submit(rig, "r", "one", seed=42)
    rig.run()
    assert seen[0].outputs[0].seed == 42


def test_n_sequences_are_one_output_with_seeds_of_their_own(make_rig: MakeRig) -> None:
    rig = make_rig("hello")
    seen = submit(rig, "r", "question", n=3, seed=7, temperature=1.0, stop=["lo"])
    rig.run()
    [output] = seen
    assert [c.index for c in output.outputs] == [0, 1, 2]
    assert {c.text for c in output.outputs} == {"hel"}
    assert len({c.seed for c in output.outputs}) == 3 and output.outputs[0].seed == 7


def test_p07_a_broken_observer_never_reaches_the_loop(make_rig: MakeRig) -> None:
    rig = make_rig("hello")

    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise ValueError("Counters can only be incremented by non-negative amounts")

    rig.engine.observer = Broken()
    seen = submit(rig, "r", "one")
    rig.run()
    assert text_of(seen) == "hello"
    assert rig.engine.num_observer_errors > 5


def test_streamed_and_whole_answers_are_equal(make_rig: MakeRig) -> None:
    rig = make_rig("to be, or not to be; that 😊 is")
    whole = submit(rig, "whole", "one", stop=["that"], logprobs=2, max_tokens=60)
    streamed = submit(rig, "streamed", "two", stop=["that"], logprobs=2, max_tokens=60, stream=True)
    rig.run()
    assert text_of(streamed) == text_of(whole) == "to be, or not to be; "
    pieces = [output.outputs[0] for output in streamed]
    assert [t for p in pieces for t in p.token_ids] == whole[0].outputs[0].token_ids
    assert [lp for p in pieces for lp in p.logprobs or []] == whole[0].outputs[0].logprobs
    assert pieces[-1].cumulative_logprob == whole[0].outputs[0].cumulative_logprob
    assert len(streamed) == len(whole[0].outputs[0].token_ids)


def test_cached_tokens_are_reported(make_rig: MakeRig) -> None:
    rig = make_rig("hello")
    cold = submit(rig, "cold", "a prompt of some length")
    rig.run()
    warm = submit(rig, "warm", "a prompt of some length")
    other_salt = submit(rig, "salt", {"prompt": "a prompt of some length", "cache_salt": "s"})
    rig.run()
    assert cold[0].num_cached_tokens == 0
    assert warm[0].num_cached_tokens == len("a prompt of some length") - 1
    assert other_salt[0].num_cached_tokens == 0
    assert warm[0].prefix_miss is None
    assert cold[0].prefix_miss == other_salt[0].prefix_miss == PrefixMiss("no_match", 0, ord("a") + 3)


def test_p16_an_output_tells_the_first_divergent_token(make_rig: MakeRig) -> None:
    rig = make_rig("hello")
    submit(rig, "first", "a prompt of some length")
    rig.run()
    second = submit(rig, "second", "a prompt or some length", stream=True)
    rig.run()
    miss = second[0].prefix_miss
    assert miss == PrefixMiss("no_match", 10, ord("r") + 3, ord("f") + 3)
    assert all(out.prefix_miss == miss and out.num_cached_tokens == 10 for out in second)


def test_a_request_is_charged_to_its_tenant_or_its_salt(make_rig: MakeRig) -> None:
    rig = make_rig("hello")
    submit(rig, "salt", {"prompt": "abc", "cache_salt": "s"})
    submit(rig, "tenant", {"prompt": "abc", "cache_salt": "s", "tenant": "t"})
    waiting = rig.engine.scheduler.roster.waiting
    assert [(r.cache_salt, r.tenant) for r in waiting] == [("s", "s"), ("s", "t")]
    rig.run()


def test_reset_prefix_cache_leaves_running_requests_alone(make_rig: MakeRig) -> None:
    rig = make_rig("hello")
    submit(rig, "done", "a prompt of some length")
    rig.run()
    running = submit(rig, "running", "something else")
    rig.outputs.process(rig.engine.step())
    assert rig.kv.reset_prefix_cache() > 0
    rig.kv.check()
    assert rig.kv.num_cached == 0 and rig.kv.num_active > 0
    again = submit(rig, "again", "a prompt of some length")
    rig.run()
    assert text_of(running) == "hello" and again[0].num_cached_tokens == 0
