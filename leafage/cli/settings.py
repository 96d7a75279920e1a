"""Settings from flags, LEAFAGE_* variables and a TOML file, and where each of them came from."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from leafage.cli.flags import parse_bytes
from leafage.config import NAMES_ELSEWHERE
from leafage.errors import InvalidParameterError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PREFIX = "LEAFAGE_"
CONFIG_VARIABLE = "LEAFAGE_CONFIG"
_OTHER_VARIABLES = {"HOME", "DEBUG", "KERNELS", "CPU_WITHOUT", "CONFIG", "PEERS", "LLAMACPP"}
_OTHER_PREFIXES = ("TEST_", "REQUIRE_")  # of the test suite
# What Kubernetes puts into every container of a namespace with a Service named "leafage".
_SERVICE_LINK = re.compile(r"(SERVICE_(HOST|PORT)\w*|PORT_\d+_(TCP|UDP)\w*)")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_KINDS = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a text",
    tuple: "a list of texts",
}


@dataclass(frozen=True, slots=True)
class _Setting:
    """One that can be set. `is_size`: in bytes, which may be written as 512MiB."""

    kind: type
    is_size: bool


class Settings:
    """What was set, by the names of the fields of some dataclasses.

    A flag goes before a variable, a variable before the file.

    Args:
        classes: the dataclasses, which share no field.
        flags: those that were given.
        environ: where LEAFAGE_* variables are.
        config: the TOML file, or None.

    Raises:
        InvalidParameterError: a name that none of them has, or a value of another kind; it says where.
    """

    def __init__(
        self,
        classes: Sequence[type],
        flags: Mapping[str, Any],
        environ: Mapping[str, str],
        config: Path | None = None,
    ) -> None:
        self._known = {name: setting for cls in classes for name, setting in _settings(cls).items()}
        self._values: dict[str, Any] = {}
        self._sources: dict[str, str] = {}
        if config is None and CONFIG_VARIABLE in environ:
            config = Path(environ[CONFIG_VARIABLE])
        if config is not None:
            self._read_file(config)
        self._read_variables(environ)
        for name, value in flags.items():
            self._put(name, tuple(value) if isinstance(value, list) else value, "--" + name.replace("_", "-"))

    def get(self, name: str) -> Any:
        """A value that was set, or None."""
        return self._values.get(name)

    def of(self, cls: type) -> dict[str, Any]:
        """What was set of one of the dataclasses: arguments of its constructor."""
        return {f.name: self._values[f.name] for f in fields(cls) if f.name in self._values}

    @contextmanager
    def named(self) -> Iterator[None]:
        """Refusals that are raised in here say where the settings that they speak of come from."""
        try:
            yield
        except InvalidParameterError as error:
            sources = [self._sources[name] for name in self._sources if _speaks_of(error, name)]
            if not sources:
                raise
            what = f"{error.what} ({', '.join(sources)})"
            raise InvalidParameterError(
                what, value=error.value, limit=error.limit, remedy=error.remedy
            ) from error

    def _put(self, name: str, value: Any, source: str) -> None:
        self._values[name] = value
        self._sources[name] = source

    def _read_file(self, path: Path) -> None:
        try:
            with path.expanduser().open("rb") as file:
                content = tomllib.load(file)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InvalidParameterError(
                f"the configuration file cannot be read: {reason}", value=str(path)
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidParameterError(
                f"the configuration file is no TOML: {error}", value=str(path), remedy="write name = value"
            ) from error
        for name, value in content.items():
            source = f"{name} in {path}"
            if name not in self._known:
                if isinstance(value, dict):
                    raise InvalidParameterError(
                        "a table in the configuration file",
                        value=source,
                        remedy="write all settings without one",
                    )
                raise self._unknown(name, source)
            self._put(name, _from_toml(self._known[name], name, value, source), source)

    def _read_variables(self, environ: Mapping[str, str]) -> None:
        for variable in sorted(environ):
            if not variable.startswith(PREFIX):
                continue
            rest = variable.removeprefix(PREFIX)
            if rest in _OTHER_VARIABLES or rest.startswith(_OTHER_PREFIXES) or _SERVICE_LINK.fullmatch(rest):
                continue
            name = rest.lower()
            if name not in self._known or rest != rest.upper():
                raise self._unknown(name, variable, PREFIX, str.upper)
            value = environ[variable]
            if name == "port" and value.startswith("tcp://"):
                raise InvalidParameterError(
                    f"{variable} is what Kubernetes says of a Service named leafage",
                    value=value,
                    remedy="set enableServiceLinks: false in the pod, or name the Service otherwise",
                )
            self._put(name, _from_text(self._known[name], variable, value), variable)

    def _unknown(self, name: str, source: str, prefix: str = "", spell: Any = str) -> InvalidParameterError:
        close = [NAMES_ELSEWHERE[name]] if NAMES_ELSEWHERE.get(name) in self._known else []
        close = close or difflib.get_close_matches(name.replace("-", "_").lower(), self._known, n=1)
        remedy = f"did you mean {prefix}{spell(close[0])}?" if close else "see leafage serve --help"
        return InvalidParameterError("unknown setting", value=source, remedy=remedy)


def _settings(cls: type) -> dict[str, _Setting]:
    hints = get_type_hints(cls)
    found = {}
    for field in fields(cls):
        hint = hints[field.name]
        kinds = [
            kind
            for kind in _KINDS
            if hint in (kind, kind | None) or (hint == tuple[str, ...] and kind is tuple)
        ]
        if not kinds:
            raise TypeError(f"no setting for a field of type {hint}")
        found[field.name] = _Setting(kinds[0], field.name.endswith("_bytes"))
    return found


def _from_toml(setting: _Setting, name: str, value: Any, source: str) -> Any:
    kind = setting.kind
    if setting.is_size and isinstance(value, str):
        return _size(value, source)
    if kind is tuple and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind is not tuple and type(value) is kind:
        return value
    raise _wrong_kind(kind, source, value)


def _from_text(setting: _Setting, source: str, text: str) -> Any:
    if not text.strip():
        raise InvalidParameterError(f"{source} is empty", remedy="unset it, or give it a value")
    kind = setting.kind
    if setting.is_size:
        return _size(text, source)
    if kind is str:
        return text
    if kind is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind is bool and text.lower() in _TRUE + _FALSE:
        return text.lower() in _TRUE
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    raise _wrong_kind(kind, source, text)


def _size(text: str, source: str) -> int:
    try:
        return parse_bytes(text)
    except InvalidParameterError as error:
        raise InvalidParameterError(f"{error.what} ({source})", value=text, remedy=error.remedy) from None


def _wrong_kind(kind: type, source: str, value: Any) -> InvalidParameterError:
    secret = "api_key" in source.lower()
    return InvalidParameterError(f"{source} must be {_KINDS[kind]}", value=None if secret else value)


def _speaks_of(error: InvalidParameterError, name: str) -> bool:
    """Words of prose that are names of settings, too, count at the beginning only."""
    if "_" not in name:
        return re.match(rf"(unknown )?{name}\b", error.what) is not None
    return re.search(rf"\b{name}\b", f"{error.what} {error.value} {error.limit}") is not None
