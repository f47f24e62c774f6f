"""Reads docstrings, whose entries about arguments and attributes are also help texts and descriptions of fields."""

from __future__ import annotations

import inspect
import re


def text_and_entries(docstring: str) -> tuple[str, dict[str, str]]:
    """Returns a docstring up to its section of arguments or attributes, and the entries of that section by name."""
    text, *sections = re.split("\n\n(?:Args|Attributes):\n", inspect.cleandoc(docstring))
    entries = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", "".join(sections), re.MULTILINE)
    return text, {name: " ".join(entry.split()) for name, entry in entries}
