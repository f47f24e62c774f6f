"""Where each key of a TOML file stands, for errors that name a line. `tomllib` reads the values and says no lines.

https://toml.io/en/v1.0.0. The text is known to be valid, so this only has to tell keys from what is inside values.
"""

from __future__ import annotations

import re
from typing import NamedTuple

Path = tuple[str, ...]

# Three quotes end a multi-line string, which may end in two more of its own.
_TOKEN = re.compile(
    r"(?P<space>[ \t\r]+|\#[^\n]*)|(?P<newline>\n)|(?P<mark>[\[\]{}=,.])|"
    r'(?P<text>"""(?:\\.|[^\\])*?"""[\"]{0,2}|\'\'\'.*?\'\'\'[\']{0,2}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\')|'
    r'(?P<word>[^\s\#\[\]{}=,."\']+)',
    re.DOTALL,
)


class _Token(NamedTuple):
    kind: str | None
    text: str
    line: int


def key_lines(text: str) -> dict[Path, int]:
    """The lines, counted from 1, of all keys, tables and elements of lists.

    Args:
        text: valid TOML.

    Returns:
        By path; the elements of lists and arrays of tables count from "0": ("links", "1", "url").
    """
    return _Scanner(text).lines


class _Scanner:
    def __init__(self, text: str) -> None:
        self.lines: dict[Path, int] = {}
        self._tokens = _tokens(text)
        self._next = 0
        counts: dict[Path, int] = {}  # of the arrays of tables
        table: Path = ()
        while (token := self._peek()) is not None:
            if token.kind == "newline":
                self._next += 1
            elif token.text == "[":
                table = self._header(counts)
            else:
                self._pair(table)

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self, *texts: str) -> bool:
        """Passes over the next token if it is one of these marks."""
        token = self._peek()
        found = token is not None and token.kind != "text" and token.text in texts
        self._next += found
        return found

    def _header(self, counts: dict[Path, int]) -> Path:
        """`[a.b]` or `[[a.b]]`."""
        line = self._tokens[self._next].line
        self._take("[")
        repeated = self._take("[")
        *parents, last = self._key()
        path: Path = ()
        for part in parents:
            path = self._known((*path, part), line)
            if path in counts:
                path = (*path, str(counts[path]))
        path = self._known((*path, last), line)
        if repeated:
            counts[path] = counts.get(path, -1) + 1
            path = self._known((*path, str(counts[path])), line)
        while self._take("]"):
            pass
        return path

    def _pair(self, table: Path) -> None:
        """`a.b = value`."""
        line = self._tokens[self._next].line
        path = table
        for part in self._key():
            path = self._known((*path, part), line)
        self._take("=")
        self._value(path)

    def _key(self) -> list[str]:
        parts = []
        while (token := self._peek()) is not None and token.kind in ("word", "text"):
            parts.append(_unquoted(token))
            self._next += 1
            self._take(".")
        return parts

    def _value(self, path: Path) -> None:
        if self._take("["):
            element = 0
            while not self._take("]"):
                if not self._take(",", "\n"):
                    self._value(self._known((*path, str(element)), self._tokens[self._next].line))
                    element += 1
        elif self._take("{"):
            while not self._take("}"):
                if not self._take(",", "\n"):
                    self._pair(path)
        else:  # 1.5 and 07:32:00 are several tokens
            while (token := self._peek()) is not None and (token.kind in ("word", "text") or token.text == "."):
                self._next += 1

    def _known(self, path: Path, line: int) -> Path:
        self.lines.setdefault(path, line)
        return path


def _tokens(text: str) -> list[_Token]:
    found, line = [], 1
    for match in _TOKEN.finditer(text):
        if match.lastgroup != "space":
            found.append(_Token(match.lastgroup, match[0], line))
        line += match[0].count("\n")
    return found


def _unquoted(token: _Token) -> str:
    """A key's name; escapes in quoted keys stay as they are written."""
    return token.text[1:-1] if token.kind == "text" else token.text
