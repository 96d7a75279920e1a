"""`leafage run`: one prompt, one answer, fit for pipes."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from leafage.cli import terminal
from leafage.cli.flags import ENGINE_FLAGS, SAMPLING_FLAGS, engine_settings, sampling_params, with_flags
from leafage.config import DEFAULT_MODEL
from leafage.core.sampling_params import SamplingParams
from leafage.errors import InvalidParameterError

if TYPE_CHECKING:
    from leafage.engine.output import RequestOutput
    from leafage.llm import LLM

DEFAULT_MAX_TOKENS = 256


@with_flags(
    ENGINE_FLAGS,
    (*SAMPLING_FLAGS, "logprobs", "prompt_logprobs"),
    {"max_tokens": DEFAULT_MAX_TOKENS, "temperature": "the model's, else 0"},
)
def run(
    prompt: str,
    *,
    model: Annotated[str, Parameter(name=["--model", "-m"], env_var="LEAFAGE_MODEL")] = DEFAULT_MODEL,
    stream: bool | None = None,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    **flags: Any,
) -> None:
    """Continue a text. The answer alone goes to stdout, everything else to stderr.

    The prompt goes to the model as it is; no chat template is applied (see `leafage chat`).
    Greedy unless `--temperature` says otherwise or the model recommends settings of its own.

    **Examples**

        leafage run "The capital of France is" --max-tokens 20
        cat letter.txt | leafage run - --temperature 0.7 --seed 1
        leafage run "1, 2, 3," --model gemma3-270m --stop 10
        leafage run "Once" --json --logprobs 3

    Parameters
    ----------
    prompt
        The text to continue; `-` reads it from stdin.
    model
        A known name (`leafage ls`), a path to a .gguf file or Hugging Face folder, or hf:owner/repo[/file].
    stream
        Print the answer as it grows [default: when stdout is a terminal].
    json
        Print one JSON object: text, token ids, finish reason, cached tokens, times, log-probabilities.
    """
    for name in ("logprobs", "prompt_logprobs"):
        if name in flags and not json:
            raise InvalidParameterError(f"{name} has no place in plain text", remedy="add --json")
    if stream and json:
        raise InvalidParameterError("--stream and --json exclude each other", remedy="leave one out")
    # A wrong flag is refused before the model is loaded.
    sampling_params(flags, SamplingParams(), max_tokens=DEFAULT_MAX_TOKENS)
    text = _read_stdin() if prompt == "-" else prompt
    with terminal.open_llm(model, engine_settings(flags)) as llm:
        params = params_for(llm, flags, temperature=0.0, max_tokens=DEFAULT_MAX_TOKENS)
        if json:
            _print_json(llm.generate(text, params)[0])
        elif sys.stdout.isatty() if stream is None else stream:
            for output in llm.stream(text, params):
                sys.stdout.write(output.outputs[0].text)
                sys.stdout.flush()
            print(flush=True)
        else:
            print(llm.generate(text, params)[0].outputs[0].text, flush=True)


def params_for(llm: LLM, flags: dict[str, Any], *, max_tokens: int | None, **defaults: Any) -> SamplingParams:
    """The flags over the model's recommendation, or over `defaults` where the model recommends nothing."""
    recommended = llm.default_sampling_params
    if recommended != SamplingParams():
        defaults = {}
    return sampling_params(flags, recommended, max_tokens=max_tokens, **defaults)


def _read_stdin() -> str:
    data = sys.stdin.buffer.read()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidParameterError("stdin is not UTF-8 text", value=f"byte {error.start}") from None
    return text.removesuffix("\n").removesuffix("\r")


def _print_json(output: RequestOutput) -> None:
    import json

    answer = output.outputs[0]
    metrics = output.metrics
    result: dict[str, Any] = {
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
        "seed": answer.seed,
        "prompt_token_ids": output.prompt_token_ids,
        "num_cached_tokens": output.num_cached_tokens,
        "prefix_miss": None if output.prefix_miss is None else asdict(output.prefix_miss),
        "time_to_first_token_seconds": metrics.time_to_first_token if metrics else None,
        "request_time_per_output_token_seconds": metrics.time_per_output_token if metrics else None,
    }
    if answer.cumulative_logprob is not None:
        result["cumulative_logprob"] = answer.cumulative_logprob
    if answer.logprobs is not None:
        result["logprobs"] = [_plain(position) for position in answer.logprobs]
    if output.prompt_logprobs is not None:
        result["prompt_logprobs"] = [_plain(position) for position in output.prompt_logprobs]
    print(json.dumps(result, ensure_ascii=False), flush=True)


def _plain(position: dict[int, Any] | None) -> dict[str, Any] | None:
    return (
        None if position is None else {str(token_id): asdict(found) for token_id, found in position.items()}
    )
