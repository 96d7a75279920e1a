"""Make tests/models/golden/beams_smollm2.json: beam searches of transformers, in float32, with the
dequantized weights of SmolLM2-135M-Instruct.

    pip install -r scripts/golden/requirements.txt tokenizers jinja2
    python scripts/golden/beams.py SmolLM2-135M-Instruct.Q4_1.gguf

Every prompt is searched twice: for a few tokens, which CI repeats, and for 64, which `scripts/soak beams`
repeats. Stored per search: prompt ids, what `generate` was asked for, its answers with their scores, and
`margin`: the smallest difference of two sums of log-probabilities that decided anything. Where it is smaller
than what two float32 implementations differ by, they may answer differently and both be right; the script
refuses such a case.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import torch
from real_models import GOLDEN, SMOLLM2, load
from transformers import GenerationConfig

from leafage.formats.model_file import open_model
from leafage.text.tokenizer import Tokenizer

NUM_BEAMS = 4
MAX_TOKENS = (12, 64)
MIN_MARGIN = 1e-4


def chat(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


CASES: list[tuple[str, dict[str, Any]]] = [
    (chat("What is the capital of France?"), {"n": 4}),
    (chat("Say yes or no: is water wet?"), {"n": 4, "early_stopping": True}),
    (chat("Name three colours, separated by commas."), {"n": 2, "early_stopping": "never"}),
    (chat("Translate to French: good morning"), {"n": 4, "length_penalty": 0.0}),
    (chat("What is 2 + 2? Answer with a number."), {"n": 4, "length_penalty": 2.0}),
    (chat("What is your name?"), {"n": 3, "length_penalty": -1.0}),
    (
        chat("Write one short sentence about the sea."),
        {"n": 4, "length_penalty": 0.0, "early_stopping": "never"},
    ),
    (
        chat("Give me a word that rhymes with cat."),
        {"n": 1, "length_penalty": 2.0, "early_stopping": "never"},
    ),
    (chat("Hello!"), {"n": 4, "length_penalty": -1.0, "early_stopping": True}),
    (chat("Complete: roses are red,"), {"n": 2, "length_penalty": 2.0, "early_stopping": True}),
    ("The three laws of robotics are", {"n": 4}),
    ("Once upon a time, in a village by the river,", {"n": 2, "length_penalty": 0.0}),
    ("The chemical formula of water is", {"n": 4, "length_penalty": -1.0}),
    ("def fibonacci(n):\n    ", {"n": 2, "early_stopping": True}),
    ("#include <stdio.h>\n\nint main(", {"n": 4, "length_penalty": 2.0}),
    ("SELECT name, COUNT(*) FROM users WHERE", {"n": 1, "early_stopping": "never"}),
    ('{"name": "Ada", "age":', {"n": 3}),
    ("Il était une fois, dans un petit village,", {"n": 4}),
    ("Die Hauptstadt von Deutschland ist", {"n": 4, "early_stopping": "never"}),
    ("吾輩は猫である。", {"n": 2, "length_penalty": 0.0, "early_stopping": True}),
]


class Margins:
    """Watches a search of `generate`, and keeps the smallest difference that a choice of it rested on, as one
    of summed log-probabilities."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.smallest = float("inf")
        self._places: list[float] = []
        running, finished, stop = (
            model._get_running_beams_for_next_iteration,
            model._update_finished_beams,
            model._check_early_stop_heuristic,
        )

        def watched_running(**given: Any) -> Any:
            scores, ends = given["topk_log_probs"][0], given["next_token_hits_stopping_criteria"][0]
            going = scores[~ends]
            if len(going) > NUM_BEAMS:
                self._see(going[NUM_BEAMS - 1] - going[NUM_BEAMS])
            if ends[NUM_BEAMS - 1] or ends[NUM_BEAMS]:  # which of them are answers
                self._see(scores[NUM_BEAMS - 1] - scores[NUM_BEAMS])
            return running(**given)

        def watched_finished(**given: Any) -> Any:
            result = finished(**given)
            new = given["topk_log_probs"][0][given["next_token_hits_stopping_criteria"][0]]
            discount = (given["cur_len"] + 1 - given["decoder_prompt_len"]) ** given["length_penalty"]
            merged = torch.cat((given["beam_scores"][0], new / discount))
            best = merged[merged > -1e8].sort(descending=True).values
            if len(new) and len(best) > 1:
                self._see((best[:-1] - best[1:])[:NUM_BEAMS].min() * discount)
            return result

        def watched_stop(**given: Any) -> Any:
            horizon = given["cur_len"] - given["decoder_prompt_len"]
            if given["early_stopping"] == "never" and given["length_penalty"] > 0:
                horizon = given["max_length"] - given["decoder_prompt_len"]
            if given["is_sent_finished"].all() and given["early_stopping"] is not True:
                discount = horizon ** given["length_penalty"]
                best = given["running_beam_scores"][0, 0] / discount
                self._see((best - given["beam_scores"].min()).abs() * discount)
            return stop(**given)

        model._get_running_beams_for_next_iteration = watched_running
        model._update_finished_beams = watched_finished
        model._check_early_stop_heuristic = watched_stop

    def _see(self, difference: torch.Tensor) -> None:
        self.smallest = min(self.smallest, float(difference))


@torch.no_grad()
def search(
    model: torch.nn.Module,
    margins: Margins,
    prompt: list[int],
    max_tokens: int,
    asked: dict[str, Any],
    eos: list[int],
) -> dict[str, Any]:
    config = GenerationConfig(
        num_beams=NUM_BEAMS,
        num_return_sequences=asked["n"],
        max_new_tokens=max_tokens,
        length_penalty=asked.get("length_penalty", 1.0),
        early_stopping=asked.get("early_stopping", False),
        do_sample=False,
        eos_token_id=eos,
        pad_token_id=eos[0],
        return_dict_in_generate=True,
        output_scores=True,
    )
    margins.smallest = float("inf")
    out = model.generate(torch.tensor([prompt]), generation_config=config)
    answers = []
    for sequence, used, score in zip(out.sequences, out.beam_indices, out.sequences_scores, strict=True):
        length = int((used >= 0).sum())
        tokens = sequence[len(prompt) : len(prompt) + length].tolist()
        answers.append({"tokens": tokens, "score": float(score)})
    return {
        "beam_width": NUM_BEAMS,
        "n": asked["n"],
        "max_tokens": max_tokens,
        "length_penalty": config.length_penalty,
        "early_stopping": config.early_stopping,
        "prompt": prompt,
        "answers": answers,
        "margin": margins.smallest,
    }


def main(path: Path) -> None:
    torch.set_num_threads(1)
    with open_model(path) as model_file:
        tokenizer = Tokenizer.from_gguf(model_file.metadata)
    model = load(path, SMOLLM2)
    margins = Margins(model)
    eos = sorted(tokenizer.eos_ids)
    lines, worst = [], float("inf")
    for max_tokens, (text, asked) in itertools.product(MAX_TOKENS, CASES):
        prompt = tokenizer.encode(text, parse_special=True)
        case = search(model, margins, prompt, max_tokens, asked, eos)
        ended = sum(answer["tokens"][-1] in eos for answer in case["answers"])
        print(f"{len(prompt)} + {max_tokens} tokens, {asked}, {ended} by EOS, margin {case['margin']:.2g}")
        print("   ", repr(tokenizer.decode(case["answers"][0]["tokens"])), flush=True)
        lines.append(json.dumps(case))
        worst = min(worst, case["margin"])
    (GOLDEN / "beams_smollm2.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
    assert worst > MIN_MARGIN, "a tie within the noise of float32: change that prompt"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
