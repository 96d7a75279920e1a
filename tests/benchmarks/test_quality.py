"""The arithmetic of benchmarks/quality.py against formulas written out, and what it reads of llama.cpp."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import quality
from quality import Positions, Reference

RNG = np.random.default_rng(0)
VOCAB = 50


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def random_logits(n: int) -> np.ndarray:
    return (RNG.standard_normal((n, VOCAB)) * 3 + 100).astype(np.float32)


def test_figures_are_those_of_the_formulas() -> None:
    reference, logits = random_logits(200), random_logits(200)
    targets = RNG.integers(0, VOCAB, 200)
    positions = Positions()
    for part in (slice(0, 64), slice(64, 128), slice(128, 200)):  # any slicing gives the same
        positions.add(Reference(reference[part], targets[part]), logits[part])
    f = positions.figures()

    p, q = softmax(reference), softmax(logits)
    rows = np.arange(200)
    nll_p, nll_q = -np.log(p[rows, targets]), -np.log(q[rows, targets])
    kl = (p * np.log(p / q)).sum(axis=1)
    assert f.positions == 200
    assert f.perplexity == pytest.approx(math.exp(nll_q.mean()), rel=1e-6)
    assert f.reference_perplexity == pytest.approx(math.exp(nll_p.mean()), rel=1e-6)
    assert f.ratio == pytest.approx(f.perplexity / f.reference_perplexity, rel=1e-9)
    assert f.ratio_error == pytest.approx(f.ratio * (nll_q - nll_p).std() / math.sqrt(200), rel=1e-5)
    assert f.top1 == (p.argmax(axis=1) == q.argmax(axis=1)).mean()
    assert f.kl_mean == pytest.approx(kl.mean(), rel=1e-5)
    assert f.kl_p999 == pytest.approx(np.quantile(kl, 0.999), rel=1e-5)


def test_a_side_equal_to_the_reference_misses_nothing() -> None:
    logits, targets = random_logits(30), RNG.integers(0, VOCAB, 30)
    positions = Positions()
    positions.add(Reference(logits, targets), logits + np.float32(8))  # the same distribution
    f = positions.figures()
    assert f.ratio == pytest.approx(1, abs=1e-5) and f.top1 == 1 and abs(f.kl_mean) < 1e-5
    assert f.missed() == []


def test_small_divergences_are_not_lost_in_a_large_vocabulary() -> None:
    reference = (RNG.standard_normal((4, 262_144)) * 4).astype(np.float32)
    logits = reference + (RNG.standard_normal(reference.shape) * 0.01).astype(np.float32)
    positions = Positions()
    positions.add(Reference(reference, np.zeros(4, int)), logits)
    p, q = softmax(reference), softmax(logits)
    kl = (p * (np.log(p) - np.log(q))).sum(axis=1).mean()
    assert positions.figures().kl_mean == pytest.approx(kl, abs=5e-7)


def test_limits() -> None:
    def figures(ratio: float, top1: float) -> quality.Figures:
        return quality.Figures(10, 20 * ratio, 20, ratio, 0.001, top1, 0.001, 0.01)

    assert figures(1.005, 0.97).missed() == []
    assert [m.split()[0] for m in figures(1.0051, 0.98).missed()] == ["perplexity"]
    assert [m.split()[0] for m in figures(0.9949, 0.969).missed()] == ["perplexity", "top-1"]


def test_windows_are_whole_and_begin_with_bos_where_there_is_one() -> None:
    tokens = list(range(10, 21))
    assert quality.windows_of(tokens, 5, None) == [[10, 11, 12, 13, 14], [15, 16, 17, 18, 19]]
    assert quality.windows_of(tokens, 5, 1) == [[1, 11, 12, 13, 14], [1, 16, 17, 18, 19]]
    assert quality.windows_of(tokens, 12, 1) == []


def test_second_half_is_what_llama_perplexity_scores() -> None:
    """Chunks of n tokens: it scores the predictions from token n / 2 on, all but the last token's."""
    mask = quality.second_half(3, 8, limit=2).reshape(3, 7)
    assert mask.tolist() == [[False] * 4 + [True] * 3] * 2 + [[False] * 7]


def test_the_text_is_long_enough_and_described() -> None:
    text = quality.TEXT.read_text(encoding="utf-8")
    assert len(text.split()) > 15_000
    about = (quality.TEXT.parent / "README.md").read_text(encoding="utf-8")
    assert quality.TEXT.name in about and f"{len(text.encode()):,} bytes" in about and "public" in about


LLAMACPP = """
====== Perplexity statistics ======
Mean PPL(Q)                   :  15.348411 ±   1.312896
Mean PPL(base)                :  15.336416 ±   1.311147
Cor(ln(PPL(Q)), ln(PPL(base))):  99.96%
Mean ln(PPL(Q)/PPL(base))     :   0.000782 ±   0.002331
Mean PPL(Q)/PPL(base)         :   1.000782 ±   0.002333
Mean PPL(Q)-PPL(base)         :   0.011995 ±   0.035806

====== KL divergence statistics ======
Mean    KLD:   0.002633 ±   0.000129
Maximum KLD:   0.066877
99.9%   KLD:   0.049910
99.0%   KLD:   0.017708

====== Token probability statistics ======
99.9%   Δp: 10.044%
Same top p: 97.847 ± 0.454 %
"""


def test_llamacpp_figures_are_read() -> None:
    assert quality.parse_llamacpp(LLAMACPP, 1022) == quality.Figures(
        positions=1022,
        perplexity=15.348411,
        reference_perplexity=15.336416,
        ratio=1.000782,
        ratio_error=0.002333,
        top1=pytest.approx(0.97847),
        kl_mean=0.002633,
        kl_p999=0.049910,
    )


def test_a_missing_line_of_llamacpp_is_an_error() -> None:
    with pytest.raises(ValueError, match="Same top"):
        quality.parse_llamacpp(LLAMACPP.replace("Same top p", "Other"), 1022)


@pytest.mark.real_model
def test_native_logits_of_a_window_are_those_of_the_engine(smollm2_path: Path) -> None:
    """The tool's own step inputs lead to the log-probabilities that the engine reports."""
    from leafage import LLM, SamplingParams
    from leafage.kernels import _native

    side = quality.Side(str(smollm2_path), 64, 2, _native.variant())
    text = quality.TEXT.read_text(encoding="utf-8")[:2000]
    [window, *_] = quality.windows_of(side.build.tokenizer.encode(text), 64, None)
    logits = np.concatenate(
        [part.copy() for part in side.forward(quality.step_of(window, side.build.config.block_size))]
    )
    ours = logits[np.arange(63), window[1:]] - quality.log_sum_exp(logits)
    with LLM(str(smollm2_path), kv_cache_tokens=128) as llm:
        params = SamplingParams(max_tokens=1, prompt_logprobs=0)
        [output] = llm.generate({"prompt_token_ids": window}, params)
    theirs = [
        entry[token].logprob for token, entry in zip(window[1:], output.prompt_logprobs[1:], strict=True)
    ]
    assert ours == pytest.approx(theirs, abs=1e-4)
