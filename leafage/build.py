"""From a configuration to a running engine: the only file that knows all sides."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from leafage.config import EngineConfig
from leafage.core.sampling_params import SamplingParams
from leafage.core.scheduler import Scheduler
from leafage.core.step_times import StepTimes
from leafage.engine.engine import Engine
from leafage.engine.inputs import InputProcessor
from leafage.engine.metrics import EngineMetrics, MonotonicClock, engine_stats
from leafage.engine.output import OutputProcessor
from leafage.engine.stop import StopStringCheck
from leafage.errors import InvalidParameterError, ModelFileError, ModelNotFoundError, TemplateError
from leafage.memory import (
    MemoryPlan,
    check_memory_left,
    check_swap_path,
    kv_manager,
    plan_memory,
    restore_cost,
    swap_store,
)
from leafage.resources import available_cpus
from leafage.sim.hardware import Hardware

if TYPE_CHECKING:
    from leafage.core.swap import RestoreCost
    from leafage.formats.model_file import ModelFile
    from leafage.runtime.load import LoadedModel
    from leafage.sim.llm_spec import LLMSpec
    from leafage.sim.simulation import Simulation
    from leafage.sim.workload import SimRequest
    from leafage.text.chat_template import ChatTemplate
    from leafage.text.tokenizer import Tokenizer


class PlainKernelsWarning(UserWarning):
    """The engine computes with plain C++, several times slower than with vector instructions."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is served. `name` is as the user wrote it; `file_bytes` counts the tensors."""

    name: str
    path: Path
    architecture: str
    format: str
    file_bytes: int
    vocab_size: int
    context_length: int


@dataclass(frozen=True, slots=True)
class Assets:
    """What is read from the model's files: weights in memory, tokenizer, facts."""

    model: LoadedModel
    tokenizer: Tokenizer
    info: ModelInfo
    default_sampling_params: SamplingParams


@dataclass
class Build:
    """An engine and what belongs to it. `engine` and `outputs` belong to one thread at a time."""

    config: EngineConfig
    engine: Engine
    inputs: InputProcessor
    outputs: OutputProcessor
    metrics: EngineMetrics
    tokenizer: Tokenizer
    template_source: str | None
    model: ModelInfo
    plan: MemoryPlan
    threads: int
    kernels: str
    default_sampling_params: SamplingParams

    @cached_property
    def template(self) -> ChatTemplate:
        """The chat template, compiled when it is first needed.

        Raises:
            TemplateError: the model has none, or it does not parse.
        """
        from leafage.text.chat_template import ChatTemplate

        return ChatTemplate.of(self.tokenizer, self.template_source)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **template_kwargs: Any) -> list[int]:
        """Token ids of a conversation through the chat template, ready for the assistant's answer.

        Raises:
            TemplateError: there is no template, or it refused the messages.
        """
        from leafage.text.chat_template import encode_chat

        return encode_chat(self.tokenizer, self.template, messages, **template_kwargs)

    def encode_chat_prefix(self, messages: Sequence[Mapping[str, Any]], **template_kwargs: Any) -> list[int]:
        """Token ids that all conversations share which begin with these messages.

        Raises:
            TemplateError: there is no template, or it refused the messages.
        """
        from leafage.text.chat_template import encode_chat_prefix

        return encode_chat_prefix(self.tokenizer, self.template, messages, **template_kwargs)

    def stats(self) -> dict[str, int | float]:
        """Counters and gauges; only on the thread that steps the engine."""
        return engine_stats(self.engine, self.metrics)

    def reset_prefix_cache(self) -> int:
        """Forget cached prefixes, returns the blocks freed; only on the thread that steps the engine."""
        return self.engine.scheduler.kv.reset_prefix_cache()


def build_engine(config: EngineConfig, *, on_progress: Callable[[int, int], None] | None = None) -> Build:
    """Open the model, load its weights, plan the memory and put the engine together.

    Args:
        on_progress: called with (bytes done, bytes in all) while weights are loaded.

    Raises:
        ModelNotFoundError, DownloadError, ModelFileError, UnsupportedError: the model cannot be used.
        InvalidParameterError: a setting does not fit the model or the memory.
        TemplateError: the chat template that the configuration names cannot be used.
    """
    _check_files(config)
    return assemble(config, load_assets(config, on_progress=on_progress))


def _check_files(config: EngineConfig) -> None:
    """Refuse files that cannot be used before the model is loaded, which may take minutes."""
    if config.hardware is not None:
        Hardware.load(config.hardware)
    if config.chat_template is not None:
        _template_source(config.chat_template)
    check_swap_path(config)


def load_assets(config: EngineConfig, *, on_progress: Callable[[int, int], None] | None = None) -> Assets:
    """The part of `build_engine` that reads the model. Its result can serve several engines."""
    from leafage.formats import open_model
    from leafage.runtime.load import load_model

    path = _locate(config.model)
    quantize = cast("Literal['q8', 'q4'] | None", config.quantize)  # which EngineConfig has checked
    # Weights are packed without the GIL, so the tokenizer is made meanwhile.
    with open_model(path) as model_file, ThreadPoolExecutor(1) as pool:
        tokenizing = pool.submit(_tokenizer, model_file)

        def progress(done: int, total: int) -> None:
            if tokenizing.done():
                tokenizing.result()  # its error ends the loading
            if on_progress is not None:
                on_progress(done, total)

        model = load_model(
            model_file,
            compute=config.compute,
            quantize=quantize,
            num_threads=_threads(config),
            progress=progress,
        )
        return Assets(
            model=model,
            tokenizer=tokenizing.result(),
            info=ModelInfo(
                name=config.model,
                path=path,
                architecture=model_file.architecture,
                format=model_file.format,
                file_bytes=model_file.num_bytes,
                vocab_size=model.program.vocab_size,
                context_length=model.config.max_position,
            ),
            default_sampling_params=_default_sampling_params(model_file),
        )


def assemble(config: EngineConfig, assets: Assets) -> Build:
    """The part of `build_engine` that plans the memory and puts the parts together."""
    from leafage.runtime.model_runner import LocalExecutor

    model, tokenizer, info = assets.model, assets.tokenizer, assets.info
    plan = plan_memory(
        config,
        weight_bytes=model.num_weight_bytes,
        kv_bytes_per_token=model.program.kv.bytes_per_token(config.kv_dtype),
        context_length=info.context_length,
    )
    check_memory_left(plan)
    threads, kernels = _threads(config), _kernels(config)
    clock = MonotonicClock()
    times = StepTimes(clock.now)
    executor = LocalExecutor(
        model,
        num_blocks=plan.num_blocks,
        block_size=plan.block_size,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=plan.max_model_len,
        num_threads=threads,
        kv_dtype=config.kv_dtype,
        times=times,
        new_swap_store=partial(swap_store, config, plan) if plan.num_swap_slots else None,
    )
    stop_check = StopStringCheck()
    cost = restore_cost(
        Hardware.of_cpu(kernels) if config.hardware is None else Hardware.load(config.hardware),
        model.program,
        plan,
        num_threads=threads,
        in_file=config.swap_path is not None,
    )
    scheduler = _scheduler(config, plan, cost, stop_check)
    metrics = EngineMetrics(clock, scheduler)
    engine = Engine(
        scheduler,
        executor,
        clock=clock,
        vocab_size=info.vocab_size,
        eos_token_ids=frozenset(tokenizer.eos_ids),
        seed=config.seed,
        observer=metrics,
        times=times,
    )
    build = Build(
        config=config,
        engine=engine,
        inputs=InputProcessor(tokenizer),
        outputs=OutputProcessor(tokenizer, stop_check, metrics),
        metrics=metrics,
        tokenizer=tokenizer,
        template_source=None if config.chat_template is None else _template_source(config.chat_template),
        model=info,
        plan=plan,
        threads=threads,
        kernels=kernels,
        default_sampling_params=assets.default_sampling_params,
    )
    if config.chat_template is not None:
        build.template  # noqa: B018 (a template that the user gave is refused now, not at the first chat)
    return build


def build_simulation(
    config: EngineConfig,
    hardware: Hardware,
    spec: LLMSpec,
    *,
    tensor_parallel: int = 1,
    fast_forward: bool = True,
) -> Simulation:
    """The engine that `config` describes, over a cost model of `spec` on `hardware` and a virtual clock.

    The KV pool takes what the device's memory leaves, unless the configuration sets its size. Settings of the
    model's file and of this machine (model, compute, quantize, threads...) have no effect. Nor has
    `fast_forward`, but for the time it takes: see `Simulation`.

    Raises:
        InvalidParameterError: the model does not fit, or a setting does not fit the pool.
    """
    from leafage.sim.cost_model import CostModel
    from leafage.sim.executor import SimExecutor, VirtualClock
    from leafage.sim.simulation import Simulation

    cost_model = CostModel(hardware, spec, tensor_parallel=tensor_parallel, block_size=config.block_size)
    if config.kv_cache_tokens is None and config.kv_cache_bytes is None:
        config = replace(config, kv_cache_bytes=cost_model.kv_pool_bytes)
    plan = plan_memory(
        config,
        weight_bytes=int(spec.weight_bytes),
        kv_bytes_per_token=int(cost_model.kv_bytes_per_token),
        context_length=spec.context_length,
    )
    scheduler = _scheduler(config, plan, cost_model.restore_cost)
    clock = VirtualClock()
    metrics = EngineMetrics(clock, scheduler)
    requests: dict[str, SimRequest] = {}
    engine = Engine(
        scheduler,
        SimExecutor(cost_model, clock, requests),
        clock=clock,
        vocab_size=1 << 62,  # token ids of traces are numbers, not words
        seed=config.seed or 0,
        observer=metrics,
    )
    return Simulation(engine, clock, metrics, requests, fast_forward=fast_forward)


def _scheduler(
    config: EngineConfig, plan: MemoryPlan, cost: RestoreCost, stop_check: StopStringCheck | None = None
) -> Scheduler:
    return Scheduler(
        kv_manager(config, plan),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=plan.max_model_len,
        stop_check=stop_check,
        policy=config.policy,
        watermark=int(config.watermark * plan.num_blocks),
        preemption=config.preemption,
        restore_cost=cost,
    )


def _kernels(config: EngineConfig) -> str:
    """The instruction set that computes. Warns where none of those with kernels of their own is there."""
    from leafage.kernels import _native

    if config.compute == "float32":
        return "NumPy"
    chosen: str = _native.variant()
    if chosen == "plain":
        warnings.warn(
            "the kernels are plain C++ and slow: this CPU has no instruction set with faster ones (AVX2 or "
            "AVX-512 VNNI on x86-64, NEON with dot products on ARM), or LEAFAGE_KERNELS=plain is set",
            PlainKernelsWarning,
            stacklevel=3,
        )
    return chosen


def _threads(config: EngineConfig) -> int:
    return available_cpus() if config.threads is None else config.threads


def _locate(name: str) -> Path:
    """The model's file or folder; what has a name and is not here yet is pulled."""
    from leafage import store

    try:
        return store.resolve(name)
    except ModelNotFoundError:
        if name in store.ALIASES or name.startswith("hf:"):
            return store.pull(name)
        raise


def _tokenizer(model_file: ModelFile) -> Tokenizer:
    from leafage.text.tokenizer import Tokenizer

    if model_file.folder is not None:
        return Tokenizer.from_hf(model_file.folder)
    return Tokenizer.from_gguf(model_file.metadata)


def _template_source(file: str) -> str:
    try:
        return Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateError(f"the chat template file cannot be read: {error}", value=file) from error


_GENERATION_FIELDS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def _default_sampling_params(model_file: ModelFile) -> SamplingParams:
    """What the model's makers recommend (`generation_config.json`), as vLLM reads it; else the defaults."""
    recommended = model_file.generation_config or {}
    settings = {
        ours: recommended[theirs]
        for theirs, ours in _GENERATION_FIELDS.items()
        if recommended.get(theirs) is not None
    }
    try:
        return SamplingParams(**settings)
    except InvalidParameterError as error:
        raise ModelFileError(f"generation_config of {model_file.path.name}: {error}") from error
