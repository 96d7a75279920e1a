"""Drives OpenVINO GenAI's continuous batching on the GGUF file itself (see protocol.py).

Prefix caching is on for W4, W5 and W7 only: nothing can be shared in the other workloads. The cache is looked
up when a request is added, so requests that arrive together share nothing either.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import numpy as np
import openvino
import openvino_genai
import protocol
from chat import Chat

CACHE_GB = 4
KV_BLOCK = 32  # tokens, on a CPU
CACHING = ("W4", "W4cached", "W5", "W7")
BATCHED_TOKENS = 256  # most tokens of a step
NEVER = (1 << 31) - 1  # no token has this id
WARM_UP = protocol.Request("warm-up", [list(range(1000, 1300))] * 4, [8] * 4)


class OpenVINO:
    peer = "openvino"
    version = version("openvino-genai")

    def __init__(self, model: str, threads: int, kv_tokens: int | None) -> None:
        pool = {"kv_cache_gb": CACHE_GB} if kv_tokens is None else {"kv_blocks": kv_tokens // KV_BLOCK}
        self.settings = {
            "model": model,
            **pool,
            "max_num_batched_tokens": BATCHED_TOKENS,
            "threads": threads,
            "prefix_caching": ", ".join(CACHING),
        }
        self._model = model
        self._threads = threads
        self._kv_tokens = kv_tokens
        self._plain = self._pipeline(prefix_caching=False)
        self._caching: Any = None

    def run(self, request: protocol.Request) -> protocol.Answer:
        pipeline = self._plain
        if request.workload in CACHING:
            if request.reset_cache or self._caching is None:  # it has no call that empties its cache
                self._caching = None
                self._caching = self._pipeline(prefix_caching=True)
            pipeline = self._caching
        return (self._converse if request.turns > 1 else self._generate)(pipeline, request)

    def close(self) -> None:
        self._plain = self._caching = None

    def _pipeline(self, *, prefix_caching: bool) -> Any:
        scheduler = openvino_genai.SchedulerConfig()
        if self._kv_tokens is None:
            scheduler.cache_size = CACHE_GB
        else:
            scheduler.num_kv_blocks = self._kv_tokens // KV_BLOCK
        scheduler.enable_prefix_caching = prefix_caching
        scheduler.max_num_batched_tokens = BATCHED_TOKENS
        properties = {"INFERENCE_NUM_THREADS": self._threads}
        pipeline = openvino_genai.ContinuousBatchingPipeline(self._model, scheduler, "CPU", properties)
        self._generate(pipeline, WARM_UP)
        return pipeline

    def _generate(self, pipeline: Any, request: protocol.Request) -> protocol.Answer:
        work = [(_tensor(ids), _config(request, i)) for i, ids in enumerate(request.prompts)]
        began, cpu, first = time.perf_counter(), time.process_time(), None
        handles = [pipeline.add_request(i, *prompt) for i, prompt in enumerate(work)]
        while pipeline.has_non_finished_requests():
            pipeline.step()
            if first is None and any(handle.can_read() for handle in handles):
                first = time.perf_counter()
        ended, cpu = time.perf_counter(), time.process_time() - cpu
        return protocol.Answer(
            wall=ended - began,
            first_token=None if first is None else first - began,
            decode=None if first is None or request.workload != "W1" else ended - first,
            output_tokens=[n for handle in handles for n in _num_tokens(handle, request.n)],
            cpu=cpu,
        )

    def _converse(self, pipeline: Any, request: protocol.Request) -> protocol.Answer:
        chat = Chat(request.prompts, request.output_lengths, request.turns)
        handles: dict[int, Any] = {}

        def send(number: int) -> None:
            handles[number] = pipeline.add_request(
                number, _tensor(chat.send(number)), _config(request, number)
            )

        cpu = time.process_time()
        for number in chat.first():
            send(number)
        while pipeline.has_non_finished_requests():
            pipeline.step()
            for number, handle in list(handles.items()):
                ended = False
                while handle.can_read():
                    ended = any(chat.receive(number, out.generated_ids) for out in handle.read().values())
                if ended:
                    del handles[number]
                    if (following := chat.next(number)) is not None:
                        send(following)
        return protocol.Answer(cpu=time.process_time() - cpu, **chat.figures())


def _tensor(ids: list[int]) -> Any:
    return openvino.Tensor(np.asarray([ids], dtype=np.int64))


def _config(request: protocol.Request, number: int) -> Any:
    """Of one of the requests."""
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = request.output_lengths[number]
    config.ignore_eos = True
    config.do_sample = request.temperature > 0
    if config.do_sample:
        config.temperature = request.temperature
        config.rng_seed = number
    config.num_return_sequences = max(request.n, request.beam_width)
    if request.beam_width > 1:
        config.num_beams = request.beam_width
        config.set_eos_token_id(NEVER)  # beams end with it, whatever `ignore_eos` says
    return config


def _num_tokens(handle: Any, count: int) -> list[int]:
    """Of the first `count` sequences (of beams, the best comes first)."""
    return [len(output.generated_ids) for output in handle.read_all()[:count]]


if __name__ == "__main__":
    answers = protocol.take_stdout()
    args = protocol.arguments(__doc__).parse_args()
    protocol.serve(lambda: OpenVINO(str(args.model), args.threads, args.kv_cache_tokens), answers)
