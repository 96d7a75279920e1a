"""Section 7's tables that only quote: the SGLang paper's card, and how both papers share prefixes."""

from __future__ import annotations

from leafage.sim.reproduce.demo import Cell, Column, Demo, Outcome, Source, Table, Tools

CARD: list[tuple[str, Cell, Cell]] = [
    (
        "problem",
        None,
        "programs of many calls share prefixes and want formats; K/V is thrown away after each",
    ),
    ("language", None, "gen, select, extend, fork, join, image, video in Python, run asynchronously"),
    ("RadixAttention", "code05-1", "K/V of all requests in a radix tree, pages of one token, LRU of leaves"),
    ("order", "code05-2, code05-3", "longest shared prefix first; depth first is optimal (theorem 3.1)"),
    ("cache-aware, of the optimal hit rate", "code05-2", "96 % on average"),
    ("hit rates of the benchmarks", "code05-2, code05-3", "50 to 99 %"),
    ("compressed FSM", "code06-1", "chains of single transitions in one forward"),
    ("API speculation", None, "one call answers several gens"),
    ("throughput", None, "up to 6.4x; multimodal up to 6x"),
    ("latency", None, "up to 3.7x lower"),
    (
        "Chatbot Arena, a month",
        None,
        "hits: 52.4 % LLaVA-Next-34B, 74.1 % Vicuna-33B, whose first token came 1.7x sooner",
    ),
    (
        "tasks",
        None,
        "MMLU 5-shot, HellaSwag, ReAct, generative agents, tree and skeleton of thought, JSON, multi-turn "
        "chat, DSPy RAG, LLaVA",
    ),
    ("models and devices", None, "Llama, Mixtral and others on A10G and A100"),
    ("baselines", None, "vLLM, Guidance, LMQL"),
]

PREFIXES: list[tuple[str, ...]] = [
    ("starts from", "memory of independent requests", "programs of many calls", "both"),
    (
        "prefixes that are shared",
        "declared by the provider; later all, found by hash",
        "all, found by themselves",
        "all, found by themselves; declared ones can be pinned",
    ),
    (
        "index",
        "none; later a table from block hashes to blocks",
        "radix tree of tokens",
        "radix tree of blocks (`radix`), or the table (`hash_chain`)",
    ),
    ("page", "block, 16 tokens", "1 token", "block of 1 to 256 tokens"),
    (
        "reused",
        "whole blocks",
        "to the token",
        "to the token: the head of a block is copied (`radix`); whole blocks (`hash_chain`)",
    ),
    (
        "within a request",
        "fork, copy-on-write: samples and beams",
        "fork of the program; each branch is a request",
        "fork, copy-on-write: samples and beams",
    ),
    (
        "evicted",
        "idle blocks, the end of a chain first",
        "idle leaves, LRU",
        "idle ends of paths, LRU; or leaves",
    ),
    (
        "who goes first",
        "first come, first served",
        "longest shared prefix first",
        "one of 7 orders; those that reorder pass nobody more than 48 times",
    ),
    ("requests and cache", "one pool", "one pool", "one pool"),
]


def card(tools: Tools) -> Outcome:
    """The paper's facts, as the lecture gives them; where ours are is named."""
    columns = [Column("SGLang (NeurIPS 2024)"), Column("ours are in"), Column("paper reported", Source.PAPER)]
    return Outcome([Table("Paper card", columns, CARD)])


def prefixes(tools: Tools) -> Outcome:
    """Section 7.7's table, which was lost."""
    columns = [Column("prefixes"), Column("vLLM"), Column("SGLang"), Column("Leafage")]
    return Outcome(
        [Table("Two ways to reuse prefixes, and ours", columns, PREFIXES)],
        notes=["What granularity, match and eviction of both indexes amount to is measured in exercise 6."],
    )


DEMOS = (
    Demo("card-sglang", ("R7-1", "R7-2", "R7-14", "R7-15", "R7-16"), "Section 7.6: the paper's card", card),
    Demo("prefixes", ("R7-17",), "Section 7.7: vLLM's and SGLang's ways to reuse prefixes", prefixes),
)
