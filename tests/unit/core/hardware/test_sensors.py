"""The sensors of real boards, recorded as text in `tests/data/boards`."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.boards import BOARDS, board, say

from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.readings import (
    NOTHING_READ,
    Absent,
    Measured,
    Modelled,
    Reading,
    Readings,
    Snapshot,
    describe,
    known,
    limited,
    measured,
)
from firstline_core.hardware.sensors import Sensors
from firstline_core.routing.account import Tariff


class Bench:
    """One board that is read every 2 s."""

    def __init__(self, root: Path, **options: object) -> None:
        self.root = root
        self.now_s = 0.0
        self.sensors = Sensors(Tree(root), **options)

    def read(self) -> Snapshot:
        self.now_s += 2.0
        return self.sensors.read(self.now_s)


On = Callable[..., Bench]


@pytest.fixture
def on(tmp_path: Path) -> Iterator[On]:
    """A board by its name, whose files lie in `tmp_path`."""
    with ExitStack() as stack:
        yield lambda name, **options: Bench(stack.enter_context(board(name, tmp_path)), **options)


def values(readings: Readings) -> dict[str, float | None]:
    return {name: measured(reading) for name, reading in readings.items()}


def reason(reading: Reading) -> str:
    assert isinstance(reading, Absent)
    return reading.reason


def test_a_hot_raspberry_pi_4_with_a_weak_supply(on: On) -> None:
    found = on("raspberry-pi-4").read()
    assert values(found.temperature_c) == {"cpu-thermal": 82.277}
    assert values(found.throttling) == {
        "under_voltage": 1, "frequency_capped": 0, "throttled": 1, "soft_temperature_limit": 0,
    }  # fmt: skip
    assert measured(found.throttled) == 1
    assert values(found.frequency_hz) == {"policy0": 1.0e9}
    assert (found.power_w, found.energy_j) == ({}, {})
    assert reason(found.battery_share) == "/sys/class/power_supply: this device has no battery."
    assert "joules_per_core_second" in reason(found.device_power_w)


def test_a_healthy_raspberry_pi_5(on: On) -> None:
    found = on("raspberry-pi-5").read()
    assert measured(found.hottest_c) == 49.3  # neither the disk's nor the I/O chip's
    assert set(values(found.throttling).values()) == {0.0}
    assert measured(found.throttled) == 0
    assert "PSI" in reason(found.memory_stalled_share)


def test_a_supply_alarm_counts_without_firmware_bits(tmp_path: Path, on: On) -> None:
    bench = on("raspberry-pi-4")
    (tmp_path / "sys/devices/platform/soc/soc:firmware/get_throttled").unlink()
    assert values(bench.read().throttling) == {"under_voltage": 1}


@pytest.mark.parametrize("nonsense", ["", "0x", "throttled=0x0", "-1", "1" * 40])
def test_nonsensical_firmware_bits_are_absent(tmp_path: Path, on: On, nonsense: str) -> None:
    bench = on("raspberry-pi-5")
    say(tmp_path, "sys/devices/platform/soc/soc:firmware/get_throttled", nonsense)
    assert "hexadecimal" in reason(bench.read().throttling["throttled"])


def test_a_jetson_orin_has_rails_and_switched_off_channels(tmp_path: Path, on: On) -> None:
    bench = on("jetson-orin-nano")
    found = bench.read()
    assert values(found.power_w) == {
        "VDD_IN": pytest.approx(4.984 * 1.856),
        "VDD_CPU_GPU_CV": pytest.approx(4.976 * 0.624),
        "VDD_SOC": None,
    }
    assert "switched off" in reason(found.power_w["VDD_SOC"])
    assert found.device_power_w == found.power_w["VDD_IN"]
    assert "switched off" in reason(found.temperature_c["cv0-thermal"])
    assert list(found.temperature_c) == ["cpu-thermal", "gpu-thermal", "cv0-thermal", "tj-thermal", "soc2-thermal"]
    assert measured(found.hottest_c) == 73.906
    assert measured(found.memory_stalled_share) == 0.125
    # Counters say nothing until they are read again; the alert does at once.
    assert values(found.throttling) == {
        "oc1": None, "oc2": None, "oc3": None, "cpu-throttle-alert": 0, "gpu-throttle-alert": 1,
    }  # fmt: skip
    say(tmp_path, "sys/class/hwmon/hwmon3/oc3_event_cnt", "38")
    assert values(bench.read().throttling) == {
        "oc1": 0, "oc2": 0, "oc3": 1, "cpu-throttle-alert": 0, "gpu-throttle-alert": 1,
    }  # fmt: skip
    assert measured(bench.read().throttling["oc3"]) == 0


def test_a_switched_off_channel_is_not_a_rail(tmp_path: Path, on: On) -> None:
    bench = on("jetson-orin-nano")
    say(tmp_path, "sys/class/hwmon/hwmon1/in2_enable", "0")
    assert set(bench.read().power_w) == {"VDD_IN", "VDD_SOC"}


def test_a_laptop_on_battery(on: On) -> None:
    bench = on("laptop")
    found = bench.read()
    assert measured(found.battery_share) == 0.42  # neither the mouse's 3 %, nor the full one's 101
    assert measured(found.powered) == 0  # whatever the one that is full says
    assert measured(found.power_w["battery BAT0"]) == 11.48
    assert set(values(found.temperature_c)) == {
        "acpitz", "INT3400 Thermal", "x86_pkg_temp", "coretemp Package id 0", "coretemp Core 0",
    }  # fmt: skip
    assert "cannot be" in reason(found.temperature_c["INT3400 Thermal"])
    assert measured(found.hottest_c) == 62.0
    assert values(found.energy_j) == {"package-0": 0.0, "package-0/core": 0.0, "package-0/uncore": 0.0, "psys": 0.0}
    assert "next reading" in reason(found.power_w["package-0"])


def test_counters_have_values_from_the_second_reading(tmp_path: Path, on: On) -> None:
    bench = on("laptop")
    bench.read()
    say(tmp_path, "sys/class/powercap/intel-rapl:0/energy_uj", "29671150")  # it restarted
    say(tmp_path, "sys/class/powercap/intel-rapl:1/energy_uj", "117000000")
    say(tmp_path, "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "1")
    found = bench.read()
    assert measured(found.energy_j["package-0"]) == pytest.approx(30.0, abs=1e-4)
    assert measured(found.power_w["package-0"]) == pytest.approx(15.0, abs=1e-4)
    assert measured(found.device_power_w) == pytest.approx(20.0)  # the platform's
    assert values(found.throttling) == {"core_throttle": 1, "package_throttle": 0, "Processor": 0}


@pytest.mark.parametrize("how", ["offline", "unreadable"])
def test_a_core_that_returns_was_not_throttled(tmp_path: Path, on: On, how: str) -> None:
    bench = on("laptop")
    core = tmp_path / "sys/devices/system/cpu/cpu1"
    file = core / "thermal_throttle/core_throttle_count"
    file.write_text("7\n")
    bench.read()
    core.rename(tmp_path / "gone") if how == "offline" else file.write_text("")
    assert measured(bench.read().throttling["core_throttle"]) == 0
    (tmp_path / "gone").rename(core) if how == "offline" else file.write_text("7\n")
    assert measured(bench.read().throttling["core_throttle"]) == 0
    file.write_text("8\n")
    assert measured(bench.read().throttling["core_throttle"]) == 1


def test_energy_continues_after_an_unreadable_counter(tmp_path: Path, on: On) -> None:
    bench = on("laptop")
    counter = tmp_path / "sys/class/powercap/intel-rapl:1/energy_uj"
    for energy_uj, joules in ((100_000_000, 0.0), (110_000_000, 10.0), (None, None), (130_000_000, 30.0)):
        counter.write_text("" if energy_uj is None else f"{energy_uj}\n")
        found = bench.read()
        assert measured(found.energy_j["psys"]) == joules
    assert measured(found.power_w["psys"]) == 5.0  # over the four seconds


def test_a_counter_that_was_reset_has_not_overflowed(tmp_path: Path, on: On) -> None:
    bench = on("laptop")
    counter = tmp_path / "sys/class/powercap/intel-rapl:1/energy_uj"
    bench.read()
    counter.write_text("1000000\n")  # a host that was suspended counts from 0
    found = bench.read()
    assert measured(found.energy_j["psys"]) == 0.0
    assert isinstance(found.power_w["psys"], Absent)
    assert measured(found.device_power_w) == 11.48
    counter.write_text("21000000\n")
    assert measured(bench.read().power_w["psys"]) == 10.0


def test_a_platform_counter_that_stands_still_is_ignored(on: On) -> None:
    bench = on("laptop")
    bench.read()
    assert measured(bench.read().device_power_w) == 11.48  # of the battery


def test_energy_of_the_superuser_is_absent(tmp_path: Path, on: On) -> None:
    bench = on("laptop")
    for domain in (tmp_path / "sys/class/powercap").iterdir():
        (domain / "energy_uj").unlink()
        (domain / "energy_uj").symlink_to("/proc/self/mem")  # refuses every reader, as a driver may
    bench.read()
    found = bench.read()
    assert values(found.energy_j) == dict.fromkeys(found.energy_j)
    assert measured(found.device_power_w) == 11.48  # of the battery that drains


def test_a_machine_without_sensors_in_a_tight_control_group(tmp_path: Path, on: On) -> None:
    bench = on("virtual-machine")
    found = bench.read()
    assert measured(found.memory_total_bytes) == 512 << 20
    assert measured(found.memory_available_bytes) == (512 - 384 + 64) << 20
    assert measured(found.memory_stalled_share) == 0.25  # the group's, not the machine's
    assert (found.temperature_c, found.throttling, found.frequency_hz, found.power_w) == ({}, {}, {}, {})
    assert "no thermal zone" in reason(found.hottest_c)
    assert "whether the hardware throttles" in reason(found.throttled)
    say(tmp_path, "sys/fs/cgroup/system.slice/edge-agent.service/cpu.stat", "usage_usec 2500000\nuser_usec 1")
    assert measured(bench.read().cpu_busy_share) == 0.5  # 1.5 s of 2 s on 1.5 cores
    say(tmp_path, "sys/fs/cgroup/system.slice/edge-agent.service/cpu.stat", "usage_usec unknown")
    assert isinstance(bench.read().cpu_busy_share, Absent)


def test_load_is_the_share_of_busy_ticks(tmp_path: Path, on: On) -> None:
    bench = on("raspberry-pi-5")
    assert "read once" in reason(bench.read().cpu_busy_share)
    say(tmp_path, "proc/stat", "cpu  1300 0 300 98500 150 0 10 0 0 0\ncpu0 1\ncpu1 1\ncpu2 1\ncpu3 1")
    assert measured(bench.read().cpu_busy_share) == pytest.approx(0.4)


def test_load_is_that_of_the_allowed_cores(tmp_path: Path, on: On) -> None:
    bench = on("raspberry-pi-5")
    say(tmp_path, "proc/self/status", "Cpus_allowed_list:\t2-3")
    bench.read()
    ticks = "cpu  1000 0 200 98900 50 0 10 0\ncpu0 250 0 50 24500 12 0 2 0\ncpu1 250 0 50 25000 12 0 2 0\n"
    say(tmp_path, "proc/stat", f"{ticks}cpu2 650 0 50 24500 12 0 2 0\ncpu3 250 0 50 24900 12 0 2 0")
    assert measured(bench.read().cpu_busy_share) == pytest.approx(0.5)


def test_a_quota_above_the_allowed_cores_does_not_count(tmp_path: Path, on: On) -> None:
    """The quota is 1.5 cores, and the only allowed core is busy."""
    bench = on("virtual-machine")
    say(tmp_path, "proc/self/status", "Cpus_allowed_list:\t1")
    for busy in (0, 200):
        cores = f"cpu0 0 0 0 {busy} 0 0 0 0\ncpu1 {busy} 0 0 0 0 0 0 0"
        say(tmp_path, "proc/stat", f"cpu  {busy} 0 0 {busy} 0 0 0 0\n{cores}")
        found = bench.read()
    assert measured(found.cpu_busy_share) == 1.0


def test_power_is_modelled_from_stated_costs(tmp_path: Path, on: On) -> None:
    bench = on("raspberry-pi-5", tariff=Tariff(idle_w=2.5, joules_per_core_s=1.25))
    bench.read()
    say(tmp_path, "proc/stat", "cpu  1300 0 300 98500 150 0 10 0 0 0\ncpu0 1\ncpu1 1\ncpu2 1\ncpu3 1")
    found = bench.read().device_power_w
    assert isinstance(found, Modelled)
    assert found.value == pytest.approx(2.5 + 1.6 * 1.25)
    assert measured(found) is None
    assert known(found) == found.value
    assert "[costs]" in found.source
    assert describe(found) == "4.5 (modelled)"


def test_configured_rails_are_the_whole_device(tmp_path: Path, on: On) -> None:
    found = on("jetson-orin-nano", power_rails=("VDD_CPU_GPU_CV",)).read()
    assert measured(found.device_power_w) == pytest.approx(4.976 * 0.624)
    assert "VDD_CPU_GPU_CV" in reason(Bench(tmp_path, power_rails=("VDD_CPU", "VDD_SOC")).read().device_power_w)


def test_the_queue_is_counted_by_the_agent(tmp_path: Path) -> None:
    assert Bench(tmp_path, queue=lambda: 3).read().queue_items == Measured(3.0, "the agent")
    assert "No agent" in reason(Bench(tmp_path).read().queue_items)


@pytest.mark.parametrize("name", BOARDS)
def test_files_may_vanish_while_being_read(tmp_path: Path, on: On, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = on(name)
    listed = Tree.names
    monkeypatch.setattr(Tree, "names", lambda tree, folder, pattern: _without(tmp_path, listed(tree, folder, pattern)))
    assert isinstance(bench.read().hottest_c, Absent)


def _without(root: Path, paths: list[str]) -> list[str]:
    for path in paths:
        if (root / path).is_file():
            (root / path).unlink()
        for file in (root / path).glob("*"):
            if not file.is_dir():
                file.unlink()
    return paths


def test_zones_are_limited_to_a_thousand(tmp_path: Path) -> None:
    for number in range(1100):
        say(tmp_path, f"sys/class/thermal/thermal_zone{number}/type", "zone")
        say(tmp_path, f"sys/class/thermal/thermal_zone{number}/temp", str(number * 10))
    found = Bench(tmp_path).read().temperature_c
    assert len(found) == 1024
    assert list(found)[:3] == ["zone", "zone 2", "zone 3"]


def test_everything_is_absent_before_the_first_reading() -> None:
    assert "not read yet" in reason(NOTHING_READ.cpu_busy_share)
    assert isinstance(NOTHING_READ.hottest_c, Absent)


def test_the_hottest_of_many_zones_is_found(tmp_path: Path) -> None:
    for number in range(90):
        say(tmp_path, f"sys/class/thermal/thermal_zone{number}/type", f"zone {number}")
        say(tmp_path, f"sys/class/thermal/thermal_zone{number}/temp", "95000" if number == 70 else "50000")
    found = Bench(tmp_path).read()
    assert measured(found.hottest_c) == 95.0
    shown = limited(found)
    assert len(shown.temperature_c) == 64
    assert shown.hottest_c == found.hottest_c
    assert list(shown.temperature_c) == sorted(shown.temperature_c, key=lambda name: int(name.split()[1]))


def test_a_zone_without_a_sensor_is_not_the_hottest(tmp_path: Path) -> None:
    for number, (name, temperature) in enumerate((("CPU-therm", "43000"), ("PMIC-Die", "100000"))):
        say(tmp_path, f"sys/class/thermal/thermal_zone{number}/type", name)
        say(tmp_path, f"sys/class/thermal/thermal_zone{number}/temp", temperature)
    found = Bench(tmp_path).read()
    assert measured(found.hottest_c) == 43.0
    assert "has no sensor" in reason(found.temperature_c["PMIC-Die"])


@pytest.mark.parametrize(
    ("mains", "batteries", "powered"),
    [
        ("0", ("Full", "Discharging"), 0),
        ("1", ("Discharging",), 0),  # an adapter that gives less than the device takes
        ("1", ("Charging", "Full"), 1),
        ("0", ("Not charging",), 1),  # through a port without its own supply
        ("0", ("Unknown",), 0),
        ("1", (), 1),
    ],
)
def test_draining_outweighs_an_adapter(tmp_path: Path, mains: str, batteries: tuple[str, ...], powered: float) -> None:
    say(tmp_path, "sys/class/power_supply/AC/type", "Mains")
    say(tmp_path, "sys/class/power_supply/AC/online", mains)
    for number, status in enumerate(batteries):
        say(tmp_path, f"sys/class/power_supply/BAT{number}/type", "Battery")
        say(tmp_path, f"sys/class/power_supply/BAT{number}/status", status)
        say(tmp_path, f"sys/class/power_supply/BAT{number}/capacity", "8")
    assert measured(Bench(tmp_path).read().powered) == powered
