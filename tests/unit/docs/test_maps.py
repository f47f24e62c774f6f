"""The maps in packages' docstrings: every room is on them, once, and none that is gone."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

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
