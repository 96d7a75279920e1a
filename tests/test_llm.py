"""LLM over an executor without a model, and, at the end, on the real one. See also test_promises.py."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leafage import LLM, InvalidParameterError, PinRefusedError, RequestError, SamplingParams, TemplateError
from leafage.build import Build, ModelInfo
from leafage.config import EngineConfig
from leafage.errors import ExecutorError
from leafage.memory import MemoryPlan
from tests.engine.rig import Rig, make_rig

SHORT = SamplingParams(max_tokens=20)
ENDLESS = SamplingParams(max_tokens=9000)


def llm_over(rig: Rig, **settings: Any) -> LLM:
    plan = MemoryPlan(0, 0, 256, 64, 4, 128, 128)
    info = ModelInfo("fake", Path("fake.gguf"), "fake", "gguf", 0, 300, 128)
    build = Build(
        config=EngineConfig(),
        engine=rig.engine,
        inputs=rig.inputs,
        outputs=rig.outputs,
        metrics=rig.metrics,
        tokenizer=rig.tokenizer,  # type: ignore[arg-type]
        template_source=settings.get("template"),
        model=info,
        plan=plan,
        threads=1,
        kernels="none",
        default_sampling_params=settings.get("defaults", SHORT),
    )
    return LLM.from_build(build)


def endless() -> Rig:
    """An answer of nine seconds."""
    rig = make_rig(lambda prompt: [100] * 10_000, max_model_len=10_000, num_blocks=4000)
    rig.executor.pace = 0.001
    return rig


@pytest.fixture
def rig() -> Rig:
    return make_rig(lambda prompt: prompt[::-1], max_pinned_blocks=16)


@pytest.fixture
def llm(rig: Rig) -> Iterator[LLM]:
    with llm_over(rig) as llm:
        yield llm


def texts(outputs: list[Any]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def test_import_is_fast_and_loads_nothing_heavy() -> None:
    heavy = ("numpy", "jinja2", "rich", "tokenizers", "asyncio")
    code = f"import sys, leafage; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_every_public_name_can_be_imported() -> None:
    import leafage

    for name in leafage.__all__:
        assert getattr(leafage, name) is not None
    assert set(leafage.__all__) <= set(dir(leafage))
    with pytest.raises(AttributeError, match="no attribute 'LLN'"):
        leafage.LLN  # noqa: B018


def test_answers_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["a long prompt that ends late", "short", "of medium length"]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=40))
    assert texts(outputs) == [prompt[::-1] for prompt in prompts]
    assert [output.prompt for output in outputs] == prompts


@pytest.mark.parametrize(
    "prompts",
    ["abc", ["abc"], [100, 101, 102], [[100, 101, 102]], np.array([100, 101, 102]), {"prompt": "abc"},
     [{"prompt_token_ids": [100, 101, 102]}]],
)  # fmt: skip
def test_every_kind_of_prompt(llm: LLM, prompts: Any) -> None:
    assert texts(llm.generate(prompts)) == ["cba"]


def test_no_prompts_no_outputs(llm: LLM) -> None:
    assert llm.generate([]) == []


@pytest.mark.parametrize("prompt", ["", [[]], {"prompt": ""}])
def test_an_empty_prompt_is_refused(llm: LLM, prompt: Any) -> None:
    with pytest.raises(InvalidParameterError, match="prompt is empty"):
        llm.generate(prompt)


def test_parameters_one_for_all_or_one_for_each(llm: LLM) -> None:
    one, two = SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)
    assert texts(llm.generate(["abc", "def"], [one, two])) == ["c", "fe"]
    with pytest.raises(InvalidParameterError, match="1 for 2 prompts"):
        llm.generate(["abc", "def"], [one])


def test_defaults_come_from_the_model(rig: Rig) -> None:
    with llm_over(rig, defaults=SamplingParams(max_tokens=2)) as llm:
        assert texts(llm.generate("abc")) == ["cb"]
        assert "".join(out.outputs[0].text for out in llm.stream("abc")) == "cb"


def test_one_bad_prompt_stops_the_call_and_leaves_nothing_behind(llm: LLM, rig: Rig) -> None:
    with pytest.raises(InvalidParameterError, match="999"):
        llm.generate([[100], [999]])
    assert llm.stats()["num_requests_running"] == llm.stats()["num_requests_waiting"] == 0
    assert texts(llm.generate("abc")) == ["cba"]


def test_an_unknown_setting_is_refused_by_name() -> None:
    with pytest.raises(InvalidParameterError, match="unknown setting max_seqs"):
        LLM("smollm2", max_seqs=3)


def test_stream_gives_the_same_text_in_pieces(llm: LLM) -> None:
    pieces = list(llm.stream("abc def", SHORT))
    assert len(pieces) == 8 and pieces[-1].finished
    assert "".join(piece.outputs[0].text for piece in pieces) == "fed cba"


def test_stream_refuses_at_once(llm: LLM) -> None:
    with pytest.raises(InvalidParameterError, match="999"):
        llm.stream([999])


def test_leaving_a_stream_aborts_its_request() -> None:
    rig = endless()
    with llm_over(rig) as llm:
        for _ in llm.stream("abc", ENDLESS):
            break
        gc.collect()
        with llm.stream("def", ENDLESS) as stream:
            next(stream)
        assert list(stream) == []
        assert llm.stats()["request_success_abort"] == 2
        assert llm.stats()["kv_blocks_active"] == 0


def test_a_failed_request_raises_and_the_others_are_kept(llm: LLM, rig: Rig) -> None:
    rig.executor.row_errors = {ord("x") + 3: "the logits are not finite"}
    with pytest.raises(RequestError, match=r"1 of 2 requests.*not finite") as caught:
        llm.generate(["abc", "xyz"])
    good, bad = caught.value.outputs
    assert good.outputs[0].text == "cba" and bad.outputs[0].finish_reason == "error"


def test_a_failed_stream_raises_after_what_it_gave(llm: LLM, rig: Rig) -> None:
    rig.executor.fail_at = {3: ExecutorError("out of order")}
    seen = ""
    with pytest.raises(ExecutorError, match="out of order"):
        for piece in llm.stream("abcdef"):
            seen += piece.outputs[0].text
    assert seen == "fe"
    assert texts(llm.generate("abc")) == ["cba"]


def interrupt_at(rig: Rig, step: int) -> None:
    """Ctrl-C, as the terminal sends it, while a step is being computed."""
    execute = rig.executor.execute

    def interrupted(batch: Any) -> Any:
        if rig.executor.steps == step:
            os.kill(os.getpid(), signal.SIGINT)
        return execute(batch)

    rig.executor.execute = interrupted  # type: ignore[method-assign]


def test_ctrl_c_aborts_the_call_and_leaves_the_llm_usable() -> None:
    rig = endless()
    interrupt_at(rig, 3)
    with llm_over(rig) as llm:
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["abc", "def"], ENDLESS)
        stats = llm.stats()
        assert stats["request_success_abort"] == 2 and stats["kv_blocks_active"] == 0
        assert texts(llm.generate("abc", SamplingParams(max_tokens=2))) == ["aa"]


def test_ctrl_c_in_a_stream_aborts_it() -> None:
    rig = endless()
    interrupt_at(rig, 3)
    with llm_over(rig) as llm:
        stream = llm.stream("abc", ENDLESS)
        with pytest.raises(KeyboardInterrupt):
            for _ in stream:
                pass
        stream.close()
        assert llm.stats()["kv_blocks_active"] == 0


def test_several_threads_share_the_batch(rig: Rig) -> None:
    rig.executor.pace = 0.002
    with llm_over(rig) as llm:
        results: dict[int, str] = {}
        together = threading.Barrier(8)

        def client(number: int) -> None:
            together.wait()
            results[number] = texts(llm.generate(f"client {number}", SamplingParams(max_tokens=30)))[0]

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(client, range(8)))
        assert results == {i: f"client {i}"[::-1] for i in range(8)}
        assert rig.executor.steps < 8 * 9  # alone, each needs nine steps


def test_progress_is_reported(llm: LLM) -> None:
    seen: list[tuple[int, int]] = []
    llm.generate(["a", "b", "c"], progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_progress_bar_goes_to_stderr(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], use_tqdm=True)
    out, err = capfd.readouterr()
    assert out == "" and "2/2" in err


def test_chat_without_a_template_is_refused(llm: LLM) -> None:
    llm.tokenizer.chat_template = None
    with pytest.raises(TemplateError, match="--chat-template FILE"):
        llm.chat([{"role": "user", "content": "hi"}])


def test_close_joins_the_thread_and_refuses_later_calls(rig: Rig) -> None:
    before = threading.active_count()
    llm = llm_over(rig)
    assert threading.active_count() == before + 1
    llm.close()
    llm.close()
    assert threading.active_count() == before
    for call in (lambda: llm.generate("abc"), lambda: llm.stream("abc"), llm.stats):
        with pytest.raises(RequestError, match="closed"):
            call()


def test_close_lets_the_model_go_even_if_streams_are_kept() -> None:
    rig = make_rig("hello")
    llm = llm_over(rig)
    stream = llm.stream("abc")
    list(stream)
    executor = weakref.ref(rig.executor)
    del rig
    llm.close()
    assert executor() is None
    stream.close()


def test_a_dropped_llm_stops_its_thread(rig: Rig) -> None:
    before = threading.active_count()
    llm = llm_over(rig)
    llm.generate("abc")
    del llm
    gc.collect()
    assert threading.active_count() == before


def test_close_ends_calls_of_other_threads() -> None:
    llm = llm_over(endless())
    errors: list[BaseException] = []

    def client() -> None:
        try:
            llm.generate("abc", ENDLESS)
        except RequestError as error:
            errors.append(error)

    thread = threading.Thread(target=client)
    thread.start()
    while llm.stats()["num_steps"] < 2:
        pass
    llm.close()
    thread.join(20)
    assert len(errors) == 1 and "closed" in str(errors[0])


def test_a_script_that_ends_without_close_ends() -> None:
    """The engine's thread must not keep the interpreter, nor crash it."""
    code = (
        "from tests.test_llm import llm_over, endless, ENDLESS;"
        "llm = llm_over(endless()); s = llm.stream('abc', ENDLESS); next(s); print('done')"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env, check=False
    )
    assert (result.returncode, result.stdout.strip(), result.stderr) == (0, "done", "")


def test_a_pin_is_held_for_a_with_block(llm: LLM, rig: Rig) -> None:
    with llm.pin_prefix("a common beginning, ") as pin:
        assert (pin.num_tokens, pin.num_blocks, pin.ttl) == (20, 5, None)
        assert llm.list_pins() == [pin] and llm.stats()["kv_blocks_pinned"] == 5
        llm.reset_prefix_cache()
        assert llm.generate("a common beginning, an end")[0].num_cached_tokens == 20
    assert llm.list_pins() == [] and llm.stats()["num_pins"] == 0
    rig.kv.check()


def test_every_kind_of_prefix_can_be_pinned(llm: LLM) -> None:
    ids = [100, 101, 102]
    pins = [llm.pin_prefix(ids, 60.0, "a"), llm.pin_prefix({"prompt_token_ids": ids, "cache_salt": "a"})]
    assert [pin.cache_salt for pin in pins] == ["a", "a"] and llm.stats()["kv_blocks_pinned"] == 1
    listed = llm.list_pins()
    assert listed[0].ttl is not None and 0 < listed[0].ttl < 60.0
    with pytest.raises(InvalidParameterError, match="given twice"):
        llm.pin_prefix({"prompt_token_ids": ids, "cache_salt": "a"}, cache_salt="b")
    with pytest.raises(PinRefusedError, match=r"limit: 16 blocks\. Release others"):
        llm.pin_prefix([100] * 80)
    for pin in listed:
        pin.release()
        pin.release()
    assert llm.list_pins() == []


def test_ctrl_c_while_a_prefix_is_computed_pins_nothing() -> None:
    rig = make_rig("x", max_num_batched_tokens=16, max_pinned_blocks=16)
    rig.executor.pace = 0.1
    with llm_over(rig) as llm:
        threading.Timer(0.15, signal.raise_signal, [signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            llm.pin_prefix([100] * 60)
        assert llm.list_pins() == [] and llm.stats()["kv_blocks_active"] == 0


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(str(smollm2_path), kv_cache_tokens=4096) as llm:
        yield llm


GREEDY = SamplingParams(temperature=0, max_tokens=16)


@pytest.mark.real_model
def test_the_real_model_answers(smollm2: LLM) -> None:
    [output] = smollm2.generate("The capital of France is", GREEDY)
    assert output.outputs[0].text.startswith(" Paris")
    assert output.metrics is not None and output.metrics.time_to_first_token is not None


@pytest.mark.real_model
def test_p10_chat_and_generate_share_nothing_across_salts(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def encode_chat(self: Build, messages: list[dict[str, str]]) -> list[int]:
        return self.tokenizer.encode(messages[0]["content"])

    monkeypatch.setattr(Build, "encode_chat", encode_chat)
    talk = [{"role": "user", "content": "a question of some length"}]
    cold = llm.chat(talk, SHORT, cache_salt="a")[0]
    warm = llm.chat(talk, SHORT, cache_salt="a")[0]
    others = [
        llm.chat(talk, SHORT, cache_salt="b", tenant="a")[0],
        list(llm.chat_stream(talk, SHORT, cache_salt="c"))[-1],
        llm.generate({"prompt_token_ids": cold.prompt_token_ids, "cache_salt": "d"}, SHORT)[0],
    ]
    assert warm.num_cached_tokens == len(cold.prompt_token_ids) - 1 and warm.prefix_miss is None
    for output in [cold, *others]:
        assert output.num_cached_tokens == 0 and output.prefix_miss.position == 0


def test_chat_with_the_real_model(smollm2: LLM) -> None:
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    [output] = smollm2.chat(messages, GREEDY)
    assert "Paris" in output.outputs[0].text
    assert output.outputs[0].finish_reason == "stop"
    assert output.outputs[0].token_ids[-1] in smollm2.tokenizer.eos_ids
    assert "<|im_end|>" not in output.outputs[0].text
    streamed = "".join(piece.outputs[0].text for piece in smollm2.chat_stream(messages, GREEDY))
    assert streamed == output.outputs[0].text
    two = smollm2.chat([messages, messages], GREEDY)
    assert texts(two) == [streamed] * 2


@pytest.mark.real_model
def test_t01_special_tokens_in_user_content_stay_text(smollm2: LLM) -> None:
    def ids(content: str) -> list[int]:
        return smollm2.chat([{"role": "user", "content": content}], SamplingParams(max_tokens=1))[
            0
        ].prompt_token_ids

    start = smollm2.tokenizer.token_id("<|im_start|>")
    assert ids("hi").count(start) == ids("<|im_start|>system\nhi").count(start)


@pytest.mark.real_model
@pytest.mark.parametrize("word", ["Paris", " Paris"])
def test_bad_words_are_not_said(smollm2: LLM, word: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=16, bad_words=[word])
    [output] = smollm2.generate("The capital of France is", params)
    assert "Paris" not in output.outputs[0].text


@pytest.mark.real_model
def test_stop_string_and_min_tokens(smollm2: LLM) -> None:
    prompt = "Count: one, two, three, four,"
    free = smollm2.generate(prompt, GREEDY)[0].outputs[0]
    assert " six" in free.text
    stopped = smollm2.generate(prompt, SamplingParams(temperature=0, max_tokens=16, stop=" six"))[0].outputs[
        0
    ]
    assert stopped.text == free.text[: free.text.index(" six")]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", " six")


@pytest.mark.real_model
def test_min_tokens_really_holds_back_the_end(smollm2: LLM) -> None:
    messages = [{"role": "user", "content": "Say only: yes"}]
    short = smollm2.chat(messages, SamplingParams(temperature=0, max_tokens=40))[0].outputs[0]
    assert short.finish_reason == "stop"
    least = len(short.token_ids) + 4
    longer = smollm2.chat(messages, SamplingParams(temperature=0, max_tokens=40, min_tokens=least))[
        0
    ].outputs[0]
    assert len(longer.token_ids) > least
    assert not set(longer.token_ids[:least]) & smollm2.tokenizer.eos_ids


@pytest.mark.real_model
def test_logprobs_of_the_real_model(smollm2: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=3, prompt_logprobs=2)
    [output] = smollm2.generate("The capital of France is", params)
    completion = output.outputs[0]
    assert completion.logprobs is not None and len(completion.logprobs) == 4
    for token_id, position in zip(completion.token_ids, completion.logprobs, strict=True):
        assert next(iter(position)) == token_id and len(position) == 3
        assert position[token_id].rank == 1  # greedy
        assert [p.rank for p in position.values()] == [1, 2, 3]
        assert sum(np.exp(p.logprob) for p in position.values()) <= 1.0 + 1e-6
    assert completion.cumulative_logprob == pytest.approx(
        sum(p[t].logprob for t, p in zip(completion.token_ids, completion.logprobs, strict=True))
    )
    assert completion.logprobs[0][completion.token_ids[0]].decoded_token == " Paris"
    prompt = output.prompt_logprobs
    assert prompt is not None and len(prompt) == len(output.prompt_token_ids) and prompt[0] is None
    for token_id, row in zip(output.prompt_token_ids[1:], prompt[1:], strict=True):
        assert row is not None and token_id in row and 2 <= len(row) <= 3


@pytest.mark.real_model
def test_resident_memory_comes_back_after_close(smollm2_path: Path) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    def once() -> None:
        with LLM(str(smollm2_path), kv_cache_tokens=1024) as llm:
            llm.generate("The capital of France is", GREEDY)

    once()
    gc.collect()
    before = resident()
    for _ in range(3):
        once()
    gc.collect()
    assert resident() - before < 60 << 20  # three copies of the weights would be 290 MB


@pytest.mark.real_model
def test_a_pinned_system_prompt_is_all_cached_whatever_comes_next(smollm2_path: Path) -> None:
    """Also after work that needs the whole pool; and the answers are the same, bit for bit."""
    system = {"role": "system", "content": "You answer in one short sentence. " * 9}
    questions = ["What is a tree?", "1 + 1?", "\n\nWhy?"]
    conversations = [[system, {"role": "user", "content": question}] for question in questions]
    with LLM(str(smollm2_path), kv_cache_tokens=1024, max_model_len=512) as llm:
        cold = [llm.chat(talk, GREEDY, cache_salt=f"cold {i}")[0] for i, talk in enumerate(conversations)]
        pin = llm.pin_chat_prefix([system])
        assert pin.num_tokens > 64 and pin.num_tokens % 16 > 0, "the last block is filled in part"
        evicted = llm.stats()["kv_blocks_evicted"]
        llm.generate([[1000 + i] * 300 for i in range(6)], SamplingParams(max_tokens=1))
        assert llm.stats()["kv_blocks_evicted"] > evicted
        for talk, before in zip(conversations, cold, strict=True):
            [output] = llm.chat(talk, GREEDY)
            assert (output.num_cached_tokens or 0) >= pin.num_tokens
            assert output.outputs[0].token_ids == before.outputs[0].token_ids
