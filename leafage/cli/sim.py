"""`leafage sim`: its commands, and what its help says. Each is in a module of its own."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from cyclopts import App

from leafage.cli.sim_question import refuse_without_effect

COMMANDS = {
    "run": "sim_run",
    "goodput": "sim_goodput",
    "sweep": "sim_sweep",
    "compare": "sim_compare",
    "plan": "sim_plan",
    "reproduce": "sim_reproduce",
    "calibrate": "sim_calibrate",
}
"""The module of each command, in the order of the help."""

ANSWERS = ("run", "goodput", "sweep", "compare", "plan")
"""Commands that simulate what an engine's settings describe."""


def make_sim(words: Sequence[str]) -> App:
    """`leafage sim` with the command that `words` begin with, or with all for help and for errors."""
    app = App(
        name="sim",
        help="""Ask what a configuration, a policy or a device would do with your traffic.

The engine's own scheduler and KV cache run over a model of the device's speed, on simulated time: no weights
are needed, and an hour of traffic takes seconds.

**Examples**

    leafage sim run --hardware a100-40gb --model opt-13b --rate 3
    leafage sim goodput kv=paged kv=reserved-max --max-model-len 2048
    leafage sim sweep rate=1:4:0.5 --report rate.html
    leafage sim plan --model llama-3.1-8b --hardware l4 --trace trace.csv
    leafage sim reproduce --only R3-7
    leafage sim calibrate machine.json""",
        help_format="markdown",
    )
    if words[:1] and words[0] in ANSWERS:
        refuse_without_effect(list(words[1:]))
    called = words[:1] if words and words[0] in COMMANDS else COMMANDS
    for number, name in enumerate(called):
        module = importlib.import_module(f"leafage.cli.{COMMANDS[name]}")
        app.command(getattr(module, name), name=name, sort_key=number)
    return app
