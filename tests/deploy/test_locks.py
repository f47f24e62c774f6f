"""Every lock is complete, hashed, names no index, and still answers pyproject.toml."""

import json
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CHECKOUT = Path(__file__).parents[2]
LOCKS = sorted((CHECKOUT / "requirements").glob("*.lock"))
PROJECT: dict[str, Any] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
LOCKED_EXTRA_AND_GROUPS: dict[str, tuple[str | None, list[str]]] = {
    "build": (None, ["build"]),
    "clients": (None, ["clients"]),
    "console": ("console", []),
    "demo": ("workbench", ["build"]),
    "dev": ("workbench", ["dev"]),
    "edge": ("edge", []),
    "gateway": ("gateway", []),
    "perf-analyzer": (None, ["perf-analyzer"]),
    "ray": ("ray,workbench", ["test", "build"]),  # the fixtures of its tests import both tiers
    "train": ("train", ["test", "build"]),
    "tflite": ("tflite", ["test", "build"]),
}


@cache
def locked(lock: Path) -> dict[str, list[tuple[str, str]]]:
    """Package to (version, marker) of each of its pins."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, version, marker in re.findall(r"^([a-z0-9-]+)==(\S+)(?: ; (.*?))? \\$", lock.read_text(), re.MULTILINE):
        found.setdefault(name, []).append((version, marker))
    return found


def group_requirements(name: str) -> list[Requirement]:
    found: list[Requirement] = []
    for entry in PROJECT["dependency-groups"][name]:
        found += [Requirement(entry)] if isinstance(entry, str) else group_requirements(entry["include-group"])
    return found


def extra_requirements(name: str) -> list[Requirement]:
    found: list[Requirement] = []
    for entry in PROJECT["project"]["optional-dependencies"][name]:
        requirement = Requirement(entry)
        if requirement.name == "firstline":
            found += [r for extra in requirement.extras for r in extra_requirements(extra)]
        else:
            found.append(requirement)
    return found


def asked(lock: str) -> list[Requirement]:
    extra, groups = LOCKED_EXTRA_AND_GROUPS[lock]
    found = [requirement for group in groups for requirement in group_requirements(group)]
    if extra is not None:
        found += [Requirement(entry) for entry in PROJECT["project"]["dependencies"]]
        found += [requirement for name in extra.split(",") for requirement in extra_requirements(name)]
    return found


def test_every_lock_has_its_source() -> None:
    assert {lock.stem for lock in LOCKS} == {*LOCKED_EXTRA_AND_GROUPS, "installer"}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_holds_pins_and_hashes_and_nothing_else(lock: Path) -> None:
    # No comment, option, URL or path: nothing names where it was made or where the files come from.
    pin = r"[a-z0-9-]+==[^\s;]+(?: ; [^\\\n]+)? \\\n"
    hashes = r"(?:    --hash=sha256:[0-9a-f]{64} \\\n)*    --hash=sha256:[0-9a-f]{64}\n"
    assert re.fullmatch(f"(?:{pin}{hashes})+", lock.read_text())


def test_npm_lock_has_hashes_and_names_no_registry() -> None:
    folder = CHECKOUT / "requirements" / "typescript"
    (project, *packages) = json.loads((folder / "package-lock.json").read_text())["packages"].values()
    assert project["dependencies"] == json.loads((folder / "package.json").read_text())["dependencies"]
    assert packages
    assert all("integrity" in package and "resolved" not in package for package in packages)


@pytest.mark.parametrize("lock", LOCKED_EXTRA_AND_GROUPS)
def test_locks_satisfy_pyproject(lock: str) -> None:
    pins = locked(CHECKOUT / "requirements" / f"{lock}.lock")
    for requirement in asked(lock):
        versions = [version for version, _ in pins.get(canonicalize_name(requirement.name), [])]
        assert versions, f"{requirement.name} is not in {lock}.lock: run `make lock`"
        assert all(requirement.specifier.contains(version) for version in versions), (
            f"{lock}.lock has {requirement.name} {versions}, pyproject.toml asks {requirement}: run `make lock`"
        )


@pytest.mark.parametrize("lock", ["build", "console", "demo", "edge", "gateway", "installer"])
def test_deployed_versions_are_the_tested_ones(lock: str) -> None:
    tested = locked(CHECKOUT / "requirements" / "dev.lock")
    for name, pins in locked(CHECKOUT / "requirements" / f"{lock}.lock").items():
        assert {version for version, _ in pins} <= {version for version, _ in tested[name]}
