"""Generates `edge_agent/edge-agent.toml` from the documentation and defaults in `settings.py`.

PYTHONPATH=tests python -m support.example_settings > edge_agent/edge-agent.toml
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator

import msgspec

from firstline_edge.settings import settings
from firstline_edge.settings.settings import EdgeSettings, LinkSection

HEAD = """\
The edge agent's settings. Every key below shows its default, so this file changes nothing until you do.
Any key can come from the environment instead: FIRSTLINE_EDGE_SECTION__KEY, e.g. FIRSTLINE_EDGE_API__PORT=9000.
Relative paths start at this file's folder. Secrets are never written here, only the names of files that hold them."""
LINKS: dict[str, dict[str, object]] = {
    "http": {"kind": "http", "url": "https://gateway.example.com", "token_file": "gateway.token"},
    "mqtt": {"kind": "mqtt", "host": "broker.example.com"},
}
"""Example values of the links, of which there are none by default."""


def example() -> str:
    """Returns the content of the file."""
    documentation = _documentation()
    lines = [f"# {line}" for line in HEAD.split("\n")]
    for field in msgspec.structs.fields(EdgeSettings):
        lines.append("")
        if field.name == "links":
            lines += _comment(documentation["EdgeSettings", "links"])
            for values in LINKS.values():
                lines += ["#", *(f"# {line}" for line in _link(documentation, values))]
        else:
            lines += [f"[{field.name}]", *_section(documentation, field.type)]
    return "\n".join(lines) + "\n"


def _section(documentation: dict[tuple[str, str], str], section: type[msgspec.Struct]) -> Iterator[str]:
    if (text := documentation.get((section.__name__, ""))) is not None:
        yield from (*_comment(text), "")
    for field in msgspec.structs.fields(section):
        yield from _comment(documentation[section.__name__, field.name])
        yield f"{field.name} = {_value(field.name, field.default)}"


def _link(documentation: dict[tuple[str, str], str], values: dict[str, object]) -> Iterator[str]:
    """Yields the keys of one kind of link; a text that begins with `For KIND:` is about that kind alone."""
    yield "[[links]]"
    for field in msgspec.structs.fields(LinkSection):
        text = documentation["LinkSection", field.name]
        kind = re.match(r"For (\w+): ", text)
        if kind is None or kind[1] == values["kind"]:
            text = text.removeprefix(kind[0]) if kind is not None else text
            yield from _comment(text[:1].upper() + text[1:])
            yield f"{field.name} = {_value(field.name, values.get(field.name, field.default))}"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, 115)]


def _value(name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"[{', '.join(_value(name, each) for each in value)}]"
    return str(value) if name == "port" else f"{value:_}"


def _documentation() -> dict[tuple[str, str], str]:
    """Returns the docstrings of fields by class and name; that of a section has the name ""."""
    found = {}
    for node in ast.parse(inspect.getsource(settings)).body:
        if isinstance(node, ast.ClassDef):
            if node.name not in ("Section", "EdgeSettings") and (text := ast.get_docstring(node)):
                found[node.name, ""] = " ".join(text.split())
            for field, doc in zip(node.body, node.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr):
                    assert isinstance(field.target, ast.Name)
                    found[node.name, field.target.id] = " ".join(ast.literal_eval(doc.value).split())
    return found


if __name__ == "__main__":
    print(example(), end="")
