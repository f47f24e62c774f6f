"""The maps of the code: packages' docstrings name every module once, and pages name places that exist."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from firstline_core.tasks import AnyTask

CHECKOUT = Path(__file__).parents[3]
ARCHITECTURE, CONTRIBUTING = (
    (CHECKOUT / name).read_text() for name in ("docs/concepts/architecture.md", "CONTRIBUTING.md")
)
ROOTS = ("firstline", "edge_agent/firstline_edge", "cloud_gateway/firstline_gateway", "shared/firstline_core")
MODULE = re.compile(r"^ {4}(\w+)/? {2,}\S", re.MULTILINE)


def maps() -> dict[str, tuple[Path, list[str]]]:
    """Folders of packages by name, with the modules that the package's docstring lists."""
    found = {}
    for root in (CHECKOUT / root for root in ROOTS):
        for file in sorted(root.rglob("__init__.py")):
            docstring = ast.get_docstring(ast.parse(file.read_text()), clean=False) or ""
            if modules := MODULE.findall(docstring.partition("\nTerms\n")[0]):
                found[".".join(file.parent.relative_to(root.parent).parts)] = file.parent, modules
    return found


def test_a_map_names_every_module_once() -> None:
    found = maps()
    assert len(found) >= 40
    for package, (folder, named) in found.items():
        modules = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
        assert sorted(named) == sorted(modules - {"__init__", "__main__"}), package


# `file.py`, `file.py: symbol` or `file.py`: `symbol`, `symbol`
PLACE = re.compile(r"`([a-z][a-z0-9_/]*\.py)(?:: ([\w.]+)`|`: ((?:(?:, )?`[\w.]+`)+)|`)")


@cache
def all_sources() -> dict[Path, str]:
    """The text of each module; read in the first test that needs it, not by each process that collects tests."""
    return {
        path: path.read_text()
        for folder in ("firstline", "edge_agent", "cloud_gateway", "shared", "tests")
        for path in sorted((CHECKOUT / folder).rglob("*.py"))
    }


def definitions(body: list[ast.stmt]) -> Iterator[str]:
    """The names that statements define, with the members of classes."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{member}" for member in definitions(node.body))
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        yield from (target.id for target in targets if isinstance(target, ast.Name))


@cache
def defined_in(path: Path) -> frozenset[str]:
    return frozenset(definitions(ast.parse(all_sources()[path]).body))


def defines(symbol: str, paths: list[Path]) -> bool:
    return any(symbol in defined_in(path) for path in paths)


def sources(file: str) -> list[Path]:
    """The sources whose path ends with this one."""
    return [path for path in all_sources() if str(path).endswith(f"/{file}")]


@pytest.mark.parametrize(("page", "least"), [(ARCHITECTURE, 120), (CONTRIBUTING, 30)], ids=["architecture", "recipes"])
def test_the_places_of_a_page_exist(page: str, least: int) -> None:
    places = PLACE.findall(page)
    missing = []
    for file, one, several in places:
        paths, symbols = sources(file), re.findall(r"[\w.]+", one or several)
        missing += [f"{file}: {symbol}" for symbol in symbols if not defines(symbol, paths)] if paths else [file]
    assert not missing and len(places) >= least


def test_the_members_of_classes_in_the_architecture_exist() -> None:
    members = re.findall(r"`([A-Z]\w*[a-z]\w*)(\.\w+)`", ARCHITECTURE)
    assert len(members) > 20
    classes: dict[str, list[Path]] = {}
    for path, source in all_sources().items():
        for name in re.findall(r"^class (\w+)", source, re.MULTILINE):
            classes.setdefault(name, []).append(path)
    for name, member in members:
        assert defines(name + member, classes.get(name, [])), name + member


def test_the_recipe_of_a_task_names_every_module_that_knows_one() -> None:
    recipe = CONTRIBUTING.partition("**A task of Firstline.**")[2].partition("\n## ")[0]
    named = {path for file, *_ in PLACE.findall(recipe) for path in sources(file)}
    tasks = "|".join(task.__name__ for task in get_args(AnyTask))
    knows = re.compile(rf"^from firstline_core\.tasks\.\w+ import (?:\([^)]*|.*)\b(?:{tasks})\b", re.MULTILINE)
    products = {
        path: source
        for path, source in all_sources().items()
        if path.relative_to(CHECKOUT).parts[0] != "tests" and path.parent.name != "tasks"
    }
    assert not {path for path, source in products.items() if knows.search(source)} - named
