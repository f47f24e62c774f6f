"""A reader who follows pages of the documentation: writes the files, types the commands, compares the outputs."""

import shutil
from pathlib import Path

import pytest
from support.broker import free_port
from support.readme import Reader, environ

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def reader(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    shutil.copytree(CHECKOUT / "models" / "digits", tmp_path / "models" / "digits")
    shutil.copytree(CHECKOUT / "docs" / "examples", tmp_path / "docs" / "examples")
    edge, gateway = str(free_port()), str(free_port())
    return Reader(
        folder=tmp_path,
        environ=environ(
            tmp_path_factory.mktemp("home"), FIRSTLINE_EDGE_API__PORT=edge, FIRSTLINE_GATEWAY_API__PORT=gateway
        ),
        ports={"8070": edge, "8080": gateway},
        skipped={"node ": "Node.js is not installed"} if shutil.which("node") is None else {},
    )
