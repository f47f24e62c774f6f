"""Where a setting has its value: a line of a TOML file, a variable of the environment, or the command line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from firstline_core.errors import ConfigError, FirstlineError
from firstline_core.storage import files

FILE_LIMIT_BYTES = 1024 * 1024
ANY_NAME = "[...]"
# A key in a message, such as `links[0].url` or `executors."gpu.1".engine`, and its parts.
_KEY = re.compile(r"""(?<![\w./'"-])[a-z_]+(?:\.[A-Za-z0-9_][\w-]*|\."[^"]+"|\[\d+\])+""")
_PART = re.compile(rf'{re.escape(ANY_NAME)}|"[^"]+"|[^.\[\]]+')


class GivenValue(NamedTuple):
    """A value of a variable or a flag.

    Attributes:
        key: parts of the setting's key.
        value: text for a variable.
        name: of the variable, or the key of the flag.
        place: for errors.
    """

    key: list[str]
    value: object
    name: str
    place: str

    @property
    def parsed(self) -> object:
        """Returns the value; that of text is parsed if it is JSON of a list or a table."""
        if isinstance(self.value, str) and self.value.startswith(("[", "{")):
            with suppress(msgspec.DecodeError, RecursionError):
                return msgspec.json.decode(self.value)
        return self.value


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of settings; each overrides the one before.

    Attributes:
        file: a TOML file; None for defaults only.
        text: its content; None to read it.
        environ: variables `PREFIX` + `SECTION__KEY`, e.g. FIRSTLINE_EDGE_API__PORT=9000. Lists are JSON. Other
            variables with the prefix are ignored: Kubernetes sets FIRSTLINE_GATEWAY_PORT and similar ones for a
            service named firstline-gateway.
        prefix: of the process's variables, e.g. "FIRSTLINE_EDGE_".
        overrides: dotted keys from flags, e.g. {"api.port": 9000}; text as in the environment; None is ignored.
    """

    file: Path | None = None
    text: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    prefix: str = "FIRSTLINE_"
    overrides: Mapping[str, object] = field(default_factory=dict)

    @property
    def given(self) -> list[GivenValue]:
        """Returns what variables set, and then what flags set."""
        found = []
        for name, text in self.environ.items():
            if name.startswith(self.prefix):
                key = name.removeprefix(self.prefix).lower().replace("__", ".")
                found.append(GivenValue(key.split("."), text, name, f"the environment variable {name}"))
        for key, value in self.overrides.items():
            if value is not None:
                found.append(GivenValue(key.split("."), value, key, "the command line"))
        return found

    @contextmanager
    def naming(self, is_key: Callable[[list[str]], bool]) -> Iterator[None]:
        """Adds where the setting is to an error that names it: the first that has a value, of those it names.

        Args:
            is_key: whether there is such a setting.
        """
        try:
            yield
        except ConfigError as error:
            named = _keys_in(error.message, is_key)
            given = next((where for path in named if (where := self._exact(path))), "")
            where = given or self._closest(named[0] if named else [])
            raise type(error)(f"{where}: {error.message}" if where else error.message) from error

    def _exact(self, path: list[str]) -> str:
        """Returns where a setting, or the section or list that contains it, is given; "" for a default."""
        for length in range(len(path), 0, -1):
            for each in reversed(self.given):
                if each.key == path[:length]:
                    return each.place
        return self._closest(path) if _defines(self._content, path) else ""

    @property
    def _content(self) -> str:
        if self.text is None:
            return "" if self.file is None else _content(self.file)
        return self.text

    def _closest(self, path: list[str]) -> str:
        """Returns the line of a setting or of the closest table around it, or a variable of that table, or the file."""
        line = line_of(self._content, path)
        if not line and len(path) > 1:
            for each in reversed(self.given):
                if each.key[: len(path) - 1] == path[:-1] and len(each.key) >= len(path):
                    return each.place
        return "" if self.file is None else f"{self.file}{line}"


@contextmanager
def naming_key(file: Path, *keys: str | list[str]) -> Iterator[None]:
    """Adds the file, and a key with its line, to the error about a value in TOML; "" for the file alone.

    Args:
        file: that has the value.
        keys: as `spelled`, or in parts if names may have dots; of several, the first that the file has or the last.
    """
    try:
        yield
    except FirstlineError as error:
        text = _content(file)
        paths = [parts_of(key) if isinstance(key, str) else key for key in keys]
        path = next((path for path in paths if _defines(text, path)), paths[-1])
        place, key = f"{file}{line_of(text, path)}", spelled(path)
        raise type(error)(f"{place}, '{key}': {error.message}" if key else f"{place}: {error.message}") from error


def _content(file: Path) -> str:
    """Returns the text of a file; "" if it cannot be read, which has an error of its own."""
    try:
        return files.read_text(file, FILE_LIMIT_BYTES)
    except (OSError, UnicodeDecodeError):
        return ""


def value_at(value: Any, path: list[str]) -> Any:
    """Returns the value at a path; None if there is none."""
    try:
        for part in path:
            value = value[int(part)] if isinstance(value, list) else value[part]
    except (LookupError, TypeError, ValueError):
        return None
    return value


def _keys_in(message: str, is_key: Callable[[list[str]], bool]) -> list[list[str]]:
    """Returns the settings that a message names, in parts, without what follows them in the sentence."""
    found = []
    for key in _KEY.finditer(message):
        path = parts_of(key[0])
        while len(path) > 1 and not is_key(path):
            path.pop()
        if len(path) > 1:
            found.append(path)
    return found


def parts_of(path: str | None) -> list[str]:
    """Splits `$.links[0].url` into ["links", "0", "url"]; the inverse of `spelled`.

    msgspec writes `[...]`, `ANY_NAME`, for a name in a table.
    """
    return [part.strip('"') for part in _PART.findall((path or "").removeprefix("$"))]


def spelled(path: list[str]) -> str:
    """Returns a key as a person names it, such as "links[0].url", and with quotes where TOML needs them."""
    return "".join(
        f"[{part}]" if number and part.isdigit() else f"{'.' if number else ''}{quoted(part)}"
        for number, part in enumerate(path)
    )


def quoted(name: str) -> str:
    """Returns a name in a key, with quotes where TOML needs them."""
    return name if name == ANY_NAME or re.fullmatch(r"[\w-]+", name, re.ASCII) else f'"{name}"'


def line_of(text: str, path: list[str]) -> str:
    """Returns `:LINE` of a key, or of the closest table or list around it; "" where the text has none of them.

    `tomllib` reports no lines of valid keys. A key is defined by the last line that mentions it and before which it
    does not exist.
    """
    lines = text.split("\n")
    for length in range(len(path), 0, -1):
        wanted = path[:length]
        if not _defines(text, wanted):
            continue
        name = next((part for part in reversed(wanted) if not part.isdigit()), wanted[-1])
        mention = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
        for number in range(len(lines), 0, -1):
            before = "\n".join(lines[: number - 1])
            if mention.search(lines[number - 1]) and _defines(before, wanted) is False:
                return f":{number}"
    return ""


def _defines(text: str, path: list[str]) -> bool | None:
    """Returns whether TOML text, which may end within a list, has a key; None where it ends within another value."""
    for ending in ("", "\n]"):  # of its own line: a comment may end the text
        try:
            found = tomllib.loads(text + ending)
        except (ValueError, RecursionError):
            continue
        return value_at(found, path) is not None
    return None
