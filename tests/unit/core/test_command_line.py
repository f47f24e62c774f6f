"""The parsers of both tiers: examples, mistyped words, and help without large packages."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from firstline_core.command_line import Parser
from firstline_edge.cli import parser as edge
from firstline_gateway import __main__ as gateway

_HEAVY = ("numpy", "msgspec", "httpx", "onnxruntime", "tuf", "cryptography", "sqlalchemy", "uvicorn", "structlog")


def _leaves(parser: Parser) -> Iterator[Parser]:
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for each in groups[0].choices.values() if groups else ():
        yield from _leaves(each)
    if not groups:
        yield parser


PROGRAMS = {"edge-agent": edge.parser, "firstline-gateway": gateway.parser}
LEAVES = {leaf.prog: leaf for make in PROGRAMS.values() for leaf in _leaves(make())}


@pytest.mark.parametrize("prog", LEAVES)
def test_the_example_of_a_command_is_taken(prog: str) -> None:
    command = shlex.split(LEAVES[prog].example.partition(" > ")[0])
    assert command[: len(prog.split())] == prog.split()
    PROGRAMS[command[0]]().parse_args(command[1:])
    assert LEAVES[prog].example in LEAVES[prog].format_help()


@pytest.mark.parametrize("prog", LEAVES)
def test_a_command_answers_in_json(prog: str) -> None:
    assert "json}" in LEAVES[prog].format_usage()


@pytest.mark.parametrize(
    ("program", "arguments", "sentence"),
    [
        ("edge-agent", ["updat", "list"], "invalid choice: 'updat'; did you mean 'update'?"),
        ("edge-agent", ["status", "--ouput", "json"], "unknown option --ouput; did you mean '--output'?"),
        ("edge-agent", ["status", "--qqq=3"], "unknown option --qqq; `edge-agent status -h` lists them."),
        ("edge-agent", ["qqq"], "use one of init, run, status, explain"),
        ("edge-agent", ["join", "URL", "--token-fle", "x"], "unknown option --token-fle; did you mean '--token-file'?"),
        ("edge-agent", ["run", "--port", "abc"], "argument --port: 'abc' is not a whole number."),
        ("edge-agent", ["update"], "name a command; `edge-agent update -h` lists them."),
        ("edge-agent", ["update", "rollback"], "MODEL or --configuration is missing; "),
        ("edge-agent", ["status", "press-9"], "unexpected argument 'press-9'; delete it."),
        ("edge-agent", ["plan", "explain", "--splits"], "--splits has no value; write one after it."),
        ("firstline-gateway", ["key", "create"], "NAME is missing; `firstline-gateway key create -h` describes it."),
        ("firstline-gateway", ["key", "creat", "ops"], "invalid choice: 'creat'; did you mean 'create'?"),
        ("firstline-gateway", ["key", "create", "ops", "--scope", "flet"], "did you mean 'fleet'?"),
    ],
)
def test_a_mistyped_word_is_recognised(
    program: str, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        PROGRAMS[program]().parse_args(arguments)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]


def test_the_scopes_of_keys_are_those_of_principals() -> None:
    from firstline_gateway.commands.keys import _SCOPES
    from firstline_gateway.identity.principals import SCOPES

    assert set(_SCOPES) == set(SCOPES)


@pytest.mark.parametrize("module", ["firstline_edge.cli.parser", "firstline_gateway.__main__"])
def test_help_loads_no_large_package(module: str) -> None:
    """In a process of its own, because this one has loaded them."""
    script = f"import sys, {module} as m; m.parser().format_help(); print([n for n in {_HEAVY} if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "[]\n"
