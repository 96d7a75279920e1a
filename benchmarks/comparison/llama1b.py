"""A GGUF file with the shape of Llama 3.2 1B and random weights: a larger model that nobody has to fetch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from leafage.store import home

LAYERS, HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM = 16, 2048, 8192, 32, 8, 64
VOCABULARY, CONTEXT, ROPE_BASE, EPS = 128_256, 8192, 500_000.0, 1e-5
SEED = 20_260_101
WEIGHT_RMS = 0.02  # about that of trained ones of this width


def cached_file() -> Path:
    """The file in Leafage's folder, written when it is not there (0.8 GB)."""
    path = home() / "benchmarks" / "llama-3.2-1b-shape.Q4_0.gguf"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        write(part)
        part.rename(path)
    return path


def write(
    path: Path, *, layers: int = LAYERS, hidden: int = HIDDEN, ffn: int = FFN, vocabulary: int = VOCABULARY
) -> None:
    """Write it: Q4_0 matrices, and a Q6_K embedding that is the output head too, as in published files.

    The same arguments give the same file. Its tokenizer has single bytes and fillers: prompts are token ids.
    """
    import gguf

    rng = np.random.default_rng(SEED)
    heads, kv_heads = hidden // HEAD_DIM, hidden // HEAD_DIM // (HEADS // KV_HEADS)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("random weights in the shape of Llama 3.2 1B")
    writer.add_block_count(layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_vocab_size(vocabulary)
    _add_tokenizer(writer, vocabulary)

    def matrix(name: str, rows: int, cols: int, kind: gguf.GGMLQuantizationType) -> None:
        blocks = _q6_k(rng, rows, cols) if kind == gguf.GGMLQuantizationType.Q6_K else _q4_0(rng, rows, cols)
        writer.add_tensor(f"{name}.weight", blocks, raw_dtype=kind)

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(hidden, np.float32))

    q4, q6 = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q6_K
    matrix("token_embd", vocabulary, hidden, q6)
    norm("output_norm")
    for layer in range(layers):
        block = f"blk.{layer}"
        norm(f"{block}.attn_norm")
        norm(f"{block}.ffn_norm")
        matrix(f"{block}.attn_q", hidden, hidden, q4)
        matrix(f"{block}.attn_k", kv_heads * HEAD_DIM, hidden, q4)
        matrix(f"{block}.attn_v", kv_heads * HEAD_DIM, hidden, q4)
        matrix(f"{block}.attn_output", hidden, hidden, q4)
        matrix(f"{block}.ffn_gate", ffn, hidden, q4)
        matrix(f"{block}.ffn_up", ffn, hidden, q4)
        matrix(f"{block}.ffn_down", hidden, ffn, q4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _q4_0(rng: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    """Blocks of 32: float16 scale, 32 nibbles of 0 to 15 that stand for -8 to 7."""
    blocks = np.empty((rows * cols // 32, 18), np.uint8)
    blocks[:, :2] = _scales(rng, len(blocks), WEIGHT_RMS / 4.6)  # 4.6: rms of -8 to 7
    blocks[:, 2:] = np.frombuffer(rng.bytes(len(blocks) * 16), np.uint8).reshape(-1, 16)
    return blocks.reshape(rows, -1)


def _q6_k(rng: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    """Blocks of 256: 192 bytes of six-bit numbers that stand for -32 to 31, 16 int8 scales, a float16 one."""
    blocks = np.empty((rows * cols // 256, 210), np.uint8)
    blocks[:, :192] = np.frombuffer(rng.bytes(len(blocks) * 192), np.uint8).reshape(-1, 192)
    blocks[:, 192:208] = rng.integers(8, 17, (len(blocks), 16), np.uint8)
    blocks[:, 208:] = _scales(
        rng, len(blocks), WEIGHT_RMS / (18.5 * 12.5)
    )  # rms of -32 to 31, and of 8 to 16
    return blocks.reshape(rows, -1)


def _scales(rng: np.random.Generator, count: int, mean: float) -> np.ndarray:
    return (mean * rng.uniform(0.8, 1.2, count)).astype("<f2").view(np.uint8).reshape(-1, 2)


def _add_tokenizer(writer: object, vocabulary: int) -> None:
    """The 256 bytes in GPT-2's spelling, then fillers, of which two are named as begin and end of a text."""
    import gguf

    assert isinstance(writer, gguf.GGUFWriter)
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    spelling = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    tokens = [spelling[byte] for byte in range(256)]
    fillers = [f"<|filler_{i}|>" for i in range(vocabulary - 256)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens + fillers)
    writer.add_token_types([gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * (vocabulary - 256))
    writer.add_token_merges([f"{spelling[ord('t')]} {spelling[ord('h')]}"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
