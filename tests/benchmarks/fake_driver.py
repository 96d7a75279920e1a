"""A driver that needs no engine: answers each request at once, as `--behaviour` says."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

from peers import protocol


class Fake:
    peer = "fake"
    version = "1"

    def __init__(self, behaviour: str) -> None:
        self.settings = {"model": "a.gguf"}
        self._behaviour = behaviour
        if behaviour == "does not load":
            raise RuntimeError("no such library")

    def run(self, request: protocol.Request) -> protocol.Answer:
        if self._behaviour == "fails":
            raise RuntimeError("out of memory")
        wanted = [length for length in request.output_lengths for _ in range(request.n)]
        lengths = [1] if self._behaviour == "short" else wanted
        alone = request.workload.endswith(" alone")
        offset = 7 if self._behaviour == "differs in a batch" and not alone else 0
        tokens = [
            [sum(prompt) % 97 + offset] * length
            for prompt, length in zip(request.prompts, request.output_lengths, strict=True)
            for _ in range(request.n)
        ]
        return protocol.Answer(
            wall=2.0, output_tokens=lengths, cpu=1.0, first_token=0.5, decode=1.0, extra={"tokens": tokens}
        )

    def close(self) -> None:
        print("closed", file=sys.stderr, flush=True)


if __name__ == "__main__":
    answers = protocol.take_stdout()
    parser = argparse.ArgumentParser()
    parser.add_argument("--behaviour", default="well")
    behaviour = parser.parse_args().behaviour
    print("a library talks on stdout")
    protocol.serve(lambda: Fake(behaviour), answers)
