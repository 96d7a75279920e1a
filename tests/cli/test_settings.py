from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from leafage.cli.settings import Settings
from leafage.config import EngineConfig
from leafage.errors import InvalidParameterError
from leafage.server.config import ServerConfig

CLASSES = (EngineConfig, ServerConfig)


def settings(flags: Mapping[str, Any] | None = None, config: Path | None = None, **environ: str) -> Settings:
    return Settings(CLASSES, flags or {}, environ, config)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "leafage.toml"
        path.write_text(text)
        return path

    return write


def refusal(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(InvalidParameterError) as caught:
        given = settings(*args, **kwargs)
        with given.named():
            for cls in CLASSES:
                cls(**given.of(cls))
    return str(caught.value)


def test_no_field_is_in_both() -> None:
    """One variable and one key for each."""
    engine, server = ({f.name for f in fields(cls)} for cls in CLASSES)
    assert not engine & server


def test_a_flag_goes_before_a_variable_and_a_variable_before_the_file(write: Any) -> None:
    path = write("max_queue = 1\nmax_num_seqs = 2\nseed = 3\n")
    found = settings({"max_queue": 7}, path, LEAFAGE_MAX_QUEUE="5", LEAFAGE_MAX_NUM_SEQS="6")
    assert found.of(ServerConfig) == {"max_queue": 7}
    assert found.of(EngineConfig) == {"max_num_seqs": 6, "seed": 3}


def test_the_file_may_be_named_by_a_variable(write: Any) -> None:
    assert settings(LEAFAGE_CONFIG=str(write("port = 1"))).of(ServerConfig) == {"port": 1}


def test_kinds_of_values(write: Any) -> None:
    variables = settings(
        LEAFAGE_API_KEY="a, b,",
        LEAFAGE_DOCS="off",
        LEAFAGE_ACCESS_LOG="Yes",
        LEAFAGE_SEND_TIMEOUT="1.5",
        LEAFAGE_MAX_BODY_BYTES="2MiB",
        LEAFAGE_HOST="::1",
    ).of(ServerConfig)
    assert variables == {
        "api_key": ("a", "b"),
        "docs": False,
        "access_log": True,
        "send_timeout": 1.5,
        "max_body_bytes": 2 << 20,
        "host": "::1",
    }
    text = (
        'api_key = ["a", "b"]\ndocs = false\nsend_timeout = 2\nmax_body_bytes = "2MiB"\nkv_cache_bytes = 77\n'
    )
    file = settings(config=write(text))
    assert file.of(ServerConfig) == {
        "api_key": ("a", "b"),
        "docs": False,
        "send_timeout": 2,
        "max_body_bytes": 2 << 20,
    }
    assert file.of(EngineConfig) == {"kv_cache_bytes": 77}
    assert settings({"api_key": ["a"]}).of(ServerConfig) == {"api_key": ("a",)}


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("LEAFAGE_PORT", "abc", "LEAFAGE_PORT must be an integer; got 'abc'"),
        ("LEAFAGE_PORT", "70000", "port is out of range (LEAFAGE_PORT); got 70000; limit: 0 to 65535"),
        ("LEAFAGE_DOCS", "maybe", "LEAFAGE_DOCS must be true or false"),
        ("LEAFAGE_API_KEY", "", "LEAFAGE_API_KEY is empty"),
        ("LEAFAGE_API_KEY", "schlüssel", "api_key holds a character that a header cannot carry"),
        ("LEAFAGE_MAX_QEUE", "1", "did you mean LEAFAGE_MAX_QUEUE?"),
        ("LEAFAGE_CTX_SIZE", "1", "did you mean LEAFAGE_MAX_MODEL_LEN?"),
        ("LEAFAGE_max_queue", "1", "did you mean LEAFAGE_MAX_QUEUE?"),
        ("LEAFAGE_SWAP_BYTES", "12XB", "not a size (LEAFAGE_SWAP_BYTES)"),
        ("LEAFAGE_PORT", "tcp://10.0.0.1:80", "enableServiceLinks: false"),
        ("LEAFAGE_CONFIG", "/nowhere.toml", "the configuration file cannot be read: No such file"),
    ],
)
def test_what_is_wrong_with_a_variable(variable: str, value: str, message: str) -> None:
    assert message.lower() in refusal(**{variable: value}).lower()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_qeue = 1", "max_qeue in {path}'. did you mean max_queue?"),
        ("max-queue = 1", "did you mean max_queue?"),
        ("gpu_memory_utilization = 0.9", "did you mean kv_cache_bytes?"),
        ("[server]\nport = 1", "a table in the configuration file; got 'server in {path}'"),
        ("port = 'x'", "port in {path} must be an integer; got 'x'"),
        ("port = true", "port in {path} must be an integer"),
        ("port = 1.0", "port in {path} must be an integer"),
        ("host = 1", "host in {path} must be a text"),
        ("api_key = 'one'", "api_key in {path} must be a list of texts"),
        ("port = 99999", "port is out of range (port in {path}); got 99999"),
        ("port 1", "the configuration file is no toml"),
        ("max_num_seqs = 500", "(max_num_seqs in {path}); got 500; limit: max_num_batched_tokens = 256"),
    ],
)
def test_what_is_wrong_with_the_file(write: Any, text: str, message: str) -> None:
    path = write(text)
    assert message.format(path=path).lower() in refusal(config=path).lower()


def test_a_refusal_names_each_setting_that_it_speaks_of() -> None:
    text = refusal({"max_num_seqs": 500}, LEAFAGE_MAX_NUM_BATCHED_TOKENS="300", LEAFAGE_KV="paged")
    assert "(LEAFAGE_MAX_NUM_BATCHED_TOKENS, --max-num-seqs)" in text


def test_variables_of_others_are_left_alone() -> None:
    others = ("HOME", "DEBUG", "KERNELS", "TEST_MODELS", "REQUIRE_MODELS", "SERVICE_HOST", "PORT_80_TCP_ADDR")
    assert settings(**{f"LEAFAGE_{name}": "x" for name in others}, PORT="1").of(ServerConfig) == {}


def test_keys_are_never_shown(write: Any) -> None:
    assert "s3cret" not in repr(ServerConfig(api_key=("s3cret",)))
    assert "s3cret" not in refusal(config=write("api_key = 's3cret'"))
    assert "s3cret" not in refusal(LEAFAGE_API_KEY="s3cret key with spaces")


def test_the_environment_of_the_tests_is_understood() -> None:
    """A variable that Leafage's own tools read is no unknown setting."""
    settings(**{name: value for name, value in os.environ.items() if name.startswith("LEAFAGE_")})
