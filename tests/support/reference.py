"""Generates the files that describe settings and commands, from the code: `make reference`.

These are the example settings of both tiers, four pages of the reference, the tables of the two pages about steps,
and llms.txt, the index of all pages in the form of https://llmstxt.org.
"""

import argparse
import asyncio
import html
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from inspect import getdoc
from inspect import signature as signature_of
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import msgspec
from msgspec import inspect
from support.example_settings import (
    EDGE_FILE,
    GATEWAY_FILE,
    TABLES,
    documentation,
    edge_example,
    gateway_example,
    value_text,
)
from support.gateway import GatedExecutor, gateway_of
from typer.core import TyperGroup
from typer.main import get_command

from firstline import Client
from firstline.cli.app import PANELS, app
from firstline.client.calls import FileOptions, RequestOptions
from firstline.workbench.step_usage import USAGE
from firstline_core.command_line import Parser
from firstline_core.processing.steps import BoxDecoder, ClassMap, Suppress
from firstline_core.storage.settings import described
from firstline_edge.api.app import description
from firstline_edge.cli import parser as edge_commands
from firstline_edge.settings import settings as edge
from firstline_gateway import __main__ as gateway_commands
from firstline_gateway.models.repository import Repository
from firstline_gateway.settings import settings as gateway

_DOCS = Path(__file__).parents[2] / "docs"
CONFIGURATION_FILE = _DOCS / "reference" / "configuration.md"
COMMANDS_FILE = _DOCS / "reference" / "cli.md"
REST_FILE = _DOCS / "reference" / "rest.md"
PYTHON_FILE = _DOCS / "reference" / "python.md"
STEPS_FILE = _DOCS / "reference" / "steps.md"
DETECTOR_STEPS_FILE = _DOCS / "reference" / "steps-detectors.md"
INDEX_FILE = _DOCS / "llms.txt"
_STEP_ROWS = re.compile(r"(?<=\| step \| does \|\n\|---\|---\|\n)(?:\|.*\n)+")
_CODE_WITH_BAR = re.compile(r"`([^`]*\|[^`]*)`")
_SHARED = {"--gateway", "--key-file", "--ca", "-o", "-h", "--config", "--set", "--version"}
"""Options that the page explains once for each program."""

_CONFIGURATION_HEAD = """\
# Configuration

Both tiers read one TOML file, which `--config FILE` names. Every key has a default, so a file contains only what
differs. `edge-agent init` and `firstline-gateway init` write a first one. Keys marked **basic** are those that most
installations set. The others are advanced: their defaults suit most.

A flag wins over the environment, the environment over the file, and the file over the default. The variable of a
key is `FIRSTLINE_EDGE_SECTION__KEY` or `FIRSTLINE_GATEWAY_SECTION__KEY`, with lists and tables in JSON. Relative
paths start at the file's folder. The files `edge_agent/edge-agent.toml` and `cloud_gateway/gateway.toml` contain
every key with its default.
"""
_COMMANDS_HEAD = """\
# Command lines

Three programs have commands: `firstline` on the workstation, `edge-agent` on a device and `firstline-gateway` on
the gateway's machine. Verbs at the top are workflows, or act on the tier itself. All other commands are a noun and
a verb. Each command explains itself with `--help`. A mistyped command or option is answered with the similar one.

Data goes to stdout, progress and warnings go to stderr. `-o json` prints JSON. Exit codes: 0 done, 1 failed, 2
wrong usage or configuration, 130 interrupted; a command that has others names them.
"""
_FIRSTLINE_HEAD = """
Commands that talk to a gateway share three options. Each is read from the flag, otherwise from the environment,
otherwise from the context in use.

| option | environment | context | meaning |
|---|---|---|---|
| `--gateway URL` | `FIRSTLINE_GATEWAY` | `gateway` | URL of the gateway |
| `--key-file FILE` | `FIRSTLINE_KEY_FILE`, or the key in `FIRSTLINE_TOKEN` | `key_file` | file with the API key |
| `--ca FILE` | `FIRSTLINE_CA` | `ca` | CA certificate used to verify the gateway (PEM) |

`firstline context create NAME --gateway URL --key-file FILE` stores a context and uses it, and `firstline context
use NAME` changes to another one. `FIRSTLINE_CONTEXT` selects one for a single command. Contexts are in
`firstline/contexts.json` of the user's configuration folder (`XDG_CONFIG_HOME`, or `~/.config`), with mode 0600 and
without secrets. The key and the CA of a context go to its own gateway only. Those of the environment go only to the
gateway that `FIRSTLINE_GATEWAY` names, or `--gateway` if that variable is not set. The `--url` of `firstline infer`
counts as `--gateway`, also for a device's agent.

`firstline --install-completion` installs completion for the current shell.
"""
_EDGE_HEAD = """
All commands but `init` take `--config FILE` for the settings, `--set SECTION.KEY=VALUE` for single ones, and `-o
json`.
"""
_GATEWAY_HEAD = """
All commands take `--config FILE` for the settings, and `-o json`.
"""


_REST_HEAD = """\
# REST

All addresses of both tiers, from their OpenAPI descriptions: `GET /openapi.json` of either has parameters and
schemas. [Protocols](protocol.md) explains inference, [who may do what](security-matrix.md) the permissions, and
[errors](errors.md) the codes. Query parameters are in brackets.
"""
_PYTHON_HEAD = """\
# Python API

`Client` and its methods. `AsyncClient` has the same ones: await them, and iterate with `async for`.
[The Python client](client.md) has examples.
"""


def rest_page() -> str:
    """Returns the page about all addresses of both tiers."""
    with TemporaryDirectory() as folder:
        described = {"gateway": asyncio.run(_gateway_description(Path(folder))), "agent": description()}
    lines: dict[str, dict[str, tuple[str, list[str]]]] = {}
    for tier, document in described.items():
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                queries = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
                address = f"{method.upper()} {path}" + (f" [{', '.join(queries)}]" if queries else "")
                of_tag = lines.setdefault(operation["tags"][0], {})
                of_tag.setdefault(address, (operation["summary"], []))[1].append(tier)
    text = [_REST_HEAD]
    for tag, addresses in sorted(lines.items()):
        text += [f"## {tag.capitalize()}", "", "| address | served by | |", "|---|---|---|"]
        text += [
            table_row((f"`{address}`", ", ".join(tiers), summary)) for address, (summary, tiers) in addresses.items()
        ]
        text.append("")
    return "\n".join(text)


async def _gateway_description(folder: Path) -> dict[str, Any]:
    settings = gateway.Settings(store=gateway.StoreSection(url=f"sqlite:///{folder / 'gateway.db'}"))
    idle_gateway = gateway_of(settings, GatedExecutor(), Repository({}))
    try:
        return idle_gateway.control_plane().openapi()
    finally:
        await idle_gateway.close()


def python_page() -> str:
    """Returns the page about the methods of the Python client."""
    text = [_PYTHON_HEAD]
    methods = {name: method for name, method in vars(Client).items() if not name.startswith("_")}
    for name, method in {"Client": Client, **methods}.items():
        signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(signature_of(method)))
        signature = re.sub(r"^\(self(, )?", "(", signature)
        text += [
            f"## `{name}`",
            "",
            "```python",
            name + signature,
            "```",
            "",
            "```text",
            str(getdoc(method)),
            "```",
            "",
        ]
    for options in (RequestOptions, FileOptions):
        text += [f"## `{options.__name__}`", "", "```text", str(getdoc(options)), "```", ""]
    return "\n".join(text)


def steps_page(file: Path, *, detectors: bool) -> str:
    """Returns a page about steps, written by hand, with the table of the steps of detectors, or of all others."""
    of_detectors = {kind.__struct_config__.tag for kind in (*get_args(BoxDecoder), ClassMap, Suppress)}
    rows = [
        table_row((f"`{spelling}`", meaning)) + "\n"
        for op, (spelling, meaning) in USAGE.items()
        if (op in of_detectors) == detectors
    ]
    before, after = _STEP_ROWS.split(file.read_text())
    return before + "".join(rows) + after


def configuration_page() -> str:
    """Returns the page about all keys of both tiers."""
    lines = [_CONFIGURATION_HEAD]
    for title, module, root in (("Edge agent", edge, edge.EdgeSettings), ("Gateway", gateway, gateway.Settings)):
        texts = documentation(module)
        lines += [f"## {title}", ""]
        for field in msgspec.structs.fields(root):
            name, section = field.name, field.type
            if not (isinstance(section, type) and issubclass(section, msgspec.Struct)):
                lines += [texts[root.__name__, name], ""]
                section = edge.LinkSection if name == "links" else TABLES[name][1]
                heading = f"`[[{name}]]`" if name == "links" else f"`[{name}.NAME]`"
            else:
                heading = f"`[{name}]`"
            lines += [f"### {heading}", ""]
            if (text := texts.get((section.__name__, ""))) is not None:
                lines += [text, ""]
            lines += ["| key | type | default | level | meaning |", "|---|---|---|---|---|"]
            for key in msgspec.structs.fields(section):
                default = "" if key.required else f"`{value_text(key.name, _default(key))}`"
                level = "**basic**" if f"{name}.{key.name}" in module.BASIC else "advanced"
                cells = (
                    f"`{key.name}`",
                    re.sub(" that matches `.*`$", "", described([inspect.type_info(key.type)])),
                    default,
                    level,
                    texts[section.__name__, key.name],
                )
                lines.append(table_row(cells))
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _default(field: Any) -> Any:
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()


def commands_page() -> str:
    """Returns the page about all commands."""
    lines = [_COMMANDS_HEAD, "## `firstline`", _FIRSTLINE_HEAD]
    root: Any = get_command(app)
    for panel, names in PANELS.items():
        lines += [f"### {panel}", ""]
        for name in names:
            for path, command in _leaves(root.get_command(None, name), name):
                lines += _command(f"firstline {path}", _help(command), _example(command.epilog), _click_rows(command))
    for program, root, head in (
        ("edge-agent", edge_commands.parser(), _EDGE_HEAD),
        ("firstline-gateway", gateway_commands.parser(), _GATEWAY_HEAD),
    ):
        lines += [f"## `{program}`", head]
        for command in _parsers(root):
            lines += _command(command.prog, command.description or "", command.example, _argparse_rows(command))
    return "\n".join(lines).rstrip() + "\n"


def _leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(command, TyperGroup):
        for name, each in command.commands.items():
            yield from _leaves(each, f"{path} {name}")
    else:
        yield path, command


def _parsers(parser: Parser) -> Iterator[Parser]:
    """Yields the parsers of commands; not those of nouns."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for each in groups[0].choices.values() if groups else ():
        yield from _parsers(each)
    if not groups:
        yield parser


def _command(title: str, summary: str, example: str, rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield from (f"#### `{title}`", "", summary, "", "```", example, "```", "")
    if rows:
        yield from (
            "| argument or option | meaning |",
            "|---|---|",
            *(table_row((f"`{name}`", text)) for name, text in rows),
            "",
        )


def _help(command: Any) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))


def _example(epilog: str) -> str:
    return epilog.partition("Example:\n  ")[2].partition("\n")[0]


def _click_rows(command: Any) -> list[tuple[str, str]]:
    context = command.make_context("", [], resilient_parsing=True)
    records = [each.get_help_record(context) for each in command.params if not _SHARED & set(each.opts)]
    return [(name.strip(), " ".join(text.split())) for name, text in filter(None, records)]


def _argparse_rows(parser: Parser) -> list[tuple[str, str]]:
    rows = []
    for action in parser._actions:
        if _SHARED & set(action.option_strings):
            continue
        choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""
        value = "" if action.nargs == 0 else str(action.metavar or choices or action.dest.upper())
        rows.append((f"{', '.join(action.option_strings)} {value}".strip(), action.help or ""))
    return rows


def table_row(cells: Sequence[str]) -> str:
    """Returns the row of a table."""
    return f"| {' | '.join(_CODE_WITH_BAR.sub(_escaped, cell).replace('|', chr(92) + '|') for cell in cells)} |"


def _escaped(code: re.Match[str]) -> str:
    """Returns code with bars as HTML: in a table's cell, the site would show the backslash of an escaped one."""
    return f"<code>{html.escape(code[1], quote=False).replace('|', '&#124;')}</code>"


def pages_index() -> str:
    """Returns a list of all pages of the site, by section."""
    site = tomllib.loads((_DOCS.parent / "zensical.toml").read_text())["project"]
    lines = [f"# {site['site_name']}", "", f"> {site['site_description']}", "", *_index(site["nav"], 2)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def _index(entries: Iterable[Any], level: int) -> Iterator[str]:
    """Yields the lines of a section's pages, and of the sections in it."""
    for entry in entries:
        if isinstance(entry, str):
            title = (_DOCS / entry).read_text().partition("\n")[0].removeprefix("# ")
            yield f"- [{title}]({entry})"
            continue
        [(section, pages)] = entry.items()
        yield from ("", f"{'#' * level} {section}", "", *_index(pages, level + 1), "")


FILES: Mapping[Path, Any] = {
    EDGE_FILE: edge_example,
    GATEWAY_FILE: gateway_example,
    CONFIGURATION_FILE: configuration_page,
    COMMANDS_FILE: commands_page,
    REST_FILE: rest_page,
    PYTHON_FILE: python_page,
    STEPS_FILE: partial(steps_page, STEPS_FILE, detectors=False),
    DETECTOR_STEPS_FILE: partial(steps_page, DETECTOR_STEPS_FILE, detectors=True),
    INDEX_FILE: pages_index,
}

if __name__ == "__main__":
    for file, content in FILES.items():
        file.write_text(content())
