"""Generates the commented configuration files from the documentation and defaults in the settings of both tiers.
`reference` writes them.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import msgspec

from firstline_edge.settings import settings as edge
from firstline_gateway.settings import settings as gateway

_CHECKOUT = Path(__file__).parents[2]
EDGE_FILE = _CHECKOUT / "edge_agent" / "edge-agent.toml"
GATEWAY_FILE = _CHECKOUT / "cloud_gateway" / "gateway.toml"
_HEAD = """\
The {process}'s settings. Every key below shows its default, so this file changes nothing until you do.
Any key can come from the environment instead: {prefix}_SECTION__KEY, e.g. {prefix}_API__PORT=9000.
Relative paths start at this file's folder. Secrets are never written here, only the names of files that hold them."""
_LINKS: dict[str, dict[str, object]] = {
    "http": {"kind": "http", "url": "https://gateway.example.com", "token_file": "gateway.token"},
    "mqtt": {"kind": "mqtt", "host": "broker.example.com"},
}
"""Example values of the links, of which there are none by default."""

TABLES: dict[str, tuple[str, type[msgspec.Struct]]] = {
    "executors": ("gpu", gateway.ExecutorSection),
    "webhooks": ("operations", gateway.WebhookSection),
}
"""Example names of the gateway's tables of tables, which are empty by default, and the type of one."""

_Documentation = Mapping[tuple[str, str], str]


def edge_example() -> str:
    """Returns the content of the device's file."""
    texts = documentation(edge)
    lines = _head("edge agent", "FIRSTLINE_EDGE")
    for field in msgspec.structs.fields(edge.EdgeSettings):
        lines.append("")
        if field.name == "links":
            lines += _comment(texts["EdgeSettings", "links"])
            for values in _LINKS.values():
                lines += ["#", *(f"# {line}" for line in _link(texts, values))]
        else:
            lines += [f"[{field.name}]", *_section(texts, field.type)]
    return "\n".join(lines) + "\n"


def gateway_example() -> str:
    """Returns the content of the gateway's file."""
    texts = documentation(gateway)
    lines = [*_head("gateway", "FIRSTLINE_GATEWAY"), "# `firstline-gateway check --config gateway.toml` tries it."]
    for field in msgspec.structs.fields(gateway.Settings):
        lines.append("")
        if field.name in TABLES:
            name, section = TABLES[field.name]
            lines += [*_comment(texts["Settings", field.name]), f"[{field.name}]", f"# [{field.name}.{name}]"]
            lines += [f"# {line}" for line in _section(texts, section)]
        else:
            lines += [f"[{field.name}]", *_section(texts, field.type)]
    return "\n".join(lines) + "\n"


def _head(process: str, prefix: str) -> list[str]:
    return [f"# {line}" for line in _HEAD.format(process=process, prefix=prefix).split("\n")]


def _section(texts: _Documentation, section: type[msgspec.Struct]) -> Iterator[str]:
    if (text := texts.get((section.__name__, ""))) is not None:
        yield from (*_comment(text), "")
    for field in msgspec.structs.fields(section):
        yield from _comment(texts[section.__name__, field.name])
        default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
        yield f"{field.name} = {value_text(field.name, default)}"


def _link(texts: _Documentation, values: dict[str, object]) -> Iterator[str]:
    """Yields the keys of one kind of link; a text that begins with `For KIND:` is about that kind alone."""
    yield "[[links]]"
    for field in msgspec.structs.fields(edge.LinkSection):
        text = texts["LinkSection", field.name]
        kind = re.match(r"For (\w+): ", text)
        if kind is None or kind[1] == values["kind"]:
            text = text.removeprefix(kind[0]) if kind is not None else text
            yield from _comment(text[:1].upper() + text[1:])
            yield f"{field.name} = {value_text(field.name, values.get(field.name, field.default))}"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, 115)]


def value_text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"[{', '.join(value_text(name, each) for each in value)}]"
    if isinstance(value, dict):
        return "{}"  # no table has entries by default
    return str(value) if name.endswith("port") else f"{value:_}"


def documentation(module: ModuleType) -> _Documentation:
    """Returns the docstrings of fields by class and name; that of a section has the name ""."""
    found = {}
    sections = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, msgspec.Struct)]
    for section, base in ((each, base) for each in sections for base in each.__mro__):
        if not issubclass(base, msgspec.Struct) or base is msgspec.Struct:
            continue
        (node,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(node, ast.ClassDef)
        if base is section and node.name not in ("EdgeSettings", "Settings") and (text := ast.get_docstring(node)):
            found[node.name, ""] = " ".join(text.split())
        for field, doc in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr):
                assert isinstance(field.target, ast.Name)
                found[section.__name__, field.target.id] = " ".join(ast.literal_eval(doc.value).split())
    return found
