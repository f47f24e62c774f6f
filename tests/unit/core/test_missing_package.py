"""Each program names the extra that installs a missing package."""

import subprocess
import sys
from importlib.metadata import version

import pytest

from firstline_core.errors import missing_package


def run(module: str, argument: str, absent: str) -> subprocess.CompletedProcess[str]:
    code = (
        f"import sys; sys.modules[{absent!r}] = None; sys.argv = ['x', {argument!r}]; "
        f"from {module}.__main__ import main; sys.exit(main())"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("module", "arguments", "absent", "sentence"),
    [
        ("firstline", "--help", "typer", "firstline needs the package 'typer', which is not installed: pip install {}"),
        ("firstline", "console", "typer", "firstline console needs the package 'typer', which is not installed: "),
        (
            "firstline_edge",
            "run",
            "structlog",
            "edge-agent: edge-agent run needs the package 'structlog', which is not ",
        ),
        ("firstline_edge", "status", "numpy", "edge-agent: edge-agent status needs the package 'numpy', which is not "),
        ("firstline_gateway", "run", "sqlalchemy", "firstline-gateway needs the package 'sqlalchemy', which is not "),
    ],
)
def test_missing_package_is_reported_with_its_extra(module: str, arguments: str, absent: str, sentence: str) -> None:
    extra = {"firstline_edge": "edge", "firstline_gateway": "gateway"}.get(module, "workbench")
    if arguments == "console":
        extra = "console"
    done = run(module, arguments, absent)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    [line] = done.stderr.splitlines()
    assert sentence.format(f"'firstline[{extra}]'") in line
    assert line.endswith(f"pip install 'firstline[{extra}]'.")


def test_the_client_alone_prints_its_version() -> None:
    done = run("firstline", "--version", "typer")
    assert (done.returncode, done.stdout) == (0, f"firstline {version('firstline')}\n"), done.stderr


def test_missing_module_of_the_project_is_a_fault() -> None:
    with pytest.raises(ModuleNotFoundError):
        missing_package(ModuleNotFoundError(name="firstline_core.gone"), "firstline", "workbench")
