"""The energy of a query: counted, from the power of the whole device, or modelled by a stated cost."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from support.boards import board, say

from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.readings import Absent, Measured, Modelled, measured
from firstline_core.hardware.sensors import Sensors
from firstline_core.profile import meters
from firstline_core.profile.meters import EnergyMeter

PACKAGE = "sys/class/powercap/intel-rapl:0"


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found = [100.0]
    monkeypatch.setattr(meters.time, "monotonic", lambda: found[0])
    return found


def test_counted_energy_is_divided_by_the_queries(tmp_path: Path, now_s: list[float]) -> None:
    say(tmp_path, f"{PACKAGE}/name", "package-0")
    say(tmp_path, f"{PACKAGE}/max_energy_range_uj", "262143328850")
    say(tmp_path, f"{PACKAGE}/energy_uj", "1000000")
    meter = EnergyMeter(Tree(tmp_path), 5.0)
    now_s[0] += 2
    say(tmp_path, f"{PACKAGE}/energy_uj", "3000000")
    found = meter.per_query(100, processor_s=1.0)
    assert isinstance(found, Measured) and found.value == pytest.approx(20.0)


def test_power_counts_for_the_time_of_the_queries(tmp_path: Path, now_s: list[float]) -> None:
    with ExitStack() as opened:
        tree = Tree(opened.enter_context(board("jetson-orin-nano", tmp_path)))
        watts = measured(Sensors(tree).read(0.0).device_power_w)
        assert watts is not None
        meter = EnergyMeter(tree, 0.0)
        for _ in range(3):
            now_s[0] += 0.5
            meter.read_if_due()
        found = meter.per_query(10, processor_s=1.0)
    assert isinstance(found, Measured) and found.value == pytest.approx(watts * 1.5 * 100)


def test_stated_rails_outweigh_counters(tmp_path: Path, now_s: list[float]) -> None:
    say(tmp_path, f"{PACKAGE}/name", "package-0")
    say(tmp_path, f"{PACKAGE}/max_energy_range_uj", "262143328850")
    say(tmp_path, f"{PACKAGE}/energy_uj", "1000000")
    say(tmp_path, "sys/class/hwmon/hwmon0/name", "board")
    say(tmp_path, "sys/class/hwmon/hwmon0/power1_input", "6000000")
    meter = EnergyMeter(Tree(tmp_path), 5.0, ("board power1",))
    now_s[0] += 2
    say(tmp_path, f"{PACKAGE}/energy_uj", "3000000")
    found = meter.per_query(100, processor_s=1.0)
    assert isinstance(found, Measured) and found.value == pytest.approx(120.0)


def test_without_sensors_a_stated_cost_models_energy(tmp_path: Path, now_s: list[float]) -> None:
    found = EnergyMeter(Tree(tmp_path), 2.0).per_query(10, processor_s=0.5)
    assert isinstance(found, Modelled) and found.value == pytest.approx(100.0)
    assert isinstance(EnergyMeter(Tree(tmp_path), 0.0).per_query(10, processor_s=0.5), Absent)
