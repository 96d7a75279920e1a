"""Exercise 4: recompute a request of 4,096 tokens, or swap it out and in."""

from __future__ import annotations

from leafage.sim.cost_model import CostModel
from leafage.sim.hardware import Hardware
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.reproduce.demo import Check, Demo, Outcome, Table, Tools

NUM_TOKENS = 4096
LECTURE = {"llama-3-8b": ("89.4", "537", "21.5"), "llama-3-70b": ("842.3", "1342", "53.7")}


def run(tools: Tools) -> Outcome:
    """Both models on one H100, as the exercise assumes; the overhead of each block is left out."""
    hardware = Hardware.load("h100")
    rows: list[tuple[str, str | None, str | None, None]] = []
    checks = []
    for name, lecture in LECTURE.items():
        model = CostModel(hardware, LLMSpec.load(name))
        bytes_moved = NUM_TOKENS * model.spec.kv_bytes_per_token
        recompute = model.prefill_seconds(NUM_TOKENS)
        swap = 2 * bytes_moved / hardware.host_bandwidth
        ours = (f"{1e3 * recompute:.1f}", f"{bytes_moved / 1e6:.0f}", f"{1e3 * swap:.1f}")
        labels = (f"{name}: recompute, ms", f"{name}: K/V, MB", f"{name}: swap out and in, ms")
        for label, value, said in zip(labels, ours, lecture, strict=True):
            rows.append((label, value, said, None))
            checks.append(Check.exact(label, value, said))
        share = swap / recompute
        rows.append((f"{name}: swap / recompute", f"{share:.0%}", "1/4" if "8b" in name else "6%", None))
    kib = LLMSpec.load("llama-3-70b").kv_bytes_per_token // 1024
    rows.append(("llama-3-70b: K/V of a token, KiB", str(kib), "320", None))
    checks.append(Check.exact("llama-3-70b: K/V of a token, KiB", kib, 320))
    return Outcome([Table.compared(f"A request of {NUM_TOKENS:,} tokens on an H100", rows)], checks)


DEMOS = (Demo("exercise-4", ("E4",), "Exercise 4: recompute or swap 4,096 tokens", run),)
