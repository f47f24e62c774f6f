"""The maps of the code: packages' docstrings name every module once, and pages name places that exist."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from firstline_core.tasks import AnyTask

MAPPED = (
    "firstline_core.adaptation",
    "firstline_core.fleet",
    "firstline_core.hardware",
    "firstline_core.planning",
    "firstline_core.profile",
    "firstline_core.routing",
    "firstline_edge",
    "firstline_edge.adaptation",
    "firstline_edge.budgets",
    "firstline_edge.cache",
    "firstline_edge.cloud",
    "firstline_edge.fleet.configuration",
    "firstline_edge.fleet",
    "firstline_edge.hardware",
    "firstline_edge.models",
    "firstline_edge.profiling",
    "firstline_edge.cascade",
    "firstline_edge.requests",
    "firstline_edge.settings",
    "firstline_edge.telemetry",
    "firstline_edge.fleet.updates",
    "firstline_gateway",
    "firstline_gateway.api.fleet",
    "firstline_gateway.serving",
    "firstline_gateway.serving.scheduling",
    "firstline_gateway.fleet",
    "firstline_gateway.models",
    "firstline_gateway.profiles",
    "firstline_gateway.registry",
    "firstline_gateway.rollouts",
    "firstline_gateway.rollouts.judgement",
    "firstline_gateway.settings",
    "firstline_gateway.telemetry",
    "firstline.console",
    "firstline.release",
    "firstline.workbench",
    "firstline.workbench.compress",
    "firstline.workbench.splitting",
)


@pytest.mark.parametrize("package", MAPPED)
def test_a_map_names_every_room_once(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__doc__ is not None and module.__file__ is not None
    named = re.findall(r"^ {4}(\w+)/? {2,}\S", module.__doc__, re.MULTILINE)
    folder = Path(module.__file__).parent
    rooms = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert sorted(named) == sorted(rooms - {"__init__", "__main__"})


CHECKOUT = Path(__file__).parents[3]
ARCHITECTURE, CONTRIBUTING = (
    (CHECKOUT / name).read_text() for name in ("docs/concepts/architecture.md", "CONTRIBUTING.md")
)
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
    return [path for path in all_sources() if f"/{path.relative_to(CHECKOUT)}".endswith(f"/{file}")]


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
