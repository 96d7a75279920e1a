"""Make tests/models/golden/*.json and *.npz of the tiny models: configurations with rope scaling, windows,
biases, multipliers and soft-caps, run by transformers in float32.

    pip install -r scripts/golden/requirements.txt
    python scripts/golden/tiny_models.py            # all of them, or those that are named

The weights are a hash of their names (tests/models/tiny_models.py); only configurations, tokens and logits
are stored.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "models"))
from tiny_models import GOLDEN, hashed_weights

NUM_PROMPT, NUM_GREEDY = 60, 40
SIZES = {
    "vocab_size": 80,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA = {**SIZES, "rms_norm_eps": 1e-5}
GEMMA = {**SIZES, "rms_norm_eps": 1e-6, "sliding_window": 20}
QWEN = {**SIZES, "rms_norm_eps": 1e-6}


def rope(rope_type: str, theta: float = 10_000.0, **parameters: float) -> dict:
    return {"rope_theta": theta, "rope_type": rope_type, **parameters}


CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**LLAMA),
    "llama_bias_tied": LlamaConfig(
        **{**LLAMA, "num_attention_heads": 8, "num_key_value_heads": 4},
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
    ),
    "llama_rope_llama3": LlamaConfig(
        **LLAMA,
        rope_parameters=rope(
            "llama3",
            500_000.0,
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
    ),
    "llama_rope_linear": LlamaConfig(**LLAMA, rope_parameters=rope("linear", factor=4.0)),
    "llama_rope_yarn": LlamaConfig(
        **LLAMA, rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=32)
    ),
    "mistral": MistralConfig(**LLAMA, sliding_window=20),
    "qwen2": Qwen2Config(**QWEN, rope_parameters=rope("default", 1_000_000.0)),
    "qwen2_yarn_tied": Qwen2Config(
        **QWEN,
        rope_parameters=rope("yarn", 1_000_000.0, factor=4.0, original_max_position_embeddings=32),
        tie_word_embeddings=True,
    ),
    "qwen2_window": Qwen2Config(**QWEN, use_sliding_window=True, sliding_window=20, max_window_layers=1),
    "qwen3": Qwen3Config(
        **{**QWEN, "head_dim": 32},
        rope_parameters=rope("default", 1_000_000.0),
        tie_word_embeddings=True,
    ),
    "qwen3_window": Qwen3Config(
        **QWEN,
        use_sliding_window=True,
        sliding_window=20,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        attention_bias=True,
    ),
    "granite": GraniteConfig(
        **LLAMA,
        attention_multiplier=0.4,
        embedding_multiplier=0.6,
        residual_multiplier=0.22,
        logits_scaling=1.5,
        attention_bias=True,
    ),
    "smollm3": SmolLM3Config(
        **{**LLAMA, "num_hidden_layers": 5}, pad_token_id=0, rope_parameters=rope("default", 5_000_000.0)
    ),
    "smollm3_window": SmolLM3Config(
        **LLAMA,
        pad_token_id=0,
        no_rope_layer_interval=2,
        use_sliding_window=True,
        sliding_window=20,
        tie_word_embeddings=False,
    ),
    "gemma3": Gemma3TextConfig(**{**GEMMA, "num_hidden_layers": 7}, query_pre_attn_scalar=16),
    "gemma3_scaled": Gemma3TextConfig(
        **GEMMA,
        query_pre_attn_scalar=24,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "sliding_attention": rope("default", 10_000.0),
            "full_attention": rope("linear", 1_000_000.0, factor=8.0),
        },
    ),
    "gemma3_softcap": Gemma3TextConfig(
        **GEMMA, query_pre_attn_scalar=16, final_logit_softcapping=3.0, attn_logit_softcapping=1.5
    ),
}


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    GOLDEN.mkdir(exist_ok=True)
    for name, config in CONFIGS.items():
        if names and name not in names:
            continue
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
        model.eval()
        shapes = {key: list(value.shape) for key, value in model.state_dict().items()}
        if config.tie_word_embeddings:
            del shapes["lm_head.weight"]
        weights = hashed_weights(shapes, norm_offset=0.0 if name.startswith("gemma") else 1.0)
        missing, unexpected = model.load_state_dict(
            {key: torch.from_numpy(value) for key, value in weights.items()}, strict=False
        )
        assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
        model.tie_weights()
        # Gemma3Attention holds the cap but leaves it to its caller to hand it on.
        kwargs = {"softcap": cap} if (cap := getattr(config, "attn_logit_softcapping", None)) else {}
        for seed in range(100):  # the first prompt whose greedy choices are no ties
            tokens, logits = generate(model, np.random.default_rng(seed).integers(3, 80, NUM_PROMPT), kwargs)
            best = np.sort(logits[NUM_PROMPT - 1 : -1], axis=1)
            margin = float((best[:, -1] - best[:, -2]).min())
            if margin > 0.01:
                break
        else:
            raise SystemExit(f"{name}: no prompt without a tie")
        stored = {"config": config.to_dict(), "shapes": shapes, "prompt": NUM_PROMPT}
        (GOLDEN / f"{name}.json").write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
        np.savez_compressed(GOLDEN / f"{name}.npz", tokens=np.array(tokens, np.int32), logits=logits)
        print(f"{name}: seed {seed}, |logits| up to {np.abs(logits).max():.1f}, margin {margin:.3f}")


@torch.no_grad()
def generate(model: torch.nn.Module, prompt: np.ndarray, kwargs: dict) -> tuple[list[int], np.ndarray]:
    """Prompt and greedy tokens, and the logits of the whole in one pass."""
    tokens = prompt.tolist()
    for _ in range(NUM_GREEDY):
        tokens.append(int(model(torch.tensor([tokens]), **kwargs).logits[0, -1].argmax()))
    return tokens, model(torch.tensor([tokens]), **kwargs).logits[0].numpy()


if __name__ == "__main__":
    main(sys.argv[1:])
