"""The server of `http_overhead.py`, and the engine under it, in one process: the same memory for both.

The server listens at the port that `settings` names. Over the peers' protocol (peers/protocol.py) the engine
is asked directly: "engine" runs all requests with `LLM.generate`, "first token" waits for the first output of
`LLM.stream`, "empty" only empties the prefix cache.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from peers import protocol

import leafage
from leafage import bench
from leafage.build import build_engine
from leafage.cli.serve import make_context
from leafage.config import EngineConfig
from leafage.core.sampling_params import SamplingParams
from leafage.llm import LLM
from leafage.server.app import create_app
from leafage.server.config import ServerConfig
from leafage.server.http_server import HttpServer, bind

WARM_UP = bench.Work([list(range(1000, 1064))] * 4, [8] * 4)


class Served:
    """An engine, an LLM over it, and a server over it. Only one of the two has requests at a time."""

    peer = "leafage"
    version = leafage.__version__

    def __init__(self, model: Path, threads: int) -> None:
        build = build_engine(EngineConfig.from_kwargs(model=str(model), threads=threads))
        self._llm = LLM.from_build(build)
        self._context = make_context(build, ServerConfig())
        sockets, ready = bind("127.0.0.1", 0), threading.Event()
        port = sockets[0].getsockname()[1]
        app = create_app(self._context)
        self._server = HttpServer(app, self._context.config, self._context.lifecycle, on_ready=ready.set)
        self._thread = threading.Thread(target=self._server.run, args=(sockets,), daemon=True)
        self._thread.start()
        ready.wait()
        bench.run_once(self._llm, WARM_UP)
        self.settings: dict[str, Any] = {
            "model": str(model),
            "threads": build.threads,
            "port": port,
            "loop": type(self._server.servers[0].get_loop()).__module__.partition(".")[0],
        }

    def run(self, request: protocol.Request) -> protocol.Answer:
        if request.workload == "empty":
            self._llm.reset_prefix_cache()
            return protocol.Answer(0.0, request.output_lengths, 0.0)
        work = bench.Work(request.prompts, request.output_lengths)
        cpu = time.process_time()
        if request.workload == "first token":
            wall = self._first_token(work)
            return protocol.Answer(wall, work.output_lengths, time.process_time() - cpu, first_token=wall)
        run = bench.run_once(self._llm, work)
        return protocol.Answer(
            run.wall,
            [len(ids) for ids in run.tokens],
            time.process_time() - cpu,
            first_token=run.first_token,
            extra={"native": run.native, "tokens": run.tokens},
        )

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._context.close()
        self._llm.close()

    def _first_token(self, work: bench.Work) -> float:
        params = SamplingParams(temperature=0.0, max_tokens=work.output_lengths[0], ignore_eos=True)
        began = time.perf_counter()
        with self._llm.stream({"prompt_token_ids": work.prompts[0]}, params) as stream:
            next(stream)
            seconds = time.perf_counter() - began
            for _ in stream:
                pass
        return seconds


def main() -> None:
    answers = protocol.take_stdout()
    args = protocol.arguments(__doc__).parse_args()
    protocol.serve(lambda: Served(args.model, args.threads), answers)


if __name__ == "__main__":
    main()
