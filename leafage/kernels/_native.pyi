"""The compiled extension, as far as Python code uses it."""

from typing import Any

import numpy as np

def variants() -> list[str]: ...
def variant() -> str: ...
def set_variant(name: str) -> None: ...
def cpu_features() -> list[str]: ...
def __getattr__(name: str) -> Any: ...

class PackedWeight:
    dtype: str
    rows: int
    cols: int
    nbytes: int
    def __init__(self, dtype: str, rows: int, cols: int, raw: np.ndarray, num_threads: int = 1) -> None: ...
    def dequantize(self) -> np.ndarray: ...

def pack_weights(raw: list[tuple[str, int, int, np.ndarray]], num_threads: int) -> list[PackedWeight]: ...

class KVCache:
    num_bytes: int
    num_layers: int
    num_blocks: int
    block_size: int
    block_bytes: int
    def __init__(
        self,
        dtype: str,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
    ) -> None: ...
    def array(self) -> np.ndarray: ...

class Program:
    num_threads: int
    num_bytes: int
    def __init__(self, *args: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...

class SamplingState:
    def __init__(
        self,
        vocab_size: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        top_k: int = 0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        num_top: int = -1,
    ) -> None: ...
    def see(self, token_ids: list[int], output: bool) -> None: ...

class SamplingPlan:
    num_rows: int
    tokens: list[int]
    logprobs: list[float]
    ranks: list[int]
    usable: list[bool]
    tops: list[list[tuple[int, float]]]
    def __init__(
        self,
        vocab_size: int,
        states: list[SamplingState],
        num_draws: list[int],
        seeds: list[int],
        positions: list[int],
        targets: list[int],
        bias: list[tuple[int, int, float]],
    ) -> None: ...
