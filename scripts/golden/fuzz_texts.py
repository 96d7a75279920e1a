"""Seeded texts that are hard to tokenize: spaces, digits, scripts, emoji, special tokens and near misses."""

# ruff: noqa: E501

from __future__ import annotations

import random

_SPECIALS = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|begin_of_text|>", "<s>", "</s>", "<unk>", "<bos>",
    "<eos>", "<pad>", "<mask>", "<start_of_turn>", "<end_of_turn>", "<unused7>", "<unused99>", "<|fim_pad|>", "[INST]",
    "<|user|>", "<|assistant|>", "<|end|>", "<repo_name>", "<file_sep>", "<0x41>", "<0xE2>", "<h1>", "</table>", "<b>",
    "<|im_start", "im_end|>", "<start_of_", "<|", "|>", "<<", ">>", "[multimodal]", "▁", "▁▁", "Ġ", "Ċ",
]  # fmt: skip
_WORDS = [
    "the", "The", "THE", "hello", "World", "don't", "I'm", "we'll", "they've", "IT'S", "you'Re", "CamelCaseWord",
    "snake_case_name", "naïve", "café", "Straße", "ﬁancé", "ſharp's", "e\u0301clair", "Übergrößenträger", "İstanbul",
    "привет", "мир", "Ελληνικά", "שלום", "مرحبا", "नमस्ते", "ভাষা", "ภาษาไทย", "ខ្មែរ", "日本語", "你好世界", "漢字かな交じり",
    "삼겹살", "안녕하세요", "ქართული", "Հայերեն", "Tiếng Việt", "ⅷ", "½", "²³", "٣٤٥", "१२३", "①②", "𝟘𝟙", "𝓗𝓮𝓵𝓵𝓸",
    "3.14159", "1234567890", "0x1F", "1,000,000", "12:34:56", "a1b22c333", "def f(x):", "x += 1;", "http://a.b/c?d=e",
    "foo@bar.com", "C:\\path", "#hash", "$100", "50%", "...", "!!!", "?!", "—", "“quoted”", "…", "。", "、", "！",
]  # fmt: skip
_EMOJI = [
    "😊",
    "👍🏽",
    "🇰🇷",
    "🇫🇷🇩🇪",
    "👨\u200d👩\u200d👧\u200d👦",
    "🏳️\u200d🌈",
    "❤️",
    "☃",
    "✅",
    "🤷🏿\u200d♂️",
]
_SPACES = [" ", "  ", "   ", "    ", "\t", "\n", "\n\n", "\r\n", " \n", "\n ", "\t\t", "\u00a0", "\u3000", "\u2003",
           "\u200b", "\u2028", "\u0085", "\v", "\f", "\ufeff"]  # fmt: skip
_RANGES = [(0x20, 0x7E), (0xA0, 0x2FF), (0x300, 0x36F), (0x370, 0x5FF), (0x600, 0xDFF), (0xE00, 0x1FFF),
           (0x2000, 0x2BFF), (0x3000, 0x33FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xF900, 0xFFFD),
           (0x10000, 0x10FFF), (0x1D400, 0x1D7FF), (0x1F000, 0x1FAFF), (0x20000, 0x2A6DF), (0xE0000, 0xE007F)]  # fmt: skip


def fuzz_texts(seed: int, count: int) -> list[str]:
    """`count` texts, the same for the same seed."""
    rng = random.Random(seed)

    def piece() -> str:
        kind = rng.random()
        if kind < 0.40:
            return rng.choice(_WORDS)
        if kind < 0.62:
            return rng.choice(_SPACES)
        if kind < 0.70:
            return "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 9)))
        if kind < 0.78:
            return rng.choice(_EMOJI)
        if kind < 0.86:
            return rng.choice(_SPECIALS)
        if kind < 0.92:
            return rng.choice(" \n\ta1!'") * rng.randint(2, 40)
        first, last = rng.choice(_RANGES)
        return "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 4)))

    texts = []
    for _ in range(count):
        gap = rng.choice(["", "", " "])
        texts.append(gap.join(piece() for _ in range(rng.randint(1, 8))))
    return texts
