"""SamplingParams: how tokens are drawn and when a sequence ends. Ranges are validated here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from leafage.errors import InvalidParameterError

MAX_LOGPROBS = 20
MAX_SEQUENCES = 1024
MAX_BEAM_WIDTH = 64
MAX_BEAM_CANDIDATES = 1024
MAX_TOP_K = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of one request, named as vLLM and the OpenAI API name them.

    Attributes:
        n: answers to one prompt.
        best_of: sequences to draw, of which the n with the highest cumulative log-probability are the answer.
        beam_width: search for the most likely answers with so many beams instead of drawing; the n best are
            the answer. Needs a temperature of 0 or 1 and neither top_p, top_k nor min_p.
        length_penalty: beams are compared by their log-probability over length ** length_penalty, in [-5, 5].
        early_stopping: True ends the search with the first beam_width answers, False when the best beam, as
            long as it is now, is worse than they, 'never' when it could not be better at any length.
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_p: keep the smallest set of tokens whose probability reaches top_p, in (0, 1].
        top_k: keep the k most likely tokens; 0 keeps all.
        min_p: drop tokens less likely than min_p times the most likely one, in [0, 1].
        repetition_penalty: divide positive, multiply negative logits of seen tokens (prompt and output); in
            [0.01, 100]: less would take logits out of float32.
        presence_penalty, frequency_penalty: subtracted from logits of output tokens, in [-2, 2].
        seed: the generator's key; None lets the engine draw one, reported in CompletionOutput.seed.
        stop: strings that end the text (not part of it unless include_stop_str_in_output).
        stop_token_ids: ids that end the sequence besides the model's end-of-generation ids.
        max_tokens: output tokens at most; None means as many as fit.
        min_tokens: no end-of-generation or stop id, nor stop string, ends the output before this many.
        ignore_eos: end-of-generation ids do not end the output.
        logit_bias: token id -> value added to its logit, in [-100, 100].
        bad_words: strings that must not be produced.
        bad_words_token_ids: the same as token-id sequences; the engine adds those of `bad_words`. The last
            id of a sequence is not drawn where the ids before it end the output so far.
        logprobs: report this many alternatives per output token; None reports none.
        prompt_logprobs: the same for prompt tokens.
        skip_special_tokens: leave special tokens out of the text.
        include_stop_str_in_output: keep the stop string in the text.

    Raises:
        InvalidParameterError: naming the parameter, the value and the range.
    """

    n: int = 1
    best_of: int | None = None
    beam_width: int | None = None
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    max_tokens: int | None = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: Sequence[str] = ()
    bad_words_token_ids: Sequence[Sequence[int]] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        if isinstance(self.bad_words, str):
            object.__setattr__(self, "bad_words", (self.bad_words,))
        _check_int("n", self.n, 1, MAX_SEQUENCES)
        if self.best_of is not None:
            _check_int("best_of", self.best_of, self.n, MAX_SEQUENCES)
        _check_float("temperature", self.temperature, 0.0, 100.0)
        _check_float("top_p", self.top_p, 0.0, 1.0, low_open=True)
        if self.top_k == -1:  # vLLM's spelling of "all"
            object.__setattr__(self, "top_k", 0)
        _check_int("top_k", self.top_k, 0, MAX_TOP_K)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_float("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.seed is not None:
            _check_int("seed", self.seed, 0, 2**64 - 1)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, None)
        _check_int("min_tokens", self.min_tokens, 0, self.max_tokens)
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            _check_int("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise InvalidParameterError("stop must hold non-empty strings", value=repr(text))
        for text in self.bad_words:
            if not isinstance(text, str) or not text:
                raise InvalidParameterError("bad_words must hold non-empty strings", value=repr(text))
        for sequence in self.bad_words_token_ids:
            if not sequence:
                raise InvalidParameterError("bad_words_token_ids must hold non-empty sequences", value="[]")
            for token_id in sequence:
                _check_int("bad_words_token_ids", token_id, 0, None)
        for token_id in self.stop_token_ids:
            _check_int("stop_token_ids", token_id, 0, None)
        for token_id, bias in self.logit_bias.items():
            _check_int("logit_bias token id", token_id, 0, None)
            _check_float(f"logit_bias[{token_id}]", bias, -100.0, 100.0)

        _check_beams(self)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def num_sequences(self) -> int:
        """Sequences that run at once for the request: the size of its gang."""
        return self.beam_width or self.best_of or self.n


def _check_beams(params: SamplingParams) -> None:
    if not isinstance(params.early_stopping, bool) and params.early_stopping != "never":
        limit = "True, False or 'never'"
        raise InvalidParameterError("unknown early_stopping", value=repr(params.early_stopping), limit=limit)
    _check_float("length_penalty", params.length_penalty, -5.0, 5.0)
    if params.beam_width is None:
        for name in ("length_penalty", "early_stopping"):
            if getattr(params, name) != (1.0 if name == "length_penalty" else False):
                remedy = "set beam_width as well, or leave it out"
                raise InvalidParameterError(
                    f"{name} is for beam search", value=getattr(params, name), remedy=remedy
                )
        return
    _check_int("beam_width", params.beam_width, 1, MAX_BEAM_WIDTH)
    if params.n > params.beam_width:
        raise InvalidParameterError(
            "n asks for more answers than there are beams",
            value=params.n,
            limit=f"beam_width = {params.beam_width}",
            remedy="lower n or raise beam_width",
        )
    candidates = (1 + len(params.stop_token_ids)) * params.beam_width
    if candidates > MAX_BEAM_CANDIDATES:  # each step looks at all of them, and every other request waits
        raise InvalidParameterError(
            "beam search has too many candidates: beam_width x (1 + stop_token_ids)",
            value=candidates,
            limit=MAX_BEAM_CANDIDATES,
            remedy="lower beam_width or give fewer stop_token_ids",
        )
    drawing: dict[str, object] = {"best_of": None, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    for name, unset in drawing.items():
        if getattr(params, name) != unset:
            raise InvalidParameterError(
                f"beam search draws nothing, so it has no use for {name}",
                value=getattr(params, name),
                remedy=f"leave {name} or beam_width out",
            )
    if params.temperature not in (0.0, 1.0):
        raise InvalidParameterError(
            "beam search takes the model's own probabilities",
            value=f"temperature = {params.temperature}",
            limit="0 or 1",
        )


def _check_int(name: str, value: object, low: int, high: int | None) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidParameterError(f"{name} must be an integer", value=repr(value))
    if value < low or (high is not None and value > high):
        limit = f"{low} to {high}" if high is not None else f"at least {low}"
        raise InvalidParameterError(f"{name} is out of range", value=value, limit=limit)


def _check_float(name: str, value: object, low: float, high: float, *, low_open: bool = False) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidParameterError(f"{name} must be a number", value=repr(value))
    if not low <= value <= high or (low_open and value == low):  # NaN neither
        opening = "above" if low_open else "from"
        raise InvalidParameterError(
            f"{name} is out of range", value=value, limit=f"{opening} {low} to {high}"
        )
