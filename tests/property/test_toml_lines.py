"""Every key that `tomllib` reads has a line, and the line has the key."""

from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from firstline_core.toml_lines import key_lines

_KEYS = st.from_regex(r"[a-z][a-z0-9_-]{0,3}", fullmatch=True)
_TRAPS = ["x = 1", "[t]", "[[t]]", "# n", "a, b", "{", "]", "'", "=", "\\\\", '\\"', "3.5"]


def _quoted(text: str) -> str:
    return f'"{text}"'


_SCALARS = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(str),
    st.sampled_from(["true", "1979-05-27 07:32:00", "07:32:00", "'it'", "'''\n[t]\nk = 1\n'''"]),
    st.sampled_from(_TRAPS).map(_quoted),
    st.lists(st.sampled_from(_TRAPS), max_size=3).map(lambda lines: '"""\n' + "\n".join(lines) + '\n""\\""""""'),
)


def _list(elements: list[str]) -> str:
    return "[" + ",".join(f"\n  {element} # [n]" for element in elements) + "\n]"


def _inline(pairs: dict[str, str]) -> str:
    return "{" + ", ".join(f"{key} = {value}" for key, value in pairs.items()) + "}"


_VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3).map(_list)
        | st.dictionaries(_KEYS, inner.filter(lambda value: "\n" not in value), max_size=2).map(_inline)
    ),
    max_leaves=5,
)
_TABLES = st.dictionaries(_KEYS, _VALUES, max_size=3).map(
    lambda pairs: "".join(f"{key} = {value}  # {key}2 = 3\n\n" for key, value in pairs.items())
)
_HEADERS = st.tuples(st.sampled_from(["[{}]", "[[{}]]", '["{}"]', "[{}.deep]"]), _KEYS).map(lambda h: h[0].format(h[1]))


def _paths(found: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    inner = (
        found.items()
        if isinstance(found, dict)
        else ((str(i), value) for i, value in enumerate(found))
        if isinstance(found, list)
        else ()
    )
    return [path, *(deeper for key, value in inner for deeper in _paths(value, (*path, key)))]


@given(_TABLES, st.lists(st.tuples(_HEADERS, _TABLES), max_size=4))
def test_every_key_has_its_line(top: str, tables: list[tuple[str, str]]) -> None:
    text = top + "".join(f"{header}\n{body}" for header, body in tables)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return  # two tables of one name
    lines = key_lines(text)
    written = text.split("\n")
    assert set(lines) == set(_paths(values)[1:])
    for path, line in lines.items():
        if not path[-1].isdigit():
            assert path[-1] in written[line - 1].rsplit("#", 1)[0]
