"""Who may import whom, and how long a file may be (docs/design.md, "Rooms")."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "leafage"
MAX_LINES = 500
EVERYTHING = None

ALLOWED: dict[str, set[str] | None] = {
    "core": set(),
    "text": set(),
    "formats": set(),
    "kernels": set(),
    "grammar": set(),
    "store": set(),
    "models": {"kernels", "formats"},
    "tier": {"core"},
    "runtime": {"core", "models", "kernels", "formats"},
    "engine": {"core", "text", "grammar"},
    "engine.engine": {"core"},
    "sim": {"core", "engine", "formats"},
    "lang": {"engine", "core", "text", "grammar"},
    "server": {"engine", "core", "text", "grammar"},
    "config": set(),
    "resources": set(),
    "tiny_model": set(),
    "memory": EVERYTHING,
    "calibration": EVERYTHING,
    "errors": set(),
    "build": EVERYTHING,
    "llm": EVERYTHING,
    "cli": EVERYTHING,
    "bench": EVERYTHING,
    "overhead": EVERYTHING,
    "__init__": EVERYTHING,
    "__main__": EVERYTHING,
}
FORBIDDEN_IN_CORE = {
    "time": "the core knows no clock",
    "datetime": "the core knows no clock",
    "os": "the core does no I/O",
    "io": "the core does no I/O",
    "pathlib": "the core does no I/O",
    "socket": "the core does no I/O",
    "threading": "the core has one caller at a time",
    "asyncio": "the core has one caller at a time",
    "random": "randomness is the sampler's, keyed by seed and position",
}


def imports(source: str, module: str, *, is_package: bool = False) -> set[str]:
    """Dotted names that a module's source imports, anywhere in it; relative ones resolved."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                up = node.level - is_package
                parent = ".".join(parts[: len(parts) - up] if up else parts)
                base = f"{parent}.{base}".rstrip(".")
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return names


def violations(module: str, imported: set[str]) -> list[str]:
    """What a module of Leafage imports against the table."""
    room = module.split(".")[1] if "." in module else "__init__"
    inner = module.removeprefix("leafage.")
    rule = inner if inner in ALLOWED else room
    if rule not in ALLOWED:
        return [f"{module}: the room {room!r} is not in the table"]
    allowed = ALLOWED[rule]
    found = []
    for name in sorted(imported):
        top, *rest = name.split(".")
        if top == "leafage":
            target = rest[0] if rest else "__init__"
            if target in (room, "errors") or allowed is EVERYTHING or target in allowed:
                continue
            if not (PACKAGE / target).exists() and not (PACKAGE / f"{target}.py").exists():
                continue  # a name of leafage/__init__, such as __version__
            found.append(f"{module} imports {name}")
        elif room == "core":
            if top in FORBIDDEN_IN_CORE:
                found.append(f"{module} imports {name}: {FORBIDDEN_IN_CORE[top]}")
            elif top not in sys.stdlib_module_names:
                found.append(f"{module} imports {name}: the core uses the standard library only")
    return found


def modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


def test_rooms_import_only_what_the_table_allows() -> None:
    found = []
    for module, path in modules():
        is_package = path.name == "__init__.py"
        found += violations(module, imports(path.read_text(), module, is_package=is_package))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("leafage.core.scheduler", "import numpy"),
        ("leafage.core.scheduler", "from time import monotonic"),
        ("leafage.core.scheduler", "def f():\n    from leafage.engine import engine"),
        ("leafage.engine.engine", "from leafage.text import tokenizer"),
        ("leafage.engine.output", "import leafage.runtime.model_runner"),
        ("leafage.models.llama", "from ..core import batch"),
        ("leafage.runtime", "from . import sampler\nfrom leafage import text"),
        ("leafage.garden.rose", "import leafage.errors"),
    ],
)
def test_the_check_sees_a_violation(module: str, source: str) -> None:
    assert violations(module, imports(source, module, is_package=module == "leafage.runtime"))


def test_the_check_allows_what_the_table_allows() -> None:
    source = "from leafage.core import batch\nfrom leafage.errors import LeafageError\nimport time, numpy"
    assert not violations("leafage.engine.engine", imports(source, "leafage.engine.engine"))


def test_no_file_is_longer_than_500_lines() -> None:
    long = []
    for folder in ("leafage", "tests", "benchmarks", "scripts"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".cpp", ".h") and path.is_file():
                lines = len(path.read_text().splitlines())
                if lines > MAX_LINES:
                    long.append(f"{path.relative_to(ROOT)}: {lines} lines")
    assert not long, "\n".join(long)
