"""Doctor on what a device needs to get anything from its fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.agent import edge_settings

from firstline_edge.cli.doctor_device import fleet_findings
from firstline_edge.cli.findings import State

MQTT = {"kind": "mqtt", "host": "broker"}
HTTP = {"kind": "http", "url": "http://gateway:8080"}


def found(tmp_path: Path, links: list[dict[str, Any]], **fleet: Any) -> list[tuple[str, State]]:
    settings = edge_settings(tmp_path, links=links, **{f"fleet__{key}": value for key, value in fleet.items()})
    return [(finding.subject, finding.state) for finding in fleet_findings(settings)]


def test_a_device_without_a_fleet_has_no_findings(tmp_path: Path) -> None:
    assert found(tmp_path, [MQTT]) == []


def test_a_device_without_an_http_link_gets_advice(tmp_path: Path) -> None:
    root = tmp_path / "root.json"
    root.write_text("{}")
    settings = edge_settings(tmp_path, links=[MQTT], fleet__enabled=True, fleet__root_file=str(root))
    told, known = fleet_findings(settings)
    assert (told.subject, told.state) == ("fleet", State.SLOW)
    assert "fetched over HTTP" in told.detail and 'add [[links]] with kind = "http"' in told.advice
    assert known.state is State.OK
    assert found(tmp_path, [MQTT, HTTP], enabled=True, root_file=str(root)) == [("fleet.root_file", State.OK)]


def test_the_root_metadata_is_checked(tmp_path: Path) -> None:
    assert found(tmp_path, [HTTP], enabled=True) == [("fleet.root_file", State.SLOW)]
    absent = str(tmp_path / "absent")
    assert found(tmp_path, [HTTP], enabled=True, root_file=absent) == [("fleet.root_file", State.MISSING)]
