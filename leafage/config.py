"""EngineConfig: everything that can be set about an engine, in one frozen dataclass."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields
from typing import Any

from leafage.errors import InvalidParameterError

DEFAULT_MODEL = "smollm2"

NAMES_ELSEWHERE = {  # what users of vLLM and llama.cpp write
    "cache_type_k": "kv_cache_dtype",
    "cache_type_v": "kv_cache_dtype",
    "enable_prefix_caching": "prefix_index",
    "prefix_cache": "prefix_index",
    "scheduling_policy": "policy",
    "schedule_policy": "policy",
    "gpu_memory_utilization": "kv_cache_bytes",
    "kv_cache_memory_bytes": "kv_cache_bytes",
    "dtype": "compute",
    "quantization": "quantize",
    "swap_space": "swap_bytes",
    "preemption_mode": "preemption",
    "n_ctx": "max_model_len",
    "ctx_size": "max_model_len",
    "n_threads": "threads",
    "num_threads": "threads",
    "n_batch": "max_num_batched_tokens",
}


_POLICIES = ("fcfs", "first_fit", "longest_prefix", "depth_first", "shortest_prompt", "fair", "static")
_PREFIX_INDEXES = ("radix", "radix-node", "hash_chain", "none")
_RESERVED = ("reserved-max", "reserved-pow2", "reserved-oracle")
_ALLOCATORS = ("", "-buddy", "-scattered")
_KV = ("paged", *(f"{reserved}{allocator}" for reserved in _RESERVED for allocator in _ALLOCATORS))


def _setting(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of an engine. Command-line flags are made from these fields and their help.

    Sizes are in tokens unless the name says bytes. None means: decided at start-up, as the help says.

    Raises:
        InvalidParameterError: naming the field, the value and the range.
    """

    model: str = _setting(
        DEFAULT_MODEL,
        "alias (smollm2), path to a .gguf file or a Hugging Face folder, or hf:owner/repo[/file]",
    )
    max_model_len: int | None = _setting(
        None,
        "most tokens of a sequence, prompt and output; default: the model's context, or what the KV pool "
        "holds",
    )
    block_size: int = _setting(16, "tokens in one block of the KV cache")
    kv_cache_bytes: int | None = _setting(
        None, "size of the KV pool in bytes; default: the smaller of 4 GiB and 40 % of the memory left"
    )
    kv_cache_tokens: int | None = _setting(None, "size of the KV pool in tokens, instead of kv_cache_bytes")
    kv_cache_dtype: str | None = _setting(
        None,
        "'bfloat16', or 'int8', which holds nearly twice the tokens; default: bfloat16 (float32 with "
        "compute 'float32')",
    )
    max_num_seqs: int = _setting(256, "most sequences computed in one step")
    max_num_batched_tokens: int = _setting(256, "token budget: most tokens computed in one step")
    policy: str = _setting(
        "fcfs",
        "which waiting request is admitted next: 'fcfs' (the oldest), 'first_fit' (the oldest that fits), "
        "'longest_prefix' (most of it is cached), 'depth_first' (common prefixes together), "
        "'shortest_prompt', 'fair' (the tenant served least), or 'static' (a batch at a time, to compare "
        "with)",
    )
    prefix_index: str = _setting(
        "radix",
        "how common prefixes share K/V: 'radix' (to the token), 'radix-node' (the same, evicted by whole "
        "leaves), 'hash_chain' (whole blocks) or 'none'",
    )
    kv: str = _setting(
        "paged",
        "'paged': blocks on demand; or reserved at admission and never shared, to compare with: "
        "'reserved-max', 'reserved-pow2', 'reserved-oracle', each also with '-buddy' or '-scattered' behind",
    )
    watermark: float = _setting(
        0.02, "share of the KV pool left free when a request is admitted while others run"
    )
    preemption: str = _setting(
        "auto",
        "how a preempted request gets its KV cache back: 'swap', 'recompute', or 'auto', the cheaper of both",
    )
    swap_bytes: int | None = _setting(
        None,
        "size of the swap space; default: a quarter of the KV pool, taken when it is needed",
    )
    swap_path: str | None = _setting(None, "a new file for the swap space; default: memory")
    hardware: str | None = _setting(
        None,
        "JSON file with this machine's speeds, from `leafage sim calibrate`; default: typical ones",
    )
    pinned_share: float | None = _setting(
        None,
        "most of the KV pool that pinned prefixes may hold, 0 to 0.9; requests cannot count on it. "
        "Default: 0.25, or less where a sequence of max_model_len needs the room",
    )
    threads: int | None = _setting(
        None, "threads that compute; default: the CPUs this process may use (affinity, cgroup quota)"
    )
    compute: str = _setting("fast", "'fast': native kernels; 'float32': slow NumPy reference")
    quantize: str | None = _setting(
        None, "'q8' or 'q4': quantize F32, F16 and BF16 weights on load; default: keep the file's types"
    )
    seed: int | None = _setting(None, "makes requests without a seed repeatable from start to start")
    chat_template: str | None = _setting(None, "file with a chat template that replaces the model's own")

    def __post_init__(self) -> None:
        if not isinstance(self.model, str):
            object.__setattr__(self, "model", str(self.model))
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
            _check_count(name, getattr(self, name))
        for name in ("max_model_len", "kv_cache_bytes", "kv_cache_tokens", "threads"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name))
        for name in ("seed", "swap_bytes"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name), low=0)
        _check_choice("policy", self.policy, _POLICIES)
        _check_choice("preemption", self.preemption, ("auto", "swap", "recompute"))
        _check_share("watermark", self.watermark, 0.9)
        if self.block_size not in (1, 2, 4, 8, 16, 32, 64, 128, 256):
            raise InvalidParameterError(
                "block_size must be a power of two", value=self.block_size, limit="1 to 256"
            )
        if self.kv_cache_bytes is not None and self.kv_cache_tokens is not None:
            raise InvalidParameterError(
                "kv_cache_bytes and kv_cache_tokens both set the KV pool's size", remedy="give one of them"
            )
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise InvalidParameterError(
                "max_num_seqs is above the token budget, so that many sequences never fit into a step",
                value=self.max_num_seqs,
                limit=f"max_num_batched_tokens = {self.max_num_batched_tokens}",
                remedy="lower max_num_seqs or raise max_num_batched_tokens",
            )
        _check_choice("compute", self.compute, ("fast", "float32"))
        if self.kv_cache_dtype is not None:
            _check_choice("kv_cache_dtype", self.kv_cache_dtype, ("bfloat16", "int8"))
            if self.compute == "float32":
                raise InvalidParameterError(
                    "compute 'float32' keeps K and V in float32",
                    value=f"kv_cache_dtype = {self.kv_cache_dtype}",
                    remedy="leave kv_cache_dtype unset, or use compute 'fast'",
                )
        if self.quantize is not None:
            _check_choice("quantize", self.quantize, ("q8", "q4"))
        _check_choice("prefix_index", self.prefix_index, _PREFIX_INDEXES)
        _check_choice("kv", self.kv, _KV)
        if self.pinned_share is not None:
            _check_share("pinned_share", self.pinned_share, 0.9)
        self._check_together()

    @property
    def has_prefix_cache(self) -> bool:
        """Whether prefixes are shared between requests, so that they can be pinned."""
        return self.kv == "paged" and self.prefix_index != "none"

    def _check_together(self) -> None:
        """Refuse a setting that would have no effect beside another one."""
        reserved = self.kv != "paged"
        cache = "kv" if reserved else "prefix_index"
        recompute, no_room = self.preemption == "recompute", self.swap_bytes == 0
        no_effect = (
            ("prefix_index", "kv", reserved and self.prefix_index in ("radix-node", "hash_chain")),
            ("policy", cache, self.policy == "longest_prefix" and not self.has_prefix_cache),
            ("pinned_share", cache, bool(self.pinned_share) and not self.has_prefix_cache),
            ("preemption", "kv", reserved and self.preemption == "swap"),
            ("preemption", "swap_bytes", no_room and self.preemption == "swap"),
            ("swap_bytes", "kv", reserved and bool(self.swap_bytes)),
            ("swap_bytes", "preemption", recompute and bool(self.swap_bytes)),
            ("swap_path", "kv", reserved and self.swap_path is not None),
            ("swap_path", "preemption", recompute and self.swap_path is not None),
            ("swap_path", "swap_bytes", no_room and self.swap_path is not None),
        )
        for name, other, found in no_effect:
            if found:
                values = (f"{setting} = {getattr(self, setting)}" for setting in (name, other))
                raise InvalidParameterError(
                    f"{name} has no effect with this {other}",
                    value=", ".join(values),
                    remedy=f"leave {name} at its default, or change {other}",
                )

    @property
    def kv_dtype(self) -> str:
        """What K and V are kept in: 'float32', 'bfloat16' or 'int8'."""
        return "float32" if self.compute == "float32" else self.kv_cache_dtype or "bfloat16"

    @classmethod
    def from_kwargs(cls, **settings: Any) -> EngineConfig:
        """Like the constructor, but an unknown name is refused with the nearest known one."""
        known = [f.name for f in fields(cls)]
        for name in settings:
            if name not in known:
                close = [NAMES_ELSEWHERE[name]] if name in NAMES_ELSEWHERE else None
                close = close or difflib.get_close_matches(name, known, n=1)
                raise InvalidParameterError(
                    f"unknown setting {name}",
                    limit=", ".join(known),
                    remedy=f"did you mean {close[0]}?" if close else None,
                )
        return cls(**settings)


def _check_count(name: str, value: object, low: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidParameterError(f"{name} must be an integer", value=repr(value))
    if value < low:
        raise InvalidParameterError(f"{name} is out of range", value=value, limit=f"at least {low}")


def _check_share(name: str, value: object, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidParameterError(f"{name} must be a number", value=repr(value))
    if not 0 <= value <= most:
        raise InvalidParameterError(f"{name} is out of range", value=value, limit=f"0 to {most}")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidParameterError(f"unknown {name}", value=value, limit=" or ".join(choices))
