from __future__ import annotations

import asyncio
import random
import re
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from leafage.core.sampling_params import SamplingParams
from leafage.core.swap import SwapSlots
from leafage.engine.async_engine import AsyncEngine
from leafage.engine.engine import Engine
from leafage.engine.metrics import EngineMetrics, engine_stats
from leafage.errors import ExecutorError, RequestTooLargeError
from leafage.server.context import REJECTIONS
from leafage.server.exposition import Exposition
from leafage.server.http_counters import HttpCounters
from tests.core.toy import Loop
from tests.engine.rig import FakeClock, Rig, make_rig

GOLDEN = Path(__file__).parent / "metrics.txt"
WAIT = 20.0


class Served:
    """A rig behind an AsyncEngine, and what `/metrics` would say of it. Its loop is the test's."""

    def __init__(self, rig: Rig | None = None, **settings: Any) -> None:
        self.rig = rig or make_rig("hello")
        self.engine = AsyncEngine(self.rig.engine, self.rig.outputs, self.rig.inputs)
        self.http = HttpCounters()
        self.rejections = dict.fromkeys(REJECTIONS, 0)
        self.exposition = Exposition(
            "tiny", self.engine, self.rig.engine, self.rig.metrics, self.http, self.rejections, **settings
        )

    async def ask(self, prompt: str) -> None:
        async for _ in self.engine.generate(prompt, SamplingParams(max_tokens=20)):
            pass

    async def text(self, accept: str = "") -> str:
        return (await self.exposition.text(accept))[0].decode()

    async def samples(self, accept: str = "") -> dict[str, float]:
        """Values of the lines by name and labels, without the model's."""
        found = {}
        for family in text_string_to_metric_families(await self.text(accept)):
            for sample in family.samples:
                labels = ",".join(f"{k}={v}" for k, v in sample.labels.items() if k != "model_name")
                found[sample.name.removeprefix("leafage:") + (f"{{{labels}}}" if labels else "")] = (
                    sample.value
                )
        return found


def with_served(test: Callable[[Served], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def run() -> None:
        served = Served(**settings)
        try:
            await test(served)
        finally:
            served.engine.close()

    asyncio.run(run())


def test_x01_golden_exposition(tmp_path: Path) -> None:
    """Names, types, labels and values after two requests, to the letter. The clock is made up."""

    async def test(served: Served) -> None:
        for _ in range(2):
            await served.ask("who are you?")
        served.http.respond(200)
        served.http.respond(404)
        served.rejections["queue_full"] += 1
        lines = (await served.text()).splitlines()
        own = [line for line in lines if "process_" not in line]
        assert len(own) < len(lines), "what the process uses is there as well"
        text = "\n".join(own) + "\n"
        text = re.sub(
            r"(last_step_age_seconds\{.*\}) .*", r"\1 0.0", text
        )  # the scrape itself woke the engine
        (tmp_path / "metrics.txt").write_text(text)
        assert text == GOLDEN.read_text(), f"if it is meant to differ, take {tmp_path / 'metrics.txt'}"

    with_served(test)


def test_x01_counters_end_in_total_and_nothing_else_does() -> None:
    async def test(served: Served) -> None:
        for family in text_string_to_metric_families(await served.text()):
            if not family.name.startswith("leafage:"):
                continue
            names = {sample.name for sample in family.samples}
            if family.type == "counter":
                assert names == {family.name + "_total"}
            elif family.type == "histogram":
                assert names == {family.name + end for end in ("_bucket", "_count", "_sum")}
            else:
                assert family.type == "gauge" and names == {family.name} and "_total" not in family.name
            assert family.documentation
            assert all(sample.labels["model_name"] == "tiny" for sample in family.samples)

    with_served(test)


VLLM_NAMES = """
num_requests_running num_requests_waiting kv_cache_usage_perc prefix_cache_queries_total
prefix_cache_hits_total num_preemptions_total prompt_tokens_total prompt_tokens_cached_total
generation_tokens_total time_to_first_token_seconds_bucket inter_token_latency_seconds_bucket
request_time_per_output_token_seconds_bucket e2e_request_latency_seconds_bucket
request_queue_time_seconds_bucket request_prefill_time_seconds_bucket request_decode_time_seconds_bucket
request_inference_time_seconds_bucket request_success_total iteration_tokens_total_bucket cache_config_info
request_prompt_tokens_bucket request_generation_tokens_bucket
kv_block_lifetime_seconds_bucket kv_block_idle_before_evict_seconds_bucket
kv_block_reuse_gap_seconds_bucket
"""


def test_x01_what_dashboards_of_vllm_ask_for_is_there() -> None:
    async def test(served: Served) -> None:
        text = await served.text()
        names = {line.split("{")[0] for line in text.splitlines() if line.startswith("leafage:")}
        assert {f"leafage:{name}" for name in VLLM_NAMES.split()} <= names
        assert 'num_gpu_blocks="64"' in text and 'block_size="4"' in text
        for reason in ("stop", "length", "abort", "error"):
            assert (
                f'leafage:request_success_total{{finished_reason="{reason}",model_name="tiny"}} 0.0' in text
            )

    with_served(test)


def test_x02_servers_of_one_process_count_apart() -> None:
    """Each exposition owns its registry; the one that prometheus_client has for all is not used."""

    async def test(served: Served) -> None:
        other = Served()
        try:
            await served.ask("one")
            counted = [(await one.samples())["generation_tokens_total"] for one in (served, other)]
        finally:
            other.engine.close()
        assert counted == [6, 0]
        assert "leafage" not in generate_latest(REGISTRY).decode()

    with_served(test)


def test_no_series_appears_later() -> None:
    """All label sets are there before the first request, so that rates have a beginning."""

    async def test(served: Served) -> None:
        before = set(await served.samples())
        for prompt in ("one", "one", "one two three"):
            await served.ask(prompt)
        assert set(await served.samples()) == before

    with_served(test)


def test_p04_blocks_by_state_add_up_and_show_the_cache() -> None:
    async def test(served: Served) -> None:
        await served.ask("who are you?")
        samples = await served.samples()
        states = {state: samples[f"kv_blocks{{state={state}}}"] for state in ("active", "cached", "free")}
        assert sum(states.values()) == 64 and states["active"] == 0 and states["cached"] > 0
        assert samples["kv_cache_usage_perc"] == 0

    with_served(test)


def test_p03_a_cache_that_is_off_says_so() -> None:
    async def test(served: Served) -> None:
        assert (await served.samples())["prefix_cache_enabled"] == 0

    rig = make_rig("hello")
    loop = Loop(64, 4, prefix_index="none")
    rig.engine.scheduler = loop.scheduler
    with_served(test, rig=rig)


def test_p01_misses_by_reason_add_up_to_what_was_not_hit() -> None:
    async def test(served: Served) -> None:
        for prompt in ("who are you?", "who are you, then?", "you"):
            await served.ask(prompt)
        samples = await served.samples()
        misses = sum(
            value for name, value in samples.items() if name.startswith("prefix_cache_miss_tokens_total{")
        )
        hits, queries = samples["prefix_cache_hits_total"], samples["prefix_cache_queries_total"]
        assert hits > 0 and misses == queries - hits

    with_served(test)


@pytest.mark.parametrize(
    ("accept", "content_type", "last"),
    [
        ("", "text/plain; version=0.0.4", ""),
        # What Prometheus 3 sends.
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.4",
            "application/openmetrics-text; version=1.0.0",
            "# EOF",
        ),
    ],
)
def test_formats(accept: str, content_type: str, last: str) -> None:
    async def test(served: Served) -> None:
        await served.ask("hi")
        text, kind = await served.exposition.text(accept)
        assert kind.startswith(content_type)
        lines = text.decode().splitlines()
        assert lines[-1] == last or not last
        assert 'leafage:generation_tokens_total{model_name="tiny"} 6.0' in lines
        assert 'leafage:iteration_tokens_total_bucket{le="1.0",model_name="tiny"} 5.0' in lines

    with_served(test)


def test_s08_a_scrape_answers_while_the_engine_hangs() -> None:
    """With the numbers of the last one, an age that grows, and one command in the engine's queue at most."""
    gate, entered = threading.Event(), threading.Event()

    async def test(served: Served) -> None:
        execute = served.rig.executor.execute

        def hanging(batch: Any) -> Any:
            entered.set()
            assert gate.wait(WAIT)
            return execute(batch)

        await served.ask("one")
        before = await served.samples()
        served.rig.executor.execute = hanging  # type: ignore[method-assign]
        asked = asyncio.create_task(served.ask("two"))
        try:
            await asyncio.to_thread(entered.wait, WAIT)
            first, second = await served.samples(), await served.samples()
            assert first["num_requests_running"] == 0, "as of the scrape before"
            assert first["generation_tokens_total"] == before["generation_tokens_total"] == 6
            assert 0 < first["last_step_age_seconds"] < second["last_step_age_seconds"]
            assert len(served.engine._thread._commands) == 1
        finally:
            gate.set()
        await asked
        after = await served.samples()
        assert after["generation_tokens_total"] == 12, "not what the engine owed since then"

    with_served(test, timeout=0.05)


def test_a_scrape_answers_when_the_engine_is_gone() -> None:
    async def test(served: Served) -> None:
        await served.ask("one")
        await served.text()
        served.engine.close()
        assert (await served.samples())["generation_tokens_total"] == 6

    with_served(test)


def test_scrapes_may_overlap() -> None:
    async def test(served: Served) -> None:
        await served.ask("one")
        texts = await asyncio.gather(*(served.samples() for _ in range(20)))
        assert all(samples["generation_tokens_total"] == 6 for samples in texts)

    with_served(test)


def test_requests_missing_in_the_log_are_counted() -> None:
    async def test(served: Served) -> None:
        assert (await served.samples())["request_log_lost_total"] == 3

    with_served(test, num_lost_lines=lambda: 3)


class Storm:
    """Random arrivals, aborts, preemptions, swaps and faults over the toy executor, as a server sees them."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        block_size = rng.choice([1, 4, 16])
        self.loop = Loop(
            max(120 // block_size, 3),
            block_size,
            max_num_seqs=8,
            max_num_batched_tokens=rng.choice([8, 64]),
            max_model_len=100,
            prefix_index=rng.choice(["radix", "hash_chain", "none"]),
            num_swap_slots=rng.choice([0, 10, 100]),
            preemption=rng.choice(["auto", "swap", "recompute"]),
        )
        assert isinstance(self.loop.kv.swap.space, SwapSlots)
        clock = FakeClock()
        self.metrics = EngineMetrics(clock, self.loop.scheduler)
        self.engine = Engine(
            self.loop.scheduler, self.loop.executor, clock=clock, vocab_size=50, observer=self.metrics
        )
        self.loop.executor.before_execute = self._fault
        self.number = 0

    def _fault(self, batch: Any) -> None:
        if self.rng.random() < 0.02:
            self.loop.executor.spoil(batch)
            raise ExecutorError("broken")

    def step(self) -> None:
        rng = self.rng
        if rng.random() < 0.4:
            self.number += 1
            prompt = [rng.randint(0, 2) for _ in range(rng.randint(1, 40))]
            params = SamplingParams(max_tokens=rng.randint(1, 50), n=rng.choice([1, 1, 2]), temperature=1.0)
            with suppress(RequestTooLargeError):
                self.engine.add_request(
                    f"r{self.number}", prompt, params, cache_salt=rng.choice(["", "other"])
                )
        live = [request.request_id for request in self.engine.scheduler.roster.requests()]
        if live and rng.random() < 0.1:
            self.engine.abort(rng.choice(live))
        self.engine.step()


def grows(family: Any) -> bool:
    return family.type in ("counter", "histogram") and family.name.startswith("leafage:")


@pytest.mark.parametrize("seed", range(12))
def test_p07_no_counter_ever_decreases(seed: int) -> None:
    storm = Storm(seed)
    exposition = Exposition(
        "tiny",
        None,  # type: ignore[arg-type]
        storm.engine,
        storm.metrics,
        HttpCounters(),
        {},
    )
    exposition._engine = type("Idle", (), {"step_age": 0.0})()  # type: ignore[assignment]
    highest: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for _ in range(150):
        storm.step()
        exposition._last = exposition._snapshot()
        for family in exposition.collect():
            for sample in family.samples if grows(family) else ():
                key = sample.name, tuple(sample.labels.items())
                assert sample.value >= highest.get(key, 0.0), f"{key} fell to {sample.value}"
                highest[key] = sample.value
        stats = engine_stats(storm.engine, storm.metrics)
        assert stats["num_observer_errors"] == 0
        assert (
            sum(stats[f"kv_blocks_{state}"] for state in ("active", "cached", "free"))
            == stats["kv_blocks_total"]
        )
    totals = {name: value for (name, _), value in highest.items()}
    assert (
        totals["leafage:num_preemptions_total"] > 0
        and totals["leafage:e2e_request_latency_seconds_count"] > 0
    )


def test_the_guide_lists_every_metric() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "server.md").read_text("utf-8")
    listed = set(
        re.findall(r"`(\w+)(?:\{\w+\})?`", guide.partition("## Metrics")[2].partition("## Request log")[0])
    )
    names = {
        line.split()[2].removeprefix("leafage:")
        for line in GOLDEN.read_text().splitlines()
        if line[:6] == "# TYPE"
    }
    assert names - listed == set(), "not in the guide"
