"""How each `tokenizer.ggml.pre` cuts text before byte-pair merging.

A GGUF file names its pre-tokenizer and leaves the regexes to the reader, so the table is data about models:
the `Split` patterns of each family's published tokenizer.json. The patterns of one entry apply one after the
other; each isolates its matches inside the pieces left by the one before.

Contractions are written `'[sS]` rather than `(?i:'s)`: under Unicode case folding the latter also takes the
long s (U+017F), which llama.cpp, the reference of most GGUF users, does not.
"""

from __future__ import annotations

from dataclasses import dataclass

_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_TAIL = rf"{_SYMBOLS}|\s*[\r\n]+|{_SPACES}"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_TAIL}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}"
)
_BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"

# Words that may change from upper to lower case once: "HTTPServer" is "HTTP" + "Server".
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+SUFFIX|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*SUFFIX"
_CASED_TAIL = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_SPACES}"
_TEKKEN = _CASED.replace("SUFFIX", "") + rf"|\p{{N}}|{_CASED_TAIL}"
_GPT4O = _CASED.replace("SUFFIX", _CONTRACTION + "?") + rf"|\p{{N}}{{1,3}}|{_CASED_TAIL}"

_CJK_DEEPSEEK = "[一-龥ࠀ-一가-퟿]+"
# Letters of alphabets with case, as escapes: normalization by an editor would merge lookalikes.
_DEEPSEEK_LLM_LETTERS = (
    "\\s?[A-Za-z"
    "\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf"
    "\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d"
    "\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4"
    "\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
    "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17"
    "\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb"
    "\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
    "]+"
)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}",
)


@dataclass(frozen=True)
class PreTokenizer:
    """Patterns of one family, and what llama.cpp assumes with them where the file is silent.

    Attributes:
        patterns: regexes in the Oniguruma dialect, applied in order, matches isolated.
        ignore_merges: a piece that is itself in the vocabulary becomes that token without merging.
        add_bos: BOS is prepended unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_DIGITS_THEN_GPT2 = PreTokenizer((r"\p{N}", _GPT2))
_FAMILIES: dict[str, PreTokenizer] = {
    # What llama.cpp uses for files made before `pre` existed.
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat a.x-4.0 mellum exaone4": PreTokenizer(
        (_GPT2,)
    ),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": _DIGITS_THEN_GPT2,
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2": PreTokenizer(
        (_LLAMA3,), ignore_merges=True, add_bos=True
    ),
    "dbrx smaug-bpe chatglm-bpe": PreTokenizer((_LLAMA3,)),
    "glm4 glm5": PreTokenizer((_LLAMA3,), ignore_merges=True),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan solar-open megrez grok-2": PreTokenizer(
        (_QWEN2,)
    ),
    "qwen35": PreTokenizer((_QWEN35,)),
    "minicpm5": PreTokenizer(
        (r"\p{N}{1,3}", rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_TAIL}"), ignore_merges=True
    ),
    "seed-coder": PreTokenizer(
        (rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|{_SPACES}",)
    ),
    "bailingmoe bailingmoe2 llada-moe": PreTokenizer(
        (rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}|{_SYMBOLS}|\s*[\r\n]|{_SPACES}",)
    ),
    "deepseek-llm": PreTokenizer(
        (
            "[\r\n]",
            _DEEPSEEK_LLM_LETTERS,
            "\\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            _CJK_DEEPSEEK,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_DEEPSEEK, r"\p{N}")),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": PreTokenizer(_DEEPSEEK_V3),
    "jais-2": PreTokenizer(
        (
            rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|\s*[\r\n]+"
            + "".join(rf"|\s{{{run}}}(?!\S)" for run in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
            + r"|\s{1}",
        )
    ),
    "exaone-moe": PreTokenizer(
        (
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_SPACES}",
        )
    ),
    "ufakzeka": PreTokenizer((rf"{_WORD}|\p{{N}}|{_TAIL}",)),
    "laguna": PreTokenizer((r"[^\n]+|[\n]+", _QWEN2)),
    "poro-chat bloom gpt3-finnish": PreTokenizer((_BLOOM,)),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": PreTokenizer((_GPT4O,)),
}

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    name: family for names, family in _FAMILIES.items() for name in names.split()
}
