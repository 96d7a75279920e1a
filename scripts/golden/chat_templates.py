"""Make tests/text/golden/templates.json.gz: what transformers renders with published chat templates.

    pip install -r scripts/golden/requirements.txt jinja2
    python scripts/golden/chat_templates.py FOLDER

FOLDER holds the templates, as llama.cpp's source does in `models/templates`. All are under Apache-2.0, from
the models' repositories on the Hugging Face hub. The day stands as DATE.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

OUT = Path(__file__).parents[2] / "tests" / "text" / "golden" / "templates.json.gz"
NAMES = [
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "HuggingFaceTB-SmolLM3-3B",
    "ibm-granite-granite-3.3-2B-Instruct",
]
USER = {"role": "user", "content": "What is 2 + 2?"}
THOUGHT = {"role": "assistant", "content": "<think>\nEasy.\n</think>\n\nIt is 4."}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}],
}
CASES: list[dict[str, Any]] = [
    {"messages": [USER]},
    {"messages": [{"role": "system", "content": "Be brief."}, USER]},
    {"messages": [USER], "add_generation_prompt": False},
    {"messages": [USER], "enable_thinking": False},
    {"messages": [USER, THOUGHT, {"role": "user", "content": "And 3 + 3?"}]},
    {"messages": [USER], "tools": [WEATHER]},
    {"messages": [USER, CALL, {"role": "tool", "content": "rain"}], "tools": [WEATHER]},
]


def render(source: str, case: dict[str, Any]) -> str | None:
    """The prompt, or None where the template refuses the messages."""
    options = {"add_generation_prompt": True, **case}
    messages = options.pop("messages")
    try:
        text = render_jinja_template([messages], chat_template=source, **options)[0][0]
    except Exception as error:
        print(f"  refused: {error}")
        return None
    for form in re.findall(r"""strftime_now\(["'](.*?)["']\)""", source):
        text = text.replace(datetime.now().strftime(form), "DATE")
    return str(text)


def main(folder: Path) -> None:
    stored = {}
    for name in NAMES:
        print(name)
        source = (folder / f"{name}.jinja").read_text()
        cases = [{"case": case, "text": render(source, case)} for case in CASES]
        stored[name] = {"source": source, "cases": cases}
    data = json.dumps(stored, ensure_ascii=False, indent=1).encode()
    OUT.write_bytes(gzip.compress(data, 9, mtime=0))
    print(f"{len(data)} bytes, {OUT.stat().st_size} compressed")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
