"""Makes tests/text/golden/*.json.gz: what llama.cpp's tokenizer says, for the tests of leafage/text.

Needs the unpacked source archive of `llama-cpp-python` (it carries llama.cpp and its vocabulary files),
built once, and the two real models:

    pip download --no-binary :all: --no-deps llama-cpp-python && tar xzf llama_cpp_python-*.tar.gz cmake -S
    llama_cpp_python-*/vendor/llama.cpp -B build -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \\
        -DLLAMA_CURL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF && cmake --build build --target
        llama-tokenize
    python scripts/golden/make_text_golden.py llama_cpp_python-*/vendor/llama.cpp build MODELS_FOLDER

With LEAFAGE_TEST_VOCABS=llama_cpp_python-*/vendor/llama.cpp/models, tests/text also read the whole
vocabularies.
"""

from __future__ import annotations

import ast
import base64
import gzip
import json
import re
import struct
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

from fuzz_texts import fuzz_texts  # noqa: E402

from leafage.formats.gguf import read_gguf  # noqa: E402
from leafage.text.byte_level import BYTE_OF_CHAR  # noqa: E402
from leafage.text.pretokenizers import PRE_TOKENIZERS  # noqa: E402

OUT = HERE.parent.parent / "tests" / "text" / "golden"
FAMILIES = [
    "llama-spm",
    "phi-3",
    "llama-bpe",
    "qwen2",
    "qwen35",
    "gpt-2",
    "deepseek-llm",
    "deepseek-coder",
    "starcoder",
    "refact",
    "falcon",
    "mpt",
    "command-r",
    "gemma-4",
    "nomic-bert-moe",
]
MODELS = {"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma3": "gemma3-270m-Q4_K_M.gguf"}
NUM_FUZZED, NUM_FAMILY_FUZZED, NUM_SPLIT_FUZZED = 2000, 60, 200
FLAGS = 4  # (add_special, parse_special) = 00, 01, 10, 11


def record(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data


class Reference:
    """The compiled llama_reference.cpp."""

    def __init__(self, source: Path, build: Path) -> None:
        self.path = Path(tempfile.mkdtemp()) / "llama_reference"
        libraries = (
            "src/libllama.a",
            "ggml/src/libggml.a",
            "ggml/src/libggml-cpu.a",
            "ggml/src/libggml-base.a",
        )
        command = ["g++", "-O2", "-std=c++17", str(HERE / "llama_reference.cpp"), "-o", str(self.path)]
        command += [f"-I{source / folder}" for folder in ("include", "ggml/include", "src")]
        subprocess.run(
            [*command, *(str(build / x) for x in libraries), "-lpthread", "-ldl", "-fopenmp"], check=True
        )

    def _lines(self, arguments: list[str], records: list[str]) -> list[list[int]]:
        data = b"".join(map(record, records))
        run = subprocess.run([str(self.path), *arguments], input=data, stdout=subprocess.PIPE, check=True)
        return [[int(number) for number in line.split()] for line in run.stdout.decode().split("\n")[:-1]]

    def tokenize(self, model: Path, texts: list[str]) -> list[list[list[int]]]:
        """Per text the ids for each of the four flags."""
        lines = self._lines(["tokenize", str(model)], texts)
        return [lines[i : i + FLAGS] for i in range(0, len(lines), FLAGS)]

    def split(self, regexes: list[str], texts: list[str]) -> list[list[int]]:
        """Per text the lengths of its pieces."""
        lines = self._lines(["split", str(len(regexes))], [*regexes, *texts])
        return [[length for length in line if length] for line in lines]


def sample_texts(source: Path) -> list[str]:
    """The texts that llama.cpp's own tests use."""
    texts: list[str] = []
    for path in sorted((source / "models").glob("*.gguf.inp")):
        texts += path.read_bytes().decode().split("\n__ggml_vocab_test__\n")
    return [text for text in dict.fromkeys(texts) if text]


def write(name: str, content: Any) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    data = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    (OUT / f"{name}.json.gz").write_bytes(gzip.compress(data, 9, mtime=0))
    print(name, len(data), "->", (OUT / f"{name}.json.gz").stat().st_size)


def splits_comparable(name: str, text: str) -> bool:
    """Whether llama.cpp's regexes mean what the published ones mean on this text.

    It approximates letter case by ASCII (tekken, gpt-4o) and reads other white space than ASCII as a
    vertical tab (DeepSeek); and characters newer than Unicode 14 depend on each side's tables.
    """
    kinds = {unicodedata.category(char) for char in text if not char.isascii()}
    if "Cn" in kinds:
        return False
    if name in ("tekken", "gpt-4o"):
        return not kinds & {"Lu", "Ll", "Lt", "Lm", "Mn", "Mc", "Me"}
    if name.startswith("deepseek"):
        return not any(char.isspace() and not char.isascii() for char in text)
    return True


def ids_comparable(metadata: dict[str, Any]) -> Callable[[str], bool]:
    """Tells whether Leafage means to give llama.cpp's ids on a text (besides never giving two BOS).

    llama.cpp takes `</s>` for a control token even where the file says that it is text (Gemma's HTML tag,
    Phi-3, Qwen); and where a byte-level vocabulary lacks a byte (Falcon: vertical tab), it merges around the
    hole in an order of its own.
    """
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    pre = metadata.get("tokenizer.ggml.pre", "")
    is_text = "</s>" in tokens and types[tokens.index("</s>")] != 3
    byte_level = metadata["tokenizer.ggml.model"] == "gpt2"
    have = (
        {BYTE_OF_CHAR[token] for token in tokens if token in BYTE_OF_CHAR} if byte_level else set(range(256))
    )

    def comparable(text: str) -> bool:
        if is_text and "</s>" in text:
            return False
        return have.issuperset(text.encode()) and (not byte_level or splits_comparable(pre, text))

    return comparable


def real_model(reference: Reference, path: Path, texts: list[str]) -> dict[str, Any]:
    """Ids with and without parsing of special tokens. Adding special ones must only put BOS in front."""
    metadata, _ = read_gguf(path)
    front = [metadata["tokenizer.ggml.bos_token_id"]] if metadata["tokenizer.ggml.add_bos_token"] else []
    texts = list(filter(ids_comparable(metadata), texts))
    rows = reference.tokenize(path, texts)
    for plain, special, plain_bos, special_bos in rows:
        assert plain_bos == front + plain and special_bos == front + special
    return {
        "front": front,
        "texts": texts,
        "plain": [row[0] for row in rows],
        "special": [row[1] if row[1] != row[0] else None for row in rows],
    }


def substrings(texts: list[str], longest: int) -> set[str]:
    return {text[i : i + size] for text in texts for i in range(len(text)) for size in range(1, longest + 1)}


def family(reference: Reference, path: Path, texts: list[str]) -> dict[str, Any]:
    """Cases of one vocabulary, and the part of it that these texts can reach: no other can take part."""
    metadata, _ = read_gguf(path)
    tokens = metadata["tokenizer.ggml.tokens"]
    model = metadata["tokenizer.ggml.model"]
    types = [int(kind) for kind in metadata["tokenizer.ggml.token_type"]]
    if model == "gpt2":
        char_of_byte = {byte: char for char, byte in BYTE_OF_CHAR.items()}
        reachable = substrings(["".join(char_of_byte[b] for b in text.encode()) for text in texts], 40)
    elif model == "t5":
        normal = [unicodedata.normalize(form, text) for text in texts for form in ("NFC", "NFKC")]
        reachable = substrings([text.replace(" ", "▁") for text in normal], 40)
    else:
        reachable = substrings([text.replace(" ", "▁") for text in texts], 40)
    if (
        model != "gpt2"
    ):  # a space also comes in front of a text, behind special tokens and for control characters
        reachable |= {"▁"} | {"▁" + text for text in reachable}
    everything = "\0".join(texts)
    special_ids = {int(v) for k, v in metadata.items() if k.endswith("_token_id")}
    kept = {
        i: (token, types[i])
        for i, token in enumerate(tokens)
        if i in special_ids
        or types[i] == 6
        or token in reachable
        or (types[i] in (2, 3, 4) and token in everything)
        or (model == "gpt2" and len(token) == 1)
    }
    names = {token for token, _ in kept.values()}
    comparable = ids_comparable(metadata)
    merges = metadata.get("tokenizer.ggml.merges")
    if merges is not None:
        pairs = [(text[: (at := text.find(" ", 1))], text[at + 1 :]) for text in merges]
        merges = [f"{a} {b}" for a, b in pairs if a in names and b in names and a + b in names]
    scores = metadata.get("tokenizer.ggml.scores")
    scalars = {
        key: value
        for key, value in metadata.items()
        if (key.startswith("tokenizer.ggml.") or key == "general.name")
        and isinstance(value, (str, int, bool))
    }
    if "tokenizer.ggml.precompiled_charsmap" in metadata:
        scalars["tokenizer.ggml.precompiled_charsmap"] = base64.b64encode(
            metadata["tokenizer.ggml.precompiled_charsmap"].tobytes()
        ).decode()
    return {
        "metadata": scalars,
        "size": len(tokens),
        "tokens": [
            [i, text, kind] + ([float(scores[i])] if scores is not None else [])
            for i, (text, kind) in kept.items()
        ],
        "merges": merges,
        "ids": [
            ids if comparable(text) else None
            for text, ids in zip(texts, reference.tokenize(path, texts), strict=True)
        ],
    }


def reference_regexes(source: Path) -> dict[str, list[str]]:
    """The regexes of each `tokenizer.ggml.pre`, read from llama.cpp's source."""
    code = (source / "src" / "llama-vocab.cpp").read_text(encoding="utf-8")
    start = code.index("struct llm_tokenizer_bpe : llm_tokenizer")
    body = code[start : code.index("struct llm_tokenizer_bpe_session")]
    by_type: dict[str, list[str]] = {}
    pending: list[str] = []
    cases = r"case (LLAMA_VOCAB_PRE_TYPE_\w+):|(default):|regex_exprs = \{(.*?)\n\s*\};"
    for match in re.finditer(cases, body, re.DOTALL):
        if match[1] or match[2]:
            pending.append(match[1] or "default")
            continue
        strings = re.findall(r'"(?:[^"\\]|\\.)*"', re.sub(r"^\s*//.*$", "", match[3], flags=re.MULTILINE))
        by_type |= {kind: [ast.literal_eval(string) for string in strings] for kind in pending}
        pending = []
    names: dict[str, list[str]] = {}
    condition = r'if \(\s*((?:tokenizer_pre == "[^"]+"\s*(?:\|\|\s*)?)+)\)\s*\{\s*pre_type = (\w+)'
    for match in re.finditer(condition, code):
        for name in re.findall(r'"([^"]+)"', match[1]):
            names[name] = by_type.get(match[2], by_type["default"])
    return names


def splits(reference: Reference, source: Path, texts: list[str]) -> dict[str, Any]:
    """Piece lengths for the first name of each family of pre-tokenizers."""
    regexes = reference_regexes(source)
    result: dict[str, Any] = {}
    seen: set[int] = set()
    for name, rules in PRE_TOKENIZERS.items():
        if id(rules) not in seen:
            seen.add(id(rules))
            usable = [i for i, text in enumerate(texts) if splits_comparable(name, text)]
            result[name] = dict(
                zip(map(str, usable), reference.split(regexes[name], [texts[i] for i in usable]), strict=True)
            )
    return {"texts": texts, "splits": result, "regexes": {name: regexes[name] for name in result}}


def main() -> None:
    source, build, models = (Path(argument) for argument in sys.argv[1:4])
    reference = Reference(source, build)
    samples = sample_texts(source)
    for name, file in MODELS.items():
        write(name, real_model(reference, models / file, samples + fuzz_texts(1, NUM_FUZZED)))
    texts = samples + fuzz_texts(2, NUM_FAMILY_FUZZED)
    vocabularies = {
        name: family(reference, source / "models" / f"ggml-vocab-{name}.gguf", texts) for name in FAMILIES
    }
    write("families", {"texts": texts, "families": vocabularies})
    write("splits", splits(reference, source, samples + fuzz_texts(3, NUM_SPLIT_FUZZED)))


if __name__ == "__main__":
    main()
