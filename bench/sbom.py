"""Writes what device, gateway, console and workbench install as CycloneDX software bills of materials, from the locks.

    python bench/sbom.py [FOLDER]        FOLDER/firstline-{edge,gateway,console,workbench}.cdx.json; default: dist

Each is valid by CycloneDX's schema, names every package with version, purl and the hashes that the lock allows, and is
the same for the same lock. Packages that other platforms need are in it, as they are in the lock.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CHECKOUT = Path(__file__).parents[1]
LOCKS = {"edge": "edge", "gateway": "gateway", "console": "console", "workbench": "demo"}


def write(extra: str, folder: Path) -> Path:
    """The bill of one extra."""
    path = folder / f"firstline-{extra}.cdx.json"
    lock = CHECKOUT / "requirements" / f"{LOCKS[extra]}.lock"
    command = [sys.executable, "-W", "ignore", "-m", "cyclonedx_py", "requirements", str(lock)]
    command += ["--pyproject", str(CHECKOUT / "pyproject.toml"), "--output-reproducible", "--validate"]
    subprocess.run([*command, "--output-file", str(path)], check=True)
    bill = json.loads(path.read_text())
    # A lock does not say who asked for what; pyproject.toml says what the extra itself asks for.
    direct = _direct(extra)
    root = bill["metadata"]["component"]["bom-ref"]
    wanted = sorted(component["bom-ref"] for component in bill["components"] if component["name"] in direct)
    (entry,) = (entry for entry in bill["dependencies"] if entry["ref"] == root)
    entry["dependsOn"] = wanted
    path.write_text(json.dumps(bill, indent=1) + "\n")
    return path


def _direct(extra: str) -> set[str]:
    project: dict[str, Any] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    found: set[str] = {canonicalize_name(Requirement(entry).name) for entry in project["dependencies"]}
    extras = [extra]
    while extras:
        for entry in project["optional-dependencies"][extras.pop()]:
            requirement = Requirement(entry)
            if requirement.name == project["name"]:
                extras += requirement.extras
            else:
                found.add(canonicalize_name(requirement.name))
    return found


def main() -> int:
    """0 once all are written."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else CHECKOUT / "dist")
    folder.mkdir(parents=True, exist_ok=True)
    for extra in LOCKS:
        path = write(extra, folder)
        print(f"{path}: {len(json.loads(path.read_text())['components'])} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
