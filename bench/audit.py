"""Has anything that devices, gateways and workbenches install a known vulnerability? Asks pip-audit of each lock.

Exits 0 only where every package of every lock was looked up and none has an advisory. pip-audit alone passes over what
its service does not know, so that a proxy that answers 404 to everything would look like a clean bill of health.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

REQUIREMENTS = Path(__file__).parents[1] / "requirements"
LOCKS = sorted(file.stem for file in REQUIREMENTS.glob("*.lock"))


class Verdict(NamedTuple):
    """What is known of one lock.

    Attributes:
        known: packages that were looked up.
        unknown: packages that were not.
        advisories: "PACKAGE VERSION: ID (fixed in ...)".
    """

    known: int
    unknown: list[str]
    advisories: list[str]


def audited(lock: Path) -> Verdict | str:
    """Asks for one lock; a sentence where pip-audit could not."""
    asked = [sys.executable, "-m", "pip_audit", "--requirement", str(lock), "--require-hashes", "--disable-pip"]
    asked += ["--format", "json", "--progress-spinner", "off", "--timeout", "30"]
    done = subprocess.run(asked, check=False, capture_output=True, text=True)
    try:
        return verdict(json.loads(done.stdout))
    except ValueError:
        lines = done.stderr.strip().splitlines()
        return f"pip-audit could not audit {lock.name}: {lines[-1] if lines else f'exit code {done.returncode}'}"


def verdict(report: Mapping[str, Any]) -> Verdict:
    """Reads pip-audit's JSON."""
    found = Verdict(0, [], [])
    for package in report["dependencies"]:
        if "skip_reason" in package:
            found.unknown.append(package["name"])
            continue
        found = found._replace(known=found.known + 1)
        for advisory in package["vulns"]:
            fixed = ", ".join(advisory["fix_versions"]) or "no version yet"
            found.advisories.append(f"{package['name']} {package['version']}: {advisory['id']} (fixed in {fixed})")
    return found


def main() -> int:
    """0 where all is known and nothing is wrong."""
    clean = True
    for name in LOCKS:
        found = audited(REQUIREMENTS / f"{name}.lock")
        if isinstance(found, str):
            print(found)
            clean = False
            continue
        for advisory in found.advisories:
            print(f"{name}.lock: {advisory}")
        if found.unknown:
            print(
                f"{name}.lock: {found.known} of {found.known + len(found.unknown)} packages were looked up; the "
                f"advisory service that is reached from here does not know {', '.join(found.unknown[:3])}"
                f"{', ...' if len(found.unknown) > 3 else ''}. Run this where the package index itself is reached, "
                "not a mirror of it."
            )
        elif not found.advisories:
            print(f"{name}.lock: {found.known} packages, no advisories.")
        clean = clean and not found.unknown and not found.advisories
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
