"""What devices and gateways wrote is printed without effect on the terminal."""

import pytest
import typer
from typer.testing import CliRunner

from firstline.cli.command import Group, Report, print_report
from firstline.cli.output import Output, date, print_table, say, table, warn
from firstline_core.errors import LinkError

STEERING = "\x1b]0;title\x07 \x9b31m red\r"
SHOWN = "\\x1b]0;title\\x07 \\x9b31m red\\x0d"


def test_no_printed_text_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(Report({}, (STEERING, table("why", rows=[(STEERING,)]))), Output.TEXT)
    say(STEERING, err=True)
    warn(STEERING)
    printed = capsys.readouterr()
    assert printed.out.count(SHOWN) == 2 and printed.err.splitlines() == [SHOWN, f"Warning: {SHOWN}"]
    assert (printed.out + printed.err).replace("\n", "").isprintable()


def test_no_error_of_a_gateway_steers_the_terminal() -> None:
    app = typer.Typer(cls=Group)

    @app.callback()
    def devices() -> None: ...

    @app.command()
    def device() -> None:
        raise LinkError(STEERING)

    assert CliRunner().invoke(app, ["device"], color=True).stderr == f"{SHOWN}\n"


def test_no_text_of_a_table_becomes_an_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(table("address", rows=[("fe80:a:b::1",)]))
    assert "fe80:a:b::1" in capsys.readouterr().out


def test_a_date_beyond_all_years_is_shown() -> None:
    """A profile has the time of its machine's clock."""
    assert [date(1e18), date(-1e18), date(None)] == ["9999-12-31 23:59", "1900-01-01 00:00", "-"]
