"""Every command that a page, an example or a sentence of ours names is one, and has the options it is shown with.

The programs' own parsers read them, and nothing is done. Pages that can be followed are, in tests/e2e.
"""

import ast
import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from firstline.cli.app import app
from firstline.demo.site import next_commands
from firstline_edge.cli.parser import parse
from firstline_gateway import __main__ as gateway

CHECKOUT = Path(__file__).parents[3]
PROGRAMS = ("firstline", "firstline-gateway", "edge-agent")
PAGES = [file for pattern in ("*.md", "docs/**/*.md", "cloud_gateway/**/*.md") for file in CHECKOUT.glob(pattern)]
PAGES.remove(CHECKOUT / "docs/reference/errors-by-example.md")  # its command lines are wrong, and run by a test
EXAMPLES = [
    *CHECKOUT.glob("cloud_gateway/**/gateway.toml"),
    *CHECKOUT.glob("edge_agent/edge-agent.*"),
    CHECKOUT / "docker-compose.yml",
]
PACKAGES = ("firstline", "edge_agent", "cloud_gateway", "shared")

_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_CALLING = re.compile(rf"(?:^|[$=/|&;(] ?)(?:{'|'.join(PROGRAMS)}) ")
_NAMING = re.compile(rf"`(?:{'|'.join(PROGRAMS)}) ")
_OPERATOR = re.compile(r"[();<>|&]+")
_OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")


def test_a_pages_command_lines_are_taken() -> None:
    for page in PAGES:
        for call in typed(page.read_text()):
            code, answer = said(*call)
            assert not code, f"{page}: {shlex.join(call)}: {answer}"


def test_what_a_text_names_is_there() -> None:
    for file in (*PAGES, *EXAMPLES):
        prose = re.sub(r"\n(?:# ?|> )?", " ", _BLOCK.sub("", file.read_text()))
        assert [fault for name in named(prose) for fault in faults(name)] == [], file


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_sentence_tells_to_type_is_there(package: str) -> None:
    found = []
    for source in (file.read_text() for file in (CHECKOUT / package).rglob("*.py")):
        if _NAMING.search(source):
            found += [name for text in texts(source) for name in named(" ".join(text.split()))]
    assert found
    assert [fault for name in found for fault in faults(name)] == []


@pytest.mark.parametrize("line", next_commands())
def test_what_the_demo_tells_to_type_is_taken(line: str) -> None:
    assert [said(*call) for call in calls(line)] == [(0, "")]


@pytest.mark.parametrize(
    "line",
    [
        "$ firstline rollout strat digits 2",
        "$ firstline model push bundle --need edge:arch=armv7l",
        "$ firstline model delete digits one",
        "$ export A=$(firstline keys statu)",
        "$ cat t | edge-agent join https://gateway --token-file - --forced 2>&1 || echo no",
        "$ /opt/firstline/bin/firstline-gateway key create a --scope everything > a.key",
        "$ firstline bundle create --out a \\\n>   --nam b",
    ],
)
def test_a_wrong_command_line_is_found_out(line: str) -> None:
    (call,) = typed(f"```console\n$ ls\n{line}\nedge-agent: no\n```\n")
    assert said(*call)[0]


@pytest.mark.parametrize(
    "text", ["`firstline models`", "`firstline model list | rn NAME`", "`edge-agent purge --all`", "`edge-agent roll "]
)
def test_a_name_of_nothing_is_found_out(text: str) -> None:
    assert [fault for name in named(text) for fault in faults(name)]


def typed(page: str) -> Iterator[list[str]]:
    """The calls of our programs in a page's blocks, in a console after `$` alone."""
    for kind, block in _BLOCK.findall(page):
        for line in re.sub(r"\\\n(?:> )?", " ", block).splitlines():
            if (kind != "console" or line.startswith("$ ")) and _CALLING.search(line):
                yield from calls(line.removeprefix("$ "))


def calls(line: str) -> Iterator[list[str]]:
    """The calls of our programs in a line of a shell's."""
    words = shlex.shlex(line.replace("$(", "("), posix=True, punctuation_chars=True)
    words.whitespace_split = True
    call: list[str] = []
    for word in [*words, ";"]:
        if not _OPERATOR.fullmatch(word):
            call.append(word)
            continue
        while call and "=" in call[0]:  # A=B PROGRAM
            call.pop(0)
        if call and (program := call[0].rpartition("/")[2]) in PROGRAMS:
            redirected = word.startswith(">") and call[-1].isdigit()  # the 2 of 2>
            yield [program, *call[1 : -1 if redirected else None]]
        call = []


def named(text: str) -> Iterator[str]:
    """The commands in backquotes; of `PROGRAM A | B | PROGRAM C` all three."""
    for quoted in re.findall(r"`([^`]+)", text):
        before: list[str] = []
        for part in re.split(r" ?\| ?", quoted):
            words = part.split()
            if words and words[0] in PROGRAMS:
                before = words[:-1]
                yield part
            elif before and words:
                yield " ".join([*before, *words])


def faults(name: str) -> Iterator[str]:
    """What is wrong with a command as a text names it: `PROGRAM WORDS VALUES --option VALUE ...`."""
    program, *rest = name.partition("...")[0].split()
    words = rest[: next((i for i, word in enumerate(rest) if not re.fullmatch(r"[a-z][a-z-]*", word)), len(rest))]
    code, text = said(program, *words, "--help")
    if code:
        yield f"`{name}`: {text}"
    for option in _OPTION.findall(" ".join(rest)):
        if not re.search(rf"(?<![\w-]){option}(?![\w-])", text):
            yield f"`{name}`: there is no {option}"


@cache
def said(program: str, *arguments: str) -> tuple[int, str]:
    """The exit code, and what the program says."""
    output = io.StringIO()
    with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
        try:
            if program == "edge-agent":
                parse(arguments)
            elif program == "firstline-gateway":
                gateway.parser().parse_args(arguments)
            else:
                _firstline(list(arguments))
        except SystemExit as end:
            return int(end.code or 0), output.getvalue()
    return 0, output.getvalue()


@cache
def _commands() -> Any:
    """All of `firstline`'s, which take a tenth of a second to make."""
    return get_command(app)


def _firstline(arguments: list[str]) -> None:
    command = _commands()
    while isinstance(command, TyperGroup) and arguments and arguments[0] in command.commands:
        command = command.get_command(None, arguments.pop(0))
    if not isinstance(command, TyperGroup):
        command.callback = lambda **_: None
    command.main(arguments)


def texts(source: str) -> Iterator[str]:
    """A module's texts, those with values in them too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "VALUE" for part in node.values)
