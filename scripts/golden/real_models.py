"""Make tests/models/golden/real_*.npz: what transformers answers, in float32, with the dequantized weights of
the two real models.

    pip install -r scripts/golden/requirements.txt tokenizers jinja2
    python scripts/golden/real_models.py SmolLM2-135M-Instruct.Q4_1.gguf gemma3-270m-Q4_K_M.gguf

The weights go from the file to transformers through the `gguf` package and the name table below, so that only
the token ids of the prompts come from Leafage. Stored per prompt: prompt and 256 greedy tokens; the 4 best
tokens with their logits at every position that predicts one of them; the logits of 512 vocabulary entries at
24 positions over the whole sequence.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, PreTrainedConfig

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from leafage.formats.model_file import open_model  # noqa: E402
from leafage.text.tokenizer import Tokenizer  # noqa: E402

GOLDEN = ROOT / "tests" / "models" / "golden"
NUM_GREEDY, NUM_BEST, NUM_ROWS, NUM_COLUMNS = 256, 4, 24, 512

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
SMOLLM2 = LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
    tie_word_embeddings=True,
)
# google/gemma-3-270m, config.json
GEMMA3 = Gemma3TextConfig(
    vocab_size=262144,
    hidden_size=640,
    intermediate_size=2048,
    num_hidden_layers=18,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=256,
    max_position_embeddings=32768,
    rms_norm_eps=1e-6,
    query_pre_attn_scalar=256,
    sliding_window=512,
    rope_parameters={
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {"rope_type": "default", "rope_theta": 1_000_000.0},
    },
)


def load(path: Path, config: PreTrainedConfig) -> torch.nn.Module:
    is_gemma = isinstance(config, Gemma3TextConfig)
    state = {}
    for tensor in gguf.GGUFReader(path).tensors:
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        stem, suffix = tensor.name.rsplit(".", 1)
        names = {**NAMES, "ffn_norm": "pre_feedforward_layernorm" if is_gemma else "post_attention_layernorm"}
        if stem.startswith("blk."):
            _, layer, stem = stem.split(".")
            name = f"model.layers.{layer}.{names[stem]}.{suffix}"
        else:
            name = f"{names[stem]}.{suffix}"
        if is_gemma and stem.endswith("norm"):
            weight = weight - np.float32(1)
        if not is_gemma and stem in ("attn_q", "attn_k"):  # neighbours back to halves
            pairs = weight.reshape(-1, config.head_dim // 2, 2, weight.shape[1])
            weight = pairs.swapaxes(1, 2).reshape(weight.shape)
        state[name] = torch.from_numpy(np.ascontiguousarray(weight))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model.eval()


@torch.no_grad()
def answer(model: torch.nn.Module, prompt: list[int]) -> dict[str, np.ndarray]:
    tokens, cache, new = list(prompt), None, list(prompt)
    for _ in range(NUM_GREEDY):
        out = model(torch.tensor([new]), cache=cache, use_cache=True, logits_to_keep=1)
        cache, new = out.cache, [int(out.logits[0, -1].argmax())]
        tokens += new
    logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
    predicting = logits[len(prompt) - 1 : -1]
    assert predicting.argmax(-1).tolist() == tokens[len(prompt) :], "cached and uncached greedy differ: a tie"
    best = predicting.topk(NUM_BEST)
    rng = np.random.default_rng(5)
    rows = np.sort(rng.choice(len(tokens), NUM_ROWS, replace=False))
    columns = np.sort(rng.choice(logits.shape[1], NUM_COLUMNS, replace=False))
    margin = float((best.values[:, 0] - best.values[:, 1]).min())
    print(f"  {len(prompt)} prompt tokens, |logits| up to {logits.abs().max():.1f}, margin {margin:.5f}")
    assert margin > 1e-3, "a tie"
    return {
        "prompt": np.array(prompt, np.int32),
        "greedy": np.array(tokens[len(prompt) :], np.int32),
        "best_ids": best.indices.numpy().astype(np.int32),
        "best_logits": best.values.numpy(),
        "rows": rows.astype(np.int32),
        "columns": columns.astype(np.int32),
        "sampled_logits": logits.numpy()[np.ix_(rows, columns)],
    }


def main(smollm2: Path, gemma3: Path) -> None:
    torch.set_num_threads(1)
    text = (GOLDEN / "declaration.txt").read_text()
    for name, path, config in (("real_smollm2", smollm2, SMOLLM2), ("real_gemma3", gemma3, GEMMA3)):
        with open_model(path) as model_file:
            tokenizer = Tokenizer.from_gguf(model_file.metadata)
        long = tokenizer.encode(text)[:700]
        random = np.random.default_rng(0).integers(100, 40000, 300).tolist()
        prompts = {
            "short": tokenizer.encode("The three laws of robotics are"),
            "long": long,
            "random": random,
        }
        if name == "real_smollm2":
            chat = "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"
            prompts["chat"] = tokenizer.encode(chat, parse_special=True)
        model = load(path, config)
        stored = {}
        for key, prompt in prompts.items():
            print(name, key)
            stored |= {f"{key}/{field}": value for field, value in answer(model, prompt).items()}
        np.savez_compressed(GOLDEN / f"{name}.npz", **stored)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
