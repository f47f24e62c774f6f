"""Doctor's checks of the device: sensors, heat limit, providers, and the fleet."""

import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.agent import edge_settings, serving_agent
from support.boards import board
from support.logs import captured_lines

from firstline_core.hardware.catalogue import Engine, ThermalZone
from firstline_core.hardware.kernel_files import Tree, read_in_time
from firstline_core.hardware.readings import Absent
from firstline_core.hardware.sensors import Sensors
from firstline_core.hardware.survey import describe_device, thermal_zones
from firstline_edge.cli.doctor_device import (
    budget_findings,
    engine_findings,
    fleet_findings,
    hardware_findings,
    limit_findings,
    sensor_finding,
)
from firstline_edge.cli.findings import Severity


@pytest.mark.parametrize(
    ("name", "limit_c", "severity", "words"),
    [
        ("raspberry-pi-4", 80.0, Severity.WARNING, "held back now: under_voltage, throttled"),
        ("raspberry-pi-5", 80.0, Severity.OK, "49 C"),
        ("raspberry-pi-5", 45.0, Severity.WARNING, "49 C, and the limit is 45 C"),
        ("virtual-machine", 80.0, Severity.OK, "no thermal zone"),
    ],
)
def test_a_throttled_device_is_slow(tmp_path: Path, name: str, limit_c: float, severity: Severity, words: str) -> None:
    with board(name, tmp_path):
        found = sensor_finding(Sensors(Tree(tmp_path)).read(1.0), limit_c)
    assert found.severity is severity
    assert words in found.detail
    assert bool(found.advice) is (severity is Severity.WARNING)


def test_a_failed_provider_is_named(tmp_path: Path) -> None:
    engines = (
        Engine("onnx", "CUDAExecutionProvider", False, "It ended its process with SIGSEGV."),
        Engine("onnx", "CPUExecutionProvider", True, "It ran the trial model."),
    )
    with board("laptop", tmp_path):
        catalogue = replace(describe_device(Tree(tmp_path), tmp_path), engines=engines, measured=True)
    (found,) = engine_findings(catalogue, ("CUDAExecutionProvider", "CPUExecutionProvider"))
    assert (found.subject, found.severity) == ("CUDAExecutionProvider", Severity.WARNING)
    assert "SIGSEGV" in found.detail
    assert engine_findings(catalogue, ("CPUExecutionProvider",)) == []
    assert engine_findings(None, ("CUDAExecutionProvider",)) == []


def test_an_unused_working_provider_is_named(tmp_path: Path) -> None:
    engines = (
        Engine("onnx", "TensorrtExecutionProvider", True, "It ran the trial model."),
        Engine("tflite", "xnnpack", True, "It ran the trial model."),
    )
    with board("jetson-orin-nano", tmp_path):
        catalogue = replace(describe_device(Tree(tmp_path), tmp_path), engines=engines, measured=True)
    (found,) = engine_findings(catalogue, ("CPUExecutionProvider",))
    assert (found.subject, found.severity) == ("TensorrtExecutionProvider", Severity.OK)
    assert "models.providers does not have it" in found.detail


@pytest.mark.parametrize(("limit_c", "expected"), [(80.0, False), (99.0, True), (104.0, True)])
def test_a_heat_limit_above_the_kernels_is_too_high(tmp_path: Path, limit_c: float, expected: bool) -> None:
    with board("jetson-orin-nano", tmp_path):
        tree = Tree(tmp_path)
        found = limit_findings(thermal_zones(tree), Sensors(tree).read(1.0), limit_c)
    assert bool(found) is expected
    if found:
        assert (found[0].severity, found[0].advice) == (Severity.HINT, "set costs.heat_limit_c = 95, or less")


def test_a_zone_above_its_own_limit_is_ignored(tmp_path: Path) -> None:
    with board("jetson-orin-nano", tmp_path):
        tree = Tree(tmp_path)
        zones = [ThermalZone("cpu-thermal", passive_c=40.0)]
        assert limit_findings(zones, Sensors(tree).read(1.0), 80.0) == []


@pytest.mark.parametrize(
    ("name", "words"), [("jetson-orin-nano", "9.2503 W"), ("raspberry-pi-5", "[costs] does not state")]
)
def test_power_is_reported_or_how_to_measure_it(tmp_path: Path, name: str, words: str) -> None:
    with board(name, tmp_path / "root"):
        found = list(hardware_findings(edge_settings(tmp_path / "state", hardware__root=str(tmp_path / "root"))))
    (power,) = (one for one in found if one.subject == "power")
    assert (power.severity, words in power.detail) == (Severity.OK, True)


def test_a_rail_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with board("jetson-orin-nano", tmp_path / "root"):
        settings = edge_settings(
            tmp_path / "state", hardware__root=str(tmp_path / "root"), hardware__power_rails=["VDD_IN", "VDD_INN"]
        )
        found = list(hardware_findings(settings))
    (rail,) = (one for one in found if one.subject == "hardware.power_rails")
    assert rail.severity is Severity.ERROR
    assert rail.detail.startswith("there is no rail 'VDD_INN' here; there are: ") and "VDD_IN" in rail.detail


def test_a_hanging_driver_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends, text = threading.Event(), Tree.text

    def hang(tree: Tree, path: str, limit_bytes: int = 4096) -> str | Absent:
        if path.endswith("thermal_zone0/temp"):
            tree.reading = path
            ends.wait()
        return text(tree, path, limit_bytes)

    with board("raspberry-pi-5", tmp_path / "root") as root, monkeypatch.context() as patched:
        patched.setattr(Tree, "text", hang)
        patched.setattr(read_in_time, "__defaults__", (0.2,))
        (found,) = hardware_findings(edge_settings(tmp_path / "state", hardware__root=str(root)))
        ends.set()
    assert found.severity is Severity.WARNING
    assert "/sys/class/thermal/thermal_zone0/temp was not read" in found.detail


@pytest.mark.parametrize(
    ("there", "blind"),
    [((), "heat, throttling and battery, and of memory and load"), (("proc",), "heat, throttling and battery see")],
)
def test_without_kernel_files_disabled_guards_are_listed(tmp_path: Path, there: tuple[str, ...], blind: str) -> None:
    for folder in there:
        (tmp_path / "hsot" / folder).mkdir(parents=True)
    (found,) = hardware_findings(edge_settings(tmp_path / "state", hardware__root=str(tmp_path / "hsot")))
    assert (found.subject, found.severity) == ("hardware.root", Severity.ERROR)
    assert blind in found.detail


async def test_an_agent_without_sensors_logs_it(tmp_path: Path) -> None:
    with captured_lines() as lines:
        async with serving_agent(edge_settings(tmp_path / "state", hardware__root=str(tmp_path / "hsot"))) as (
            agent,
            _,
        ):
            (problem,) = agent.operations.status()["problems"]
    assert "/hsot has no sys and no proc" in problem["message"]
    assert "sensors unavailable" in [line["event"] for line in lines]


MQTT = {"kind": "mqtt", "host": "broker"}
HTTP = {"kind": "http", "url": "https://gateway:8080"}


@pytest.mark.parametrize(
    ("changes", "unlimited"),
    [
        ({"budget__bytes_per_day": 1}, []),
        ({"budget__joules_per_day": 1, "budget__joules_per_hour": 1, "budget__money_per_day": 1}, ["joules", "money"]),
        ({"budget__joules_per_day": 1, "costs__joules_per_core_second": 1}, ["joules"]),
        ({"budget__joules_per_day": 1, "costs__joules_per_run": 1}, []),
        ({"budget__joules_per_day": 1, "links": [HTTP | {"joules_per_mib_sent": 1}]}, []),
        ({"budget__money_per_day": 1, "costs__money_per_request": 1}, []),
        ({"budget__money_per_day": 1, "costs__money_per_mib": 1, "links": [HTTP]}, ["money"]),
        ({"budget__money_per_day": 1, "costs__money_per_mib": 1, "links": [HTTP | {"metered": True}]}, []),
    ],
)
def test_a_budget_without_a_cost_limits_nothing(tmp_path: Path, changes: dict[str, Any], unlimited: list[str]) -> None:
    findings = list(budget_findings(edge_settings(tmp_path, **changes)))
    assert [finding.detail for finding in findings] == [
        f"no cost in {resource} is stated, so this budget limits nothing" for resource in unlimited
    ]
    assert all(finding.severity is Severity.WARNING and "costs." in finding.advice for finding in findings)


def states(tmp_path: Path, links: list[dict[str, Any]], **fleet: Any) -> list[tuple[str, Severity]]:
    settings = edge_settings(tmp_path, links=links, **{f"fleet__{key}": value for key, value in fleet.items()})
    return [(finding.subject, finding.severity) for finding in fleet_findings(settings)]


def test_a_device_without_a_fleet_has_no_findings(tmp_path: Path) -> None:
    assert states(tmp_path, [MQTT]) == []


def test_a_device_without_an_http_link_gets_advice(tmp_path: Path) -> None:
    root = tmp_path / "root.json"
    root.write_text("{}")
    settings = edge_settings(tmp_path, links=[MQTT], fleet__enabled=True, fleet__root_file=str(root))
    link, root_finding = fleet_findings(settings)
    assert (link.subject, link.severity) == ("fleet", Severity.WARNING)
    assert "fetched over HTTP" in link.detail and 'add [[links]] with kind = "http"' in link.advice
    assert root_finding.severity is Severity.OK
    assert states(tmp_path, [MQTT, HTTP], enabled=True, root_file=str(root)) == [("fleet.root_file", Severity.OK)]


def test_member_without_any_link_is_an_error(tmp_path: Path) -> None:
    root = tmp_path / "root.json"
    root.write_text("{}")
    found = [("fleet", Severity.ERROR), ("fleet.root_file", Severity.OK)]
    assert states(tmp_path, [], enabled=True, root_file=str(root)) == found


def test_the_root_metadata_is_checked(tmp_path: Path) -> None:
    assert states(tmp_path, [HTTP], enabled=True) == [("fleet.root_file", Severity.WARNING)]
    absent = str(tmp_path / "absent")
    assert states(tmp_path, [HTTP], enabled=True, root_file=absent) == [("fleet.root_file", Severity.ERROR)]
