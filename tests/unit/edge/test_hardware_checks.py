"""What doctor says of the device itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from support.boards import board

from firstline_core.hardware.catalogue import Engine
from firstline_core.hardware.sensors.device import Sensors
from firstline_core.hardware.survey import described
from firstline_core.hardware.tree import Tree
from firstline_edge.cli.findings import State
from firstline_edge.cli.hardware_checks import engine_findings, sensor_finding


@pytest.mark.parametrize(
    ("name", "limit_c", "state", "words"),
    [
        ("raspberry-pi-4", 80.0, State.SLOW, "held back now: under_voltage, throttled"),
        ("raspberry-pi-5", 80.0, State.OK, "49 C"),
        ("raspberry-pi-5", 45.0, State.SLOW, "49 C, and the limit is 45 C"),
        ("virtual-machine", 80.0, State.OK, "no thermal zone"),
    ],
)
def test_a_device_that_is_held_back_is_slow(
    tmp_path: Path, name: str, limit_c: float, state: State, words: str
) -> None:
    with board(name, tmp_path):
        found = sensor_finding(Sensors(Tree(tmp_path)).read(1.0), limit_c)
    assert found.state is state
    assert words in found.detail
    assert bool(found.advice) is (state is State.SLOW)


def test_a_configured_provider_that_did_not_work_is_named(tmp_path: Path) -> None:
    engines = (
        Engine("onnx", "CUDAExecutionProvider", False, "It ended its process with SIGSEGV."),
        Engine("onnx", "CPUExecutionProvider", True, "It ran the trial model."),
    )
    with board("laptop", tmp_path):
        kept = replace(described(Tree(tmp_path), tmp_path), engines=engines, measured=True)
    (found,) = engine_findings(kept, ("CUDAExecutionProvider", "CPUExecutionProvider"))
    assert (found.subject, found.state) == ("CUDAExecutionProvider", State.SLOW)
    assert "SIGSEGV" in found.detail
    assert engine_findings(kept, ("CPUExecutionProvider",)) == []
    assert engine_findings(None, ("CUDAExecutionProvider",)) == []
