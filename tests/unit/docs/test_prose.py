"""The rules in `docs/vale` that have the level `error`, applied without Vale, which no package index offers."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from support.yaml_files import read_yaml

_ROOT = Path(__file__).parents[3]
_SOURCES = [
    path
    for folder in ("firstline", "edge_agent", "cloud_gateway", "shared", "models", "bench", "tests")
    for path in sorted((_ROOT / folder).rglob("*.py"))
    if path.name != Path(__file__).name
]
_PAGES = [*_ROOT.glob("*.md"), *(_ROOT / "docs").rglob("*.md"), *(_ROOT / "models").glob("*.md")]
_CODE_IN_MARKDOWN = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_STRING = re.compile(r'(?P<docstring>^ *r?)?"""(?P<text>.*?)"""', re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"(?:^ *|  )#.*")
_CODE_IN_TEXT = re.compile(r"``[^`]*``|`[^`]*`")


def _rules() -> dict[str, re.Pattern[str]]:
    rules = {}
    for path in sorted((_ROOT / "docs/vale/Firstline").glob("*.yml")):
        rule = read_yaml(path)
        if rule["level"] != "error":
            continue
        terms = "|".join(f"(?:{term})" for term in rule.get("tokens", rule.get("swap", ())))
        pattern = terms if rule.get("nonword") else rf"\b(?:{terms})\b"
        rules[path.stem] = re.compile(pattern, re.IGNORECASE if rule["ignorecase"] else 0)
    return rules


def _page_prose(path: Path) -> Iterator[tuple[int, str]]:
    text = _CODE_IN_MARKDOWN.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), path.read_text())
    yield from enumerate(text.splitlines(), start=1)


def _source_prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the docstrings and comments of a module with their line numbers; to parse it takes four times as long."""
    source = path.read_text()
    for string in _STRING.finditer(source):
        if string["docstring"] is not None:
            yield source.count("\n", 0, string.start()) + 1, _CODE_IN_TEXT.sub(" ", string["text"])
    # That of a string counts, too, if it looks like a comment.
    for number, line in enumerate(source.splitlines(), start=1):
        if comment := _COMMENT.search(line):
            yield number, _CODE_IN_TEXT.sub(" ", comment[0])


@cache
def _prose() -> list[tuple[Path, int, str]]:
    """Returns all prose with its file and line, read once for all rules."""
    return [
        (path, line, text)
        for paths, prose in ((_PAGES, _page_prose), (_SOURCES, _source_prose))
        for path in paths
        for line, text in prose(path)
    ]


@pytest.mark.parametrize(("name", "pattern"), _rules().items(), ids=list(_rules()))
def test_prose_follows_the_rule(name: str, pattern: re.Pattern[str]) -> None:
    breaches = [
        f"{path.relative_to(_ROOT)}:{line}: {match[0]!r}"
        for path, line, text in _prose()
        for match in pattern.finditer(text)
    ]
    assert not breaches, f"{name}:\n" + "\n".join(breaches)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Actors", "Whoever asks is answered."),
        ("Archaic", "The profile is measured anew."),
        ("Idioms", "The device is told of the version."),
        ("Comparisons", "The gateway beside raw ASGI."),
        ("Negations", "Returns None if there is a file and it is no bundle."),
        ("Terms", "The share of kept answers."),
    ],
)
def test_each_rule_finds_its_words(name: str, sentence: str) -> None:
    assert _rules()[name].search(sentence)
