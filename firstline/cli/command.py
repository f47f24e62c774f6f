"""How commands are declared: option groups, one report as text or JSON, and errors as one sentence and an exit code."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, NamedTuple, TypeVar, get_type_hints

import typer
from rich.table import Table
from typer.core import TyperGroup

from firstline.cli import interrupt
from firstline.cli.output import Output, OutputOption, print_json, print_table
from firstline_core.errors import ConfigError, FirstlineError

EXIT_FAILED = 1
EXIT_USAGE = 2

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Report(NamedTuple):
    """The result of a command, which is printed on stdout.

    Attributes:
        value: printed with `-o json`.
        text: sentences and tables, printed otherwise.
        exit_code: of the command, after the report is printed.
    """

    value: object
    text: str | Table | Iterable[str | Table]
    exit_code: int = 0


class _ReportingGroup(TyperGroup):
    """Prints a `FirstlineError` as one sentence; any other error keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        interrupt.start_command()
        try:
            return super().invoke(ctx)
        except FirstlineError as error:
            typer.echo(error.message, err=True)
            ctx.exit(EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED)


def command_line() -> typer.Typer:
    """Returns the application `firstline` without commands."""
    return typer.Typer(
        name="firstline",
        cls=_ReportingGroup,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        rich_markup_mode=None,  # plain help and plain errors: a sentence, not a box
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def command_group(explanation: str) -> typer.Typer:
    """Returns a group of commands, such as `firstline model`."""
    return typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=explanation)


def run_command_line(app: typer.Typer) -> int:
    """Runs the command line of this process and returns its exit code."""
    try:
        app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_FAILED
    return 0


def command(app: typer.Typer, name: str, **settings: Any) -> Callable[[_Function], _Function]:
    """Adds the decorated function to an application as a command.

    A parameter whose type is a dataclass is an option group: each field, declared with `typer.Option`, becomes an
    option of the command. A function that returns a `Report` gets the option `--output`; any other prints by itself.

    Args:
        app: the application or a group.
        name: of the command.
        **settings: see `typer.Typer.command`.
    """

    def add(function: _Function) -> _Function:
        app.command(name, **settings)(_expanded(function))
        return function

    return add


def _expanded(function: Callable[..., Any]) -> Callable[..., None]:
    """Returns a function with one parameter for each option, as typer reads them."""
    signature = inspect.signature(function, eval_str=True)
    groups: dict[str, Any] = {}
    parameters = []
    for parameter in signature.parameters.values():
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            parameters += _options_of(parameter.annotation)
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    reports = signature.return_annotation is Report
    if reports:
        option = inspect.Parameter(
            "output", inspect.Parameter.KEYWORD_ONLY, default=Output.TEXT, annotation=OutputOption
        )
        parameters.append(option)

    def run(**arguments: Any) -> None:
        output = arguments.pop("output") if reports else Output.TEXT
        for name, group in groups.items():
            arguments[name] = group(**{field.name: arguments.pop(field.name) for field in fields(group)})
        report = function(**arguments)
        if reports:
            print_report(report, output)

    run.__doc__ = function.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _options_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]


def print_report(report: Report, output: Output) -> None:
    """Prints a report in the format that the user has chosen.

    Raises:
        typer.Exit: the exit code is not 0.
    """
    if output is Output.JSON:
        print_json(report.value)
    else:
        for part in (report.text,) if isinstance(report.text, str | Table) else report.text:
            typer.echo(part) if isinstance(part, str) else print_table(part)
    if report.exit_code:
        raise typer.Exit(report.exit_code)
