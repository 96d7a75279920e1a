"""Section 2: what paged memory has of an operating system, and where it is here."""

from __future__ import annotations

import importlib

from leafage.sim.reproduce.demo import Check, Column, Demo, Outcome, Table, Tools

ANALOGY = [
    ("process", "sequence", "request.Sequence"),
    ("virtual page", "logical block: so many tokens of a sequence", "kv_manager.KVManager.blocks_for"),
    ("page frame", "physical block, one number for all layers", "block_pool.BlockPool"),
    ("page table", "block table", "request.Sequence.block_table"),
    (
        "page fault, allocation on demand",
        "the next block when the last one is full",
        "kv_manager.KVManager.grow",
    ),
    ("fork", "a sample or beam that goes on from the same tokens", "kv_manager.KVManager.fork"),
    ("reference count of a frame", "reference count of a block", "block_pool.BlockPool.hold"),
    (
        "copy-on-write",
        "the first write into a block that others own copies it",
        "block_store.BlockStore.copy",
    ),
    ("shared library", "common prefix", "radix_tree.RadixTree"),
    ("swapping a process out", "preemption: all blocks of a request, or none", "swap.Swap"),
    ("frames are alike: no external fragmentation", "any free block will do", "block_pool.BlockPool.take"),
]
"""(operating system, paged KV cache, where in `leafage.core`)."""


def exists(name: str) -> bool:
    """Whether `leafage.core` has it: a module, a class of it, and maybe an attribute of the class."""
    module, *path = name.split(".")
    found: object = importlib.import_module(f"leafage.core.{module}")
    for part in path:
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def analogy(tools: Tools) -> Outcome:
    """The lecture's table, which was lost."""
    columns = [Column("operating system"), Column("paged KV cache"), Column("in leafage.core")]
    missing = [where for _, _, where in ANALOGY if not exists(where)]
    return Outcome(
        [Table("The analogy", columns, ANALOGY)],
        [Check.exact("names that are not in the core", missing, [])],
    )


DEMOS = (Demo("analogy", ("R2-1",), "Section 2: virtual memory and the paged KV cache", analogy),)
