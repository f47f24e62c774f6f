"""Where a setting has its value: a line of a TOML file, a variable of the environment, or the command line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firstline_core.errors import ConfigError, FirstlineError

_KEY = re.compile(r"[a-z_]+(?:\[\d+\])?(?:\.[a-z_][\w-]*(?:\[\d+\])?)+")
ANY_NAME = "[...]"
_PART = re.compile(rf"{re.escape(ANY_NAME)}|[^.\[\]]+")


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of settings, for errors about values that are read well and make no sense together.

    Attributes:
        file: None if there is none.
        text: its content; None to read it.
        environ: variables, see `settings.load`.
        prefix: of the variables.
        overrides: dotted keys from flags; None is ignored.
    """

    file: Path | None
    text: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    overrides: Mapping[str, object] = field(default_factory=dict)

    @contextmanager
    def naming(self, is_key: Callable[[list[str]], bool]) -> Iterator[None]:
        """Adds where the setting is to an error that names it: the first that has a value, of those it names.

        Args:
            is_key: whether there is such a setting.
        """
        try:
            yield
        except ConfigError as error:
            named = [path for key in _KEY.findall(error.message) if is_key(path := parts_of(key))]
            given = next((where for path in named if (where := self._exact(path))), "")
            where = given or self._closest(named[0] if named else [])
            raise type(error)(f"{where}: {error.message}" if where else error.message) from error

    def _exact(self, path: list[str]) -> str:
        """Returns where a setting, or the section or list that contains it, is given; "" for a default."""
        for key in (".".join(path[:length]) for length in range(len(path), 0, -1)):
            if self.overrides.get(key) is not None:
                return "the command line"
            if (variable := self.prefix + key.replace(".", "__").upper()) in self.environ:
                return f"the environment variable {variable}"
        return self._closest(path) if _defines(self._content, path) else ""

    @property
    def _content(self) -> str:
        if self.text is None:
            return "" if self.file is None else _content(self.file)
        return self.text

    def _closest(self, path: list[str]) -> str:
        """Returns the line of a setting or of the closest table around it; the file alone if it has neither."""
        return "" if self.file is None else f"{self.file}{line_of(self._content, path)}"


@contextmanager
def naming_key(file: Path, key: str) -> Iterator[None]:
    """Adds the file, and a key with its line, to the error about a value in TOML; "" for the file alone."""
    try:
        yield
    except FirstlineError as error:
        place = f"{file}{line_of(_content(file), parts_of(key))}"
        raise type(error)(f"{place}, '{key}': {error.message}" if key else f"{place}: {error.message}") from error


def _content(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def parts_of(path: str | None) -> list[str]:
    """Splits `$.links[0].url` into ["links", "0", "url"]; msgspec writes `[...]`, `ANY_NAME`, for a name in a table."""
    return _PART.findall((path or "").removeprefix("$"))


def spelled(path: list[str]) -> str:
    """Returns a key as a person names it, such as "links[0].url"."""
    return ".".join(path[:1]) + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path[1:])


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
    for ending in ("", "]"):
        try:
            found: Any = tomllib.loads(text + ending)
        except (ValueError, RecursionError):
            continue
        try:
            for part in path:
                found = found[int(part)] if isinstance(found, list) else found[part]
        except (LookupError, TypeError, ValueError):
            return False
        return True
    return None
