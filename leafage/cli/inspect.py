"""`leafage inspect`: the machine as the engine sees it, and what is in a model file."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from leafage import store
from leafage.cli import terminal
from leafage.cli.flags import ENGINE_FLAGS, engine_settings, with_flags
from leafage.errors import LeafageError

if TYPE_CHECKING:
    from leafage.formats.model_file import ModelFile

Row = tuple[str, str]
_LONG_VALUE = 120


@with_flags(ENGINE_FLAGS)
def inspect(
    model: str | None = None,
    *,
    metadata: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    tensors: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    **flags: Any,
) -> None:
    """Show CPU features, the chosen kernels, threads and memory; with a model, what is in its file.

    The weights are not loaded. Engine flags change the memory plan that is shown.

    **Examples**

        leafage inspect
        leafage inspect smollm2 --tensors
        leafage inspect model.gguf --metadata --kv-cache-bytes 1GiB

    Parameters
    ----------
    model
        A known name, a path, or hf:owner/repo[/file].
    metadata
        Every key of the file's metadata.
    tensors
        Every tensor.
    """
    path = store.resolve(model) if model is not None else None
    _section("machine", _machine(flags))
    if model is None or path is None:
        return
    from leafage.formats.model_file import open_model

    with open_model(path) as file:
        _section("model", [("name", model), *_model(file)])
        _section("memory plan", _plan(file, flags))
        _section("tensor types", _types(file))
        _section("tokenizer", _tokenizer(file))
        if metadata:
            _section("metadata", [(key, _short(value)) for key, value in file.metadata.items()])
        if tensors:
            rows = [(t.name, f"{t.dtype:6} {' x '.join(map(str, t.shape))}") for t in file.tensors.values()]
            _section("tensors", rows)


def _section(title: str, rows: list[Row]) -> None:
    print(terminal.bold(title))
    width = max((len(label) for label, _ in rows), default=0)
    for label, text in rows:
        first, *rest = text.splitlines() or [""]
        print(f"  {label.ljust(width)}  {first}")
        for line in rest:
            print(f"  {' ' * width}  {line}")


def _machine(flags: dict[str, Any]) -> list[Row]:
    from leafage.kernels import _native
    from leafage.resources import available_cpus, available_memory

    threads = flags.get("threads")
    return [
        ("CPU features", " ".join(_native.cpu_features()) or "none that the kernels know"),
        ("kernels", f"{_native.variant()} (can run here: {', '.join(_native.variants())})"),
        ("threads", f"{threads}" if threads else f"{available_cpus()} (CPUs this process may use)"),
        ("memory left", store.human(available_memory())),
        ("models in", str(store.models_dir())),
    ]


def _model(file: ModelFile) -> list[Row]:
    parameters = sum(_count(tensor.shape) for tensor in file.tensors.values())
    kind = {"gguf": "GGUF", "hf": "Hugging Face folder"}[file.format]
    rows = [
        ("path", str(file.path)),
        ("format", kind),
        ("architecture", file.architecture),
        ("parameters", f"{parameters / 1e6:.1f} M"),
        (
            "weights",
            f"{store.human(file.num_bytes)}, {8 * file.num_bytes / max(parameters, 1):.2f} bits each",
        ),
    ]
    try:
        _, config = _architecture(file)
    except LeafageError as error:
        return [*rows, ("not runnable", str(error))]
    rows += [(f.name.replace("_", " "), _short(getattr(config, f.name))) for f in fields(config)]
    return rows


def _architecture(file: ModelFile) -> tuple[Any, Any]:
    """The architecture's module, and its Config of this model."""
    from leafage import models

    module = models.load(file)
    from_file = module.Config.from_gguf if file.format == "gguf" else module.Config.from_hf
    return module, from_file(file.metadata)


def _plan(file: ModelFile, flags: dict[str, Any]) -> list[Row]:
    """The plan that an engine with these flags would start with."""
    from leafage.config import EngineConfig
    from leafage.memory import check_memory_left, plan_memory
    from leafage.models.tensors import Tensors

    try:
        config = EngineConfig.from_kwargs(**engine_settings(flags))
        module, shape = _architecture(file)
        kv = module.build(shape, Tensors(file)).kv
        bytes_per_token = kv.bytes_per_token(config.kv_dtype)
        plan = plan_memory(
            config,
            weight_bytes=file.num_bytes,
            kv_bytes_per_token=bytes_per_token,
            context_length=shape.max_position,
        )
        check_memory_left(plan)
    except LeafageError as error:
        return [("refused", str(error))]
    return [
        ("KV pool", f"{plan.kv_tokens:,} tokens, {store.human(plan.kv_bytes)}"),
        ("KV of a token", f"{bytes_per_token:,} bytes, {config.kv_dtype}"),
        ("block", f"{plan.block_size} tokens, {plan.num_blocks:,} blocks"),
        ("swap space", f"{plan.num_swap_slots:,} blocks, {store.human(plan.swap_bytes)}"),
        ("for pinned prefixes", f"at most {plan.max_pinned_blocks * plan.block_size:,} tokens"),
        ("largest context", f"{plan.max_model_len:,} tokens (the model's: {plan.context_length:,})"),
        ("such requests at once", f"{plan.num_largest_requests:,}"),
    ]


def _types(file: ModelFile) -> list[Row]:
    count: dict[str, int] = defaultdict(int)
    size: dict[str, int] = defaultdict(int)
    for tensor in file.tensors.values():
        count[tensor.dtype] += 1
        size[tensor.dtype] += tensor.data.nbytes
    order = sorted(count, key=lambda dtype: -size[dtype])
    return [(dtype, f"{count[dtype]:4} tensors  {store.human(size[dtype]):>9}") for dtype in order]


def _tokenizer(file: ModelFile) -> list[Row]:
    from leafage.text.tokenizer import Tokenizer

    kind = file.metadata.get("tokenizer.ggml.model") if file.format == "gguf" else "tokenizer.json"
    rows: list[Row] = [("kind", str(kind))]
    if pre := file.metadata.get("tokenizer.ggml.pre"):
        rows.append(("pre-tokenizer", str(pre)))
    try:
        tokenizer = (
            Tokenizer.from_gguf(file.metadata) if file.format == "gguf" else Tokenizer.from_hf(file.path)
        )
    except LeafageError as error:
        return [*rows, ("refused", str(error))]

    def named(token_id: int | None) -> str:
        return "none" if token_id is None else f"{token_id} {tokenizer.token_text(token_id)!r}"

    rows += [
        ("vocabulary", f"{tokenizer.vocab_size:,} ids, {len(tokenizer.special_ids)} of them special"),
        ("BOS", f"{named(tokenizer.bos_id)}, {'added' if tokenizer.add_bos else 'not added'} to prompts"),
        ("ends a generation", "\n".join(map(named, sorted(tokenizer.eos_ids))) or "nothing"),
        ("chat template", _template(tokenizer.chat_template)),
    ]
    return rows


def _template(source: str | None) -> str:
    if source is None:
        return "none: a base model; `leafage chat` needs --chat-template FILE"
    lines = source.strip().splitlines()
    more = f"\n... {len(lines) - 8} more lines" if len(lines) > 8 else ""
    return "\n".join(line if len(line) <= 90 else line[:89] + "…" for line in lines[:8]) + more


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for side in shape:
        total *= side
    return total


def _short(value: Any) -> str:
    if hasattr(value, "__len__") and not isinstance(value, str) and len(value) > 8:
        first = ", ".join(repr(item) for item in list(value[:4]))
        return f"{len(value):,} values: {first}, ..."
    text = str(value)
    return text if len(text) <= _LONG_VALUE else text[: _LONG_VALUE - 1].replace("\n", "\\n") + "…"
