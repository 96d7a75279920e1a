"""Drives OpenVINO GenAI's continuous batching on the GGUF file itself (see protocol.py).

Prefix caching is on for W4 only: nothing can be shared in the other workloads. The cache is looked up when a
request is added, so requests that arrive together share nothing either.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import numpy as np
import openvino
import openvino_genai
import protocol

CACHE_GB = 4
BATCHED_TOKENS = 256  # most tokens of a step
WARM_UP = protocol.Request("warm-up", [list(range(1000, 1300))] * 4, [8] * 4)


class OpenVINO:
    peer = "openvino"
    version = version("openvino-genai")

    def __init__(self, model: str, threads: int) -> None:
        self.settings = {
            "model": model,
            "kv_cache_gb": CACHE_GB,
            "max_num_batched_tokens": BATCHED_TOKENS,
            "threads": threads,
            "prefix_caching": "W4, W4cached",
        }
        self._model = model
        self._threads = threads
        self._plain = self._pipeline(prefix_caching=False)
        self._caching: Any = None

    def run(self, request: protocol.Request) -> protocol.Answer:
        if not request.workload.startswith("W4"):
            return self._generate(self._plain, request)
        if request.reset_cache or self._caching is None:  # it has no call that empties its cache
            self._caching = None
            self._caching = self._pipeline(prefix_caching=True)
        return self._generate(self._caching, request)

    def close(self) -> None:
        self._plain = self._caching = None

    def _pipeline(self, *, prefix_caching: bool) -> Any:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GB
        scheduler.enable_prefix_caching = prefix_caching
        scheduler.max_num_batched_tokens = BATCHED_TOKENS
        properties = {"INFERENCE_NUM_THREADS": self._threads}
        pipeline = openvino_genai.ContinuousBatchingPipeline(self._model, scheduler, "CPU", properties)
        self._generate(pipeline, WARM_UP)
        return pipeline

    def _generate(self, pipeline: Any, request: protocol.Request) -> protocol.Answer:
        work = [
            (openvino.Tensor(np.asarray([ids], dtype=np.int64)), _greedy(length))
            for ids, length in zip(request.prompts, request.output_lengths, strict=True)
        ]
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
            output_tokens=[_num_tokens(handle) for handle in handles],
            cpu=cpu,
        )


def _greedy(length: int) -> Any:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = length
    config.ignore_eos = True
    config.do_sample = False
    return config


def _num_tokens(handle: Any) -> int:
    count = 0
    while handle.can_read():
        count += sum(len(output.generated_ids) for output in handle.read().values())
    return count


if __name__ == "__main__":
    answers = protocol.take_stdout()
    args = protocol.arguments(__doc__).parse_args()
    protocol.serve(lambda: OpenVINO(str(args.model), args.threads), answers)
