"""How commands are declared: option groups, an example each, one report as text or JSON, and errors as one sentence.

The module of a command is imported for its help and for completion too. Imports that only the running command needs
stand under `if TYPE_CHECKING:` in it, and are carried out before its function is called: no help loads numpy.
"""

from __future__ import annotations

import ast
import gc
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from importlib import import_module
from textwrap import dedent
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from firstline.cli import interrupt
from firstline.cli.output import Output, OutputOption, print_json, print_table, say
from firstline_core.command_line import run_with_output
from firstline_core.docstrings import text_and_entries
from firstline_core.errors import ConfigError, FirstlineError, did_you_mean
from firstline_core.storage.files import system_reason
from firstline_core.telemetry.wording import wanted_value

if TYPE_CHECKING:
    from rich.table import Table

EXIT_FAILED = 1
EXIT_USAGE = 2
_TOO_MANY = re.compile(r"Got unexpected extra argument.*\((.*)\)")
_CHOICES = re.compile(r"'([^']*)' is not one of (.*)")
_SUMMARY = 200  # characters: all of the first sentence

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


class Group(TyperGroup):
    """Lists its commands by panel, and prints errors as one sentence.

    Those are a `FirstlineError`, and what the system refuses about a named file. Other errors keep their traceback.
    """

    def panels(self) -> Mapping[str, Iterable[str]]:
        """Returns the names of the commands by the title of their panel."""
        return {"Commands": self.commands}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, self.commands))
        for title, names in self.panels().items():
            with formatter.section(title):
                listed = {name: self.get_command(ctx, name) for name in names}
                formatter.write_dl(
                    [(name.ljust(width), each.get_short_help_str(_SUMMARY)) for name, each in listed.items() if each]
                )

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FirstlineError as error:
            say(error.message, err=True)
            ctx.exit(EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED)
        except OSError as error:
            if error.filename is None:
                raise
            say(
                f"{error.filename} cannot be used: {system_reason(error)}; check the path, and who may use it.",
                err=True,
            )
            ctx.exit(EXIT_USAGE)
        except UnicodeEncodeError as error:
            if error.encoding != "utf-8":  # of a library, such as a host's name in the encoding `idna`
                raise
            # Of an argument that a request or JSON names.
            typer.echo(f"{error.object!a} is not text in UTF-8; use a name that is.", err=True)
            ctx.exit(EXIT_USAGE)
        except typer.BadParameter as error:
            error.message = _reworded(error)
            raise
        except typer.TyperException as error:
            _advise(error)
            raise


class _Command(TyperCommand):
    """Names the option, or the variable, in an error about the file that it names."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            options = [each for each in self.params if not isinstance(each, TyperArgument)]
            places = [place for each in options if (place := _place(each, ctx)) and _begins_with(error, each, ctx)]
            if len(places) != 1 or "--" in error.message:
                raise
            raise type(error)(f"{places[0]}: {error.message}") from error


def _place(option: Any, ctx: Any) -> str:
    """Returns the option, or the variable, that a person has set; "" for a default."""
    source: str = ctx.get_parameter_source(option.name).name
    return str({"COMMANDLINE": option.opts[0], "ENVIRONMENT": option.envvar}.get(source) or "")


def _begins_with(error: ConfigError, option: Any, ctx: Any) -> bool:
    """Returns whether the message of an error begins with the value of an option."""
    value = ctx.params.get(option.name)
    without_user = f"'{str(value).split('://')[0]}://...@"  # as `base_url` shows a URL with a password
    return error.message.startswith((f"{value} ", f"{value}:", without_user))


def _advise(error: Any) -> None:
    """Says what to do about arguments too much: use an option that takes a file, if no argument is taken."""
    parameters = error.ctx.command.params if getattr(error, "ctx", None) is not None else []
    files = [each for each in parameters if each.metavar == "FILE" and not each.envvar]
    takes_none = not any(isinstance(each, TyperArgument) for each in parameters)
    if (found := _TOO_MANY.fullmatch(error.message)) is not None:
        first, *more = found[1].split()
        fault = f"'{first}' is one argument too many" if not more else f"'{found[1]}' are too many arguments"
        advice = f"name a file with {files[0].opts[0]} {first}" if files and takes_none else "leave it out"
        error.message = f"{fault}; {advice}."
    elif error.message.endswith(" requires an argument."):
        error.message += " Write its value after it."


def _reworded(error: typer.BadParameter) -> str:
    """Returns a message about an option's value without the words of the library that converts it."""
    if not error.message:  # a missing parameter; the library appends its choices after a full stop
        described: Any = error.param
        text = str(described.help or "")
        text = text if text[1:2].isupper() else text[:1].lower() + text[1:]
        return f"Add it: {text.removesuffix('.' if described.type_descriptor.is_choice else '')}"
    text = error.message.removeprefix("Value error, ")
    if choices := _CHOICES.fullmatch(text):
        end = did_you_mean(choices[1], re.findall(r"'([^']+)'", choices[2]))
        return text if end == "." else text.removesuffix(".") + end
    errors: Any = getattr(error.__cause__, "errors", None)  # of pydantic, which typer uses
    if errors is None or not text.startswith("Input should be "):
        return text
    given = str(errors()[0]["input"])
    return f"it must be {wanted_value(text)}, not {given!r}."


def command_line(group: type[Group]) -> typer.Typer:
    """Returns the application `firstline` without commands."""
    return typer.Typer(
        name="firstline",
        cls=group,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help and plain errors: a sentence, not a box
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def command_group(explanation: str = "") -> typer.Typer:
    """Returns a group of commands, such as `firstline model`; without an explanation, the place of one command."""
    return typer.Typer(cls=Group, no_args_is_help=True, rich_markup_mode=None, add_completion=False, help=explanation)


def run_command_line(app: typer.Typer) -> int:
    """Runs the command line of this process and returns its exit code."""

    def run() -> int:
        try:
            app()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else EXIT_FAILED
        return 0

    return run_with_output(run, partial(typer.echo, err=True))


def command(
    app: typer.Typer, name: str, *, example: str, epilog: str = "", **settings: Any
) -> Callable[[_Function], _Function]:
    """Adds the decorated function to an application as a command.

    Each parameter is an option, unless it is declared with `typer.Argument`; a flag has no opposite unless one is
    declared. Its help text is part of the declaration, or its entry in the section `Args` of the docstring. A parameter
    whose type is a dataclass is an option group: each field becomes an option of the command, with a help text in the
    section `Attributes` of the class. A function that returns a `Report` gets the option `--output`; any other prints
    by itself.

    Args:
        app: the application or a group.
        name: of the command.
        example: a complete command line.
        epilog: more at the end of the help.
        **settings: see `typer.Typer.command`.
    """
    end = "\n\n".join(filter(None, (f"\b\nExample:\n  {example}", epilog)))  # "\b" keeps the lines as they are

    def add(function: _Function) -> _Function:
        app.command(name, cls=_Command, epilog=end, **settings)(_expanded(function))
        return function

    return add


def _expanded(function: Callable[..., Any]) -> Callable[..., None]:
    """Returns a function with one parameter for each option, as typer reads them."""
    signature = inspect.signature(function, eval_str=True)
    text, helps = _described(function)
    groups: dict[str, Any] = {}
    parameters = []
    for parameter in signature.parameters.values():
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            parameters += _options_of(parameter.annotation)
        else:
            parameters.append(_parameter(parameter.name, parameter.annotation, parameter.default, helps))
    reports = signature.return_annotation is Report
    if reports:
        parameters.append(_parameter("output", OutputOption, Output.TEXT, {}))

    def run(**arguments: Any) -> None:
        output = arguments.pop("output") if reports else Output.TEXT
        for name, group in groups.items():
            arguments[name] = group(**{field.name: arguments.pop(field.name) for field in fields(group)})
        _start(function)
        report = function(**arguments)
        if reports:
            print_report(report, output)

    run.__doc__ = text
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _options_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    helps = {name: text for base in reversed(group.__mro__) for name, text in _described(base)[1].items()}
    return [
        _parameter(
            field.name, hints[field.name], inspect.Parameter.empty if field.default is MISSING else field.default, helps
        )
        for field in fields(group)
    ]


def _described(function_or_group: Any) -> tuple[str, dict[str, str]]:
    """Returns a docstring up to its section of arguments or attributes, and the entries of that section."""
    docstring = inspect.getdoc(function_or_group)
    if sys.flags.optimize > 1:  # Python has removed the docstrings
        with suppress(OSError, TypeError):  # there is no source, so there is no help
            (definition,) = ast.parse(dedent(inspect.getsource(function_or_group))).body
            docstring = ast.get_docstring(definition)  # type: ignore[arg-type]  # a function or a class
    return text_and_entries(docstring or "")


def _parameter(name: str, annotation: Any, default: Any, helps: Mapping[str, str]) -> inspect.Parameter:
    """Returns a parameter as typer reads it, with its help text and its name on the command line."""
    kind, *declared = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    option = copy(declared[0]) if declared else typer.Option()
    if kind is bool and option.default is ...:  # typer takes a declared name as the default at first
        option.param_decls = (f"--{name.replace('_', '-')}",)
    option.help = helps.get(name, option.help)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def _start(function: Callable[..., Any]) -> None:
    """Carries out the imports of a command that is about to run; from then on Ctrl-C raises KeyboardInterrupt."""
    if (name := function.__module__) not in _COMPLETE:
        _import_deferred(sys.modules[name])
        _COMPLETE.add(name)
    if not gc.isenabled():  # as `main` left it
        gc.freeze()
        gc.enable()
    interrupt.start_command()


_COMPLETE: set[str] = set()
"""The modules of commands whose imports were carried out."""


def _import_deferred(module: ModuleType) -> None:
    """Carries out the imports that stand under `if TYPE_CHECKING:` in a module's source."""
    blocks = [
        block
        for block in ast.parse(inspect.getsource(module)).body
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
    ]
    for node in (node for block in blocks for node in block.body):
        if isinstance(node, ast.ImportFrom) and node.module:
            package = import_module(node.module)
            for each in node.names:
                if not hasattr(package, each.name):
                    import_module(f"{node.module}.{each.name}")  # a module of the package
                setattr(module, each.asname or each.name, getattr(package, each.name))
        elif isinstance(node, ast.Import):
            for each in node.names:
                setattr(module, each.asname or each.name, import_module(each.name))


def print_report(report: Report, output: Output) -> None:
    """Prints a report in the format that the user has chosen.

    Raises:
        typer.Exit: the exit code is not 0.
    """
    if output is Output.JSON:
        print_json(report.value)
    else:
        text = report.text
        for part in text if isinstance(text, Iterable) and not isinstance(text, str) else (text,):
            say(part) if isinstance(part, str) else print_table(part)
    if report.exit_code:
        raise typer.Exit(report.exit_code)
