from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from leafage.errors import InvalidParameterError
from leafage.server.config import ServerConfig, read_api_keys

NO_KEY = {"rate_limit": 5}  # counts the requests of each key


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host", ""),
        ("host", 5),
        ("port", -1),
        ("port", 65536),
        ("port", "80"),
        ("port", True),
        ("served_model_name", "one"),
        ("served_model_name", ("",)),
        ("api_key", ("two words",)),
        ("api_key", ("nul\0",)),
        ("api_key_file", ""),
        ("cors_origin", ("chat.example",)),
        ("cors_origin", ("https://chat.example/",)),
        ("docs", "yes"),
        ("live", 1),
        ("live_texts", "yes"),
        ("access_log", None),
        ("unknown_fields", "drop"),
        ("max_queue", -1),
        ("max_queue", 1.5),
        ("max_queue", 10**400),
        ("max_prompt_len", 0),
        ("max_body_bytes", 100),
        ("rate_limit", 0),
        ("rate_limit", 5),
        ("request_timeout", 0),
        ("request_timeout", float("nan")),
        ("send_timeout", float("inf")),
        ("drain_timeout", -1),
        ("stall_limit", 0),
    ],
)
def test_wrong_values_are_refused_by_name(name: str, value: Any) -> None:
    given = {"api_key": ("k",)} if name == "rate_limit" and {name: value} != NO_KEY else {}
    with pytest.raises(InvalidParameterError, match=name):
        ServerConfig(**{**given, name: value})


def test_an_empty_value_is_called_so() -> None:
    with pytest.raises(InvalidParameterError, match=r"^api_key must not be empty\. Leave it out"):
        ServerConfig(api_key=("",))


def test_every_setting_is_refused_when_it_is_nonsense() -> None:
    """So none is forgotten in __post_init__."""
    for field in fields(ServerConfig):
        with pytest.raises(InvalidParameterError, match=field.name):
            ServerConfig(**{field.name: object()})


def test_the_edges_are_allowed() -> None:
    ServerConfig(port=0, max_queue=0, drain_timeout=0, cors_origin=("*", "app://local", "http://a:1"))


def test_keys_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# of the team\nalpha\n\n  beta  \n")
    assert read_api_keys(str(path)) == ("alpha", "beta")
    for text in ("", "# none\n", "alpha beta\n"):
        path.write_text(text)
        with pytest.raises(InvalidParameterError, match="api_key"):
            read_api_keys(str(path))
    with pytest.raises(InvalidParameterError, match="cannot be read"):
        read_api_keys(str(tmp_path / "none"))


@pytest.mark.parametrize("name", ["tool_parser", "tool_template", "reasoning_parser"])
def test_unknown_parsers_are_refused(name: str) -> None:
    with pytest.raises(InvalidParameterError, match=f"unknown {name}; got 'x'; limit: .*, "):
        ServerConfig(**{name: "x"})


def test_the_help_names_every_tool_parser() -> None:
    from leafage.server.tools.choose import TOOL_PARSERS

    [told] = [one.metadata["help"] for one in fields(ServerConfig) if one.name == "tool_parser"]
    assert set(TOOL_PARSERS) <= set(re.findall(r"\w+", told))
