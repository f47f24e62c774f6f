"""Devices by their tags, in the words of Kubernetes' label selectors: `site=berlin,camera!=old,outdoor,!test`.

All parts must hold. `key=value` and `key!=value` compare, where a device without the key differs from every value;
`key` alone requires the tag, `!key` its absence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from firstline_core.errors import RequestError
from firstline_core.fleet.rest import TAG_PATTERN
from firstline_core.protocol.tensors import shown

_LIMIT_CHARACTERS = 1024
_WORD = re.compile(TAG_PATTERN)


@dataclass(frozen=True, slots=True)
class _Part:
    key: str
    wanted: str | None
    negated: bool

    def holds(self, tags: Mapping[str, str]) -> bool:
        found = self.key in tags if self.wanted is None else tags.get(self.key) == self.wanted
        return found is not self.negated


@dataclass(frozen=True, slots=True)
class Selector:
    """Selects devices.

    Args:
        parts: that must all hold; none to select all.
    """

    parts: tuple[_Part, ...]

    def matches(self, tags: Mapping[str, str]) -> bool:
        """Returns whether a device with these tags is selected."""
        return all(part.holds(tags) for part in self.parts)


def parse_selector(text: str) -> Selector:
    """Reads a selector.

    Raises:
        RequestError: the text is not a selector.
    """
    if len(text) > _LIMIT_CHARACTERS:
        raise RequestError(f"A selector has at most {_LIMIT_CHARACTERS} characters; this has {len(text)}.")
    parts = [_part(part.strip()) for part in text.split(",")] if text.strip() else []
    return Selector(tuple(parts))


def _part(text: str) -> _Part:
    key, equals, value = text.partition("=")
    if equals:
        negated = key.endswith("!")
        key, value = key.removesuffix("!").strip(), value.removeprefix("=").strip()
        found = _Part(key, value, negated)
    else:
        found = _Part(text.removeprefix("!").strip(), None, text.startswith("!"))
    for word in (found.key, found.wanted):
        if word is not None and not _WORD.match(word):
            raise RequestError(
                f"{shown(text)} is not a selector; use KEY=VALUE, KEY!=VALUE, KEY or !KEY, separated by commas. Keys "
                "and values have letters, digits, '.', '_', '/' and '-'."
            )
    return found
