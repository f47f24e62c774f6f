"""Every listed measurement and test target runs its recipe, also if a folder has its name."""

import re
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]


@pytest.mark.parametrize("folder", ["bench", "tests"])
def test_every_listed_target_runs_its_recipe(folder: str) -> None:
    targets = re.findall(r"^([a-z-]+):.*##", (CHECKOUT / folder / "Makefile").read_text(), re.MULTILINE)
    assert len(targets) > 5
    for target in targets:
        planned = subprocess.run(
            ["make", "--dry-run", "-C", folder, target], cwd=CHECKOUT, capture_output=True, text=True, check=True
        ).stdout
        assert f"-f {folder}/Makefile {target}" in planned and "is up to date" not in planned
