"""The OpenAPI descriptions of both tiers are valid and complete, and clients that are generated from them work."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.gateway import gateway_settings

from bench.support.line import Line, line
from firstline_edge.api.openapi import description
from firstline_gateway.app import open_gateway


@pytest.fixture(params=["agent", "gateway"])
def document(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "agent":
        return description()
    gateway = open_gateway(gateway_settings(tmp_path))
    found = gateway.control_plane().openapi()
    gateway.store.close()
    gateway.store.database.close()
    return found


def test_each_reference_of_a_description_leads_to_a_schema(document: dict[str, Any]) -> None:
    schemas = document["components"].get("schemas", {})
    references = set(re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(document)))
    assert json.dumps(document).count('"$ref"') == 0 or references
    assert references <= schemas.keys()
    assert '"x-schemas"' not in json.dumps(document)


def test_each_operation_has_an_id_of_its_own(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(set(ids)) == len(ids) > 20


_CALL = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
from generated import AuthenticatedClient
client = AuthenticatedClient(base_url=sys.argv[2], token=sys.argv[3])
reply = importlib.import_module(f"generated.api.models.{sys.argv[4]}").sync_detailed(client=client)
print(json.dumps([reply.status_code, json.loads(reply.content)["name"]]))
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    with line(tmp_path_factory.mktemp("line")) as found:
        yield found


def succeeds(*command: str | Path, folder: Path) -> str:
    """The output of a program that finds other programs of its environment first in `folder`, and warns of nothing."""
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in (done.stdout + done.stderr).lower()
    return done.stdout


def fetched(running: Line, tier: str, folder: Path) -> Path:
    """The description that a running tier serves, in a file."""
    at, file = running.tiers[tier], folder / "openapi.json"
    file.write_bytes(httpx.get(f"{at.url}/openapi.json", headers=at.headers).content)
    return file


@pytest.mark.clients
@pytest.mark.parametrize(("tier", "call"), [("agent", "get_v2"), ("gateway", "server_metadata_v2_get")])
def test_a_generated_client_calls_the_tier(
    running: Line, clients_python: Path, tmp_path: Path, tier: str, call: str
) -> None:
    document, tools = fetched(running, tier, tmp_path), clients_python.parent
    succeeds(tools / "openapi-spec-validator", document, folder=tools)
    options = ("--meta", "none", "--fail-on-warning", "--output-path", tmp_path / "generated")
    succeeds(tools / "openapi-python-client", "generate", "--path", document, *options, folder=tools)
    at = running.tiers[tier]
    token = at.headers.get("Authorization", "").removeprefix("Bearer ") or "none"
    printed = succeeds(clients_python, "-c", _CALL, tmp_path, at.url, token, call, folder=tools)
    status, name = json.loads(printed)
    assert (status, name.partition("-")[0]) == (200, "firstline")


@pytest.mark.parametrize("tier", ["agent", "gateway"])
def test_typescript_types_are_generated(running: Line, tmp_path: Path, tier: str) -> None:
    generator = shutil.which("openapi-typescript")
    if generator is None:
        pytest.skip("openapi-typescript is not installed: `npm install --global openapi-typescript typescript`")
    document = fetched(running, tier, tmp_path)
    succeeds(generator, document, "--output", tmp_path / "types.ts", folder=tmp_path)
    assert "export interface paths" in (tmp_path / "types.ts").read_text()
