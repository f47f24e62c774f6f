"""Settings: one TOML file, then the environment, then flags; each wins over the one before.

A process declares its settings as a frozen `msgspec.Struct` whose fields are sections or values. A key that does not
fit is named with its file, its line and, where one is close, the key that was probably meant.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from firstline_core.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)

_FILE_LIMIT_BYTES = 1024 * 1024
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>[^`]*)`(?: - at `(?P<path>[^`]*)`)?")
_INVALID = re.compile(r"(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)


def load(
    cls: type[T],
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    prefix: str = "FIRSTLINE_",
    overrides: Mapping[str, object] | None = None,
) -> T:
    """Reads settings from all three sources.

    Args:
        cls: a frozen struct with `forbid_unknown_fields`; nested structs are TOML tables.
        file: a TOML file, or None for defaults only.
        environ: variables `PREFIX` + `SECTION__KEY` override the file, e.g. FIRSTLINE_EDGE_API__PORT=9000.
            Lists take JSON.
        prefix: the process's own, e.g. "FIRSTLINE_EDGE_".
        overrides: dotted keys from flags, e.g. {"api.port": 9000}; None values are passed over.

    Raises:
        ConfigError: a source cannot be read, or says something that makes no sense.
    """
    text = _read(file) if file is not None else ""
    values = _parse(text, file)
    _convert(cls, values, text=text, where=str(file))

    for variable, value in (environ or {}).items():
        if variable.startswith(prefix):
            _set(values, variable.removeprefix(prefix).lower().split("__"), _from_text(value), variable)
            _convert(cls, values, text="", where=f"the environment variable {variable}")
    for dotted, flag_value in (overrides or {}).items():
        if flag_value is not None:
            _set(values, dotted.split("."), flag_value, dotted)
            _convert(cls, values, text="", where=f"the flag for {dotted}")
    return _convert(cls, values, text=text, where=str(file or "the defaults"))


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(_FILE_LIMIT_BYTES + 1)
        if len(content) > _FILE_LIMIT_BYTES:
            raise ConfigError(f"The configuration file {file} is larger than {_FILE_LIMIT_BYTES} bytes.")
        return content.decode()
    except FileNotFoundError as error:
        raise ConfigError(f"There is no configuration file {file}; create it or name another with --config.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"The configuration file {file} is not UTF-8 text; save it as UTF-8.") from error
    except OSError as error:
        raise ConfigError(f"The configuration file {file} cannot be read: {error.strerror}.") from error


def _parse(text: str, file: Path | None) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}.") from error


def _convert(cls: type[T], values: dict[str, Any], *, text: str, where: str) -> T:
    """Checks `values` against the struct; numbers and booleans may be strings, as the environment gives them."""
    try:
        return msgspec.convert(values, cls, strict=False)
    except msgspec.ValidationError as error:
        unknown = _UNKNOWN.match(str(error))
        if unknown is not None:
            key, path = unknown["key"], _dotted(unknown["path"])
            raise ConfigError(
                f"{where}{_line(text, path, key)} has an unknown key '{'.'.join([*path, key])}'"
                f"{_suggest(key, _fields(cls, path))}"
            ) from error
        invalid = _INVALID.match(str(error))
        what, path = (invalid["what"], _dotted(invalid["path"])) if invalid else (str(error), [])
        key = path[-1] if path else ""
        named = f"'{'.'.join(path)}': " if path else ""
        raise ConfigError(f"{where}{_line(text, path[:-1], key)}, {named}{what[:1].lower()}{what[1:]}.") from error


def _dotted(path: str | None) -> list[str]:
    """`$.links[0].url` as ["links", "0", "url"]; msgspec writes `[...]` for any element of a list."""
    if not path:
        return []
    return [part for part in re.split(r"[.\[\]]+", path.removeprefix("$").replace("[...]", "")) if part]


def _line(text: str, tables: list[str], key: str) -> str:
    """`:LINE` of a key in TOML text, or "" where it cannot be told; arrays of tables count from the first."""
    table: list[str] = []
    elements: dict[str, int] = {}
    wanted = [part for part in tables if not part.isdigit()]
    index = next((int(part) for part in tables if part.isdigit()), None)
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?", line)
        if header:
            table = [part.strip("\"' ") for part in header[2].split(".")]
            if header[1] == "[[":
                elements[header[2]] = elements.get(header[2], -1) + 1
            if [*wanted, key] == table:
                return f":{number}"
        elif table == wanted and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            if index is not None and elements.get(".".join(wanted), 0) != index:
                continue
            return f":{number}"
    return ""


def _fields(cls: type[msgspec.Struct], path: list[str]) -> list[str]:
    """The keys that the struct takes at `path`."""
    info: Any = msgspec.inspect.type_info(cls)
    for part in [*path, None]:
        while not isinstance(info, msgspec.inspect.StructType):
            if isinstance(info, msgspec.inspect.UnionType):
                info = next((t for t in info.types if isinstance(t, msgspec.inspect.StructType)), None)
            else:
                info = getattr(info, "item_type", None)
            if info is None:
                return []
        if part is None:
            return [field.encode_name for field in info.fields]
        if not part.isdigit():
            info = next((field.type for field in info.fields if field.encode_name == part), None)
    return []


def _suggest(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; known here: {', '.join(known)}." if known else "."


def _from_text(value: str) -> object:
    """A variable's value: JSON for lists and tables, the text itself otherwise."""
    if value[:1] in "[{" and value:
        try:
            found: object = msgspec.json.decode(value)
            return found
        except msgspec.DecodeError:
            return value
    return value


def _set(values: dict[str, Any], path: list[str], value: object, source: str) -> None:
    for part in path[:-1]:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{source} reaches into '{part}', which is not a section; set the whole list as JSON.")
    values[path[-1]] = value
