"""The OpenAPI descriptions of both tiers are complete: each reference leads somewhere, and each operation has an id."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.gateway import gateway_settings

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
