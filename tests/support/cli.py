"""Commands of `firstline` within this process, as their users type them."""

from typing import Any

import msgspec
from typer.testing import CliRunner, Result

from firstline.cli.app import app


def run(*arguments: object, code: int = 0, table: str | bytes | None = None) -> Result:
    """Runs a command with a table as its standard input; fails on another exit code, or if a traceback is printed."""
    result = CliRunner().invoke(app, [*map(str, arguments)], input=table)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def json_of(*arguments: object, code: int = 0, table: str | bytes | None = None) -> Any:
    """Returns what a command prints with `-o json`."""
    return msgspec.json.decode(run(*arguments, "-o", "json", code=code, table=table).stdout)


def in_one_line(text: str) -> str:
    """Returns an output without the breaks of its lines."""
    return " ".join(text.split())
