"""All commands: their help, their examples, and what a mistyped one says."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from firstline.cli.app import PANELS, app
from firstline.cli.command import command as register
from firstline.cli.command import command_group

_HEAVY = ("numpy", "httpx", "onnxruntime", "PIL", "tuf", "cryptography", "sqlalchemy", "nicegui", "rich", "asyncio")
_SCRIPT = f"""
import sys
from typer.testing import CliRunner
from firstline.cli.app import app
for path in sys.stdin.read().splitlines():
    result = CliRunner().invoke(app, [*path.split(), "--help"])
    assert result.exit_code == 0, result.output
    assert not (loaded := [name for name in {_HEAVY} if name in sys.modules]), (path, loaded)
"""


def _leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(command, TyperGroup):
        for name in command.list_commands(None):
            yield from _leaves(command.get_command(None, name), (*path, name))
    else:
        yield path, command


@cache
def leaves() -> dict[tuple[str, ...], Any]:
    """Returns all commands by path, which take half a second to make."""
    return dict(_leaves(get_command(app)))


def test_help_loads_no_large_package() -> None:
    """In a process of its own, because this one has loaded them."""
    paths = "\n".join(["", *PANELS["Operate"], *(" ".join(path) for path in leaves())])
    done = subprocess.run([sys.executable, "-c", _SCRIPT], input=paths, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr.splitlines()[-1]


def test_the_example_of_each_command_is_taken() -> None:
    for path, command in leaves().items():
        program, *words = shlex.split(command.epilog.split("Example:\n  ")[1].partition("\n")[0].partition(" > ")[0])
        assert (program, tuple(words[: len(path)])) == ("firstline", path)
        command.make_context(path[-1], words[len(path) :])


def test_a_text_that_another_encoding_lacks_is_not_taken_for_an_argument() -> None:
    group, lacking = command_group(), UnicodeEncodeError("idna", "a..b", 2, 3, "label empty")

    def show() -> object:
        """Look for a host."""
        raise lacking

    for name in ("show", "list"):  # a single command would be no group
        register(group, name, example=f"firstline {name}")(show)

    assert CliRunner().invoke(group, ["show"]).exception is lacking


def test_every_command_answers_in_json() -> None:
    options = {path: {option for each in command.params for option in each.opts} for path, command in leaves().items()}
    assert [path for path, flags in options.items() if not {"-o", "--output"} <= flags] == []


def test_every_option_is_explained() -> None:
    """A help text is found by the name of its parameter, so a wrong name would lose it."""
    assert [(path, each.name) for path, command in leaves().items() for each in command.params if not each.help] == []


def test_commands_are_listed_by_panel() -> None:
    text = CliRunner().invoke(app, ["--help"]).stdout
    places = [text.index(f"\n{panel}:\n") for panel in PANELS]
    assert places == sorted(places)
    assert text.index("\n  certify ") < places[1] < text.index("\n  model ")


def test_the_shell_completes_commands() -> None:
    environment = {"_FIRSTLINE_COMPLETE": "complete_bash", "COMP_WORDS": "firstline roll", "COMP_CWORD": "1"}
    assert CliRunner().invoke(app, [], env=environment, prog_name="firstline").stdout.split() == ["rollout"]
