"""Leafage behind the peers' protocol (peers/protocol.py), in a process of its own like every side.

Besides the workloads it answers "W3 sampled" (with SAMPLING); "W3 alone" and the like (each sequence by
itself, from an empty cache); and with figures of its own: "gemm" and "attention" (those kernels alone, on a
prompt of that length), "outside" (time outside the native calls while all requests decode), "memory"
(resident bytes while they run, when all of the KV pool was in use before).
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

from comparison import kernels, memory, own_runs
from peers import protocol

import leafage
from leafage import bench
from leafage.config import EngineConfig
from leafage.kernels import _native
from leafage.llm import LLM
from leafage.overhead import Overhead, measure_overhead

SAMPLING = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 50,
    "repetition_penalty": 1.1,
    "logprobs": 5,
    "seed": 1,
}
WARM_UP = bench.Work([list(range(1000, 1064))] * 4, [8] * 4)


class Leafage:
    peer = "leafage"
    version = leafage.__version__

    def __init__(
        self, model: Path, threads: int, kv_cache_tokens: int | None, token_budget: int | None
    ) -> None:
        settings: dict[str, Any] = {"threads": threads, "kv_cache_tokens": kv_cache_tokens}
        if token_budget is not None:
            most = min(token_budget, EngineConfig().max_num_seqs)
            settings |= {"max_num_batched_tokens": token_budget, "max_num_seqs": most}
        self._llm = LLM(str(model), **settings)
        build = self._llm.build
        sizes = bench.MatrixSizes(build.engine.executor)
        bench.run_once(self._llm, WARM_UP)
        self.settings: dict[str, Any] = {
            "model": str(model),
            "threads": build.threads,
            "kernels": _native.variant(),
            "max_num_batched_tokens": build.config.max_num_batched_tokens,
            "kv_bytes": build.plan.kv_bytes,
            "kv_bytes_per_token": build.plan.kv_bytes // build.plan.kv_tokens,
            "linear_bytes": sizes.num_bytes,
            "vocab_size": build.model.vocab_size,
        }

    def run(self, request: protocol.Request) -> protocol.Answer:
        work = bench.Work(
            request.prompts,
            request.output_lengths,
            request.turns,
            request.n,
            request.temperature,
            request.beam_width,
        )
        name, _, how = request.workload.partition(" ")
        before = _cpu_seconds()
        if name in ("gemm", "attention"):
            measure = kernels.gemm if name == "gemm" else kernels.attention
            return self._figures(work, measure(self._llm.build, work.num_prompt_tokens))
        if name == "outside":
            return self._figures(
                work, _outside(measure_overhead(self._llm, len(work.prompts), repetitions=1))
            )
        if name == "memory":
            return self._figures(work, memory.measure(self._llm, work))
        times: dict[str, float] = {}
        if how == "alone":
            runs = own_runs.alone(self._llm, work)
        elif work.turns > 1:
            chat, run = own_runs.converse(self._llm, work, reset_cache=request.reset_cache)
            figures = chat.figures()
            times = {name: figures[name] for name in ("mean_first_token", "p99_inter_token")}
            runs = [run]
        else:
            sampling = SAMPLING if how == "sampled" else None
            runs = [bench.run_once(self._llm, work, reset_cache=request.reset_cache, sampling=sampling)]
        tokens = [ids for run in runs for ids in run.tokens]
        return protocol.Answer(
            wall=sum(run.wall for run in runs),
            output_tokens=[len(ids) for ids in tokens],
            cpu=_cpu_seconds() - before,
            first_token=runs[0].first_token,
            decode=runs[0].decode,
            cached_tokens=sum(run.cached_tokens for run in runs),
            extra={
                "tokens": tokens,
                "native": sum(run.native for run in runs),
                "counted": {name: sum(run.counted[name] for run in runs) for name in bench.COUNTERS},
            },
            **times,
        )

    def close(self) -> None:
        self._llm.close()

    def _figures(self, work: bench.Work, figures: dict[str, Any]) -> protocol.Answer:
        return protocol.Answer(0.0, work.output_lengths, 0.0, extra={"figures": figures})


def _outside(overhead: Overhead) -> dict[str, Any]:
    """Seconds of a decode step outside native calls, the same by part, and seconds inside."""
    native = sum(overhead.native.values())
    return {"outside": overhead.total, "parts": overhead.outside, "native": native}


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    answers = protocol.take_stdout()
    parser = protocol.arguments(__doc__)
    parser.add_argument("--token-budget", type=int, metavar="N", help="most tokens of a step")
    args = parser.parse_args()
    protocol.serve(
        lambda: Leafage(args.model, args.threads, args.kv_cache_tokens, args.token_budget), answers
    )


if __name__ == "__main__":
    main()
