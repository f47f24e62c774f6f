"""The built wheel, installed where other people's `shared`, `models` and `tests` lie, is complete and works."""

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.installed import make_environment, outside, run

CHECKOUT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
PACKAGES = ("firstline", "firstline_core", "firstline_edge", "firstline_gateway")
DIGITS = CHECKOUT / "models" / "digits"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, cwd=CHECKOUT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(wheel, tmp_path_factory.mktemp("environment"))


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A user's own folder, with packages that are named like folders of this checkout."""
    for name in ("shared", "models", "tests", "edge_agent", "cloud_gateway"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('this is the user\\'s own package')\n")
    return tmp_path


def test_wheel_holds_only_the_packages(contents: set[str]) -> None:
    tops = {name.split("/")[0] for name in contents}
    assert tops == {*PACKAGES, f"firstline-{PROJECT['version']}.dist-info"}


def test_it_is_typed_and_licensed(contents: set[str]) -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= contents
    assert f"firstline-{PROJECT['version']}.dist-info/licenses/LICENSE" in contents


def test_every_file_of_the_packages_is_in_it(contents: set[str]) -> None:
    folders = ("firstline", "edge_agent/firstline_edge", "cloud_gateway/firstline_gateway", "shared/firstline_core")
    command = ["git", "ls-files", *folders]
    listed = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout.splitlines()
    names = {re.sub(r"^(edge_agent|cloud_gateway|shared)/", "", name) for name in listed}
    assert names
    assert names <= contents


@pytest.mark.parametrize("part", ["bundle", "heldout"])
def test_the_demo_s_models_and_samples_travel_with_it(contents: set[str], part: str) -> None:
    shipped = {path.relative_to(DIGITS).as_posix() for path in (DIGITS / part).rglob("*") if path.is_file()}
    assert shipped
    assert {f"firstline/demo/digits/{name}" for name in shipped} <= contents


def test_its_packages_are_the_ones_imported(environment: Path, elsewhere: Path) -> None:
    code = f"import {', '.join(PACKAGES)}\n" + "".join(f"print({package}.__file__)\n" for package in PACKAGES)
    files = run(environment / "bin" / "python", "-c", code, cwd=elsewhere).split()
    assert len(files) == len(PACKAGES)
    assert all(Path(file).is_relative_to(environment) for file in files)


@pytest.mark.parametrize("command", PROJECT["scripts"])
@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_its_commands_answer(environment: Path, elsewhere: Path, command: str, flag: str) -> None:
    printed = run(environment / "bin" / command, flag, cwd=elsewhere)
    assert (PROJECT["version"] if flag == "--version" else command) in printed


def test_the_wheel_alone_gives_a_first_answer(environment: Path, elsewhere: Path) -> None:
    """With processes: only they show that scripts, models and samples of the wheel are found from any folder."""
    home = elsewhere / "home"
    home.mkdir()
    nothing = {"HOME": str(home), "PATH": ""}
    find = "from firstline.demo.site import digits_folder; print(digits_folder())"
    digits = Path(run(environment / "bin" / "python", "-c", find, cwd=elsewhere, **nothing).strip())
    assert digits.is_relative_to(environment)
    with zipfile.ZipFile(digits / "heldout" / "images.zip") as archive:
        image = archive.read("digit_0001.png")
    command = [environment / "bin" / "firstline", "run", digits / "bundle", "-o", "json"]
    with subprocess.Popen(command, cwd=elsewhere, env=outside() | nothing, stdout=subprocess.PIPE) as running:
        try:
            ready = json.loads(running.stdout.readline())
            answer = httpx.post(f"{ready['url']}/firstline/v1/models/digits/infer", content=image, trust_env=False)
            assert (answer.json()["label"], answer.json()["tier"]) == ("one", "edge")
        finally:
            running.terminate()
