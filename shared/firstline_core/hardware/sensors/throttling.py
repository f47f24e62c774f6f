"""Whether the hardware, or the kernel for it, holds itself back now, by cause.

    Raspberry Pi    the firmware's word (`get_throttled`), and the supply's alarm (hwmon `rpi_volt`)
    Intel           counters of thermal events, by core and package
    Jetson          counters of over-current and under-voltage events (hwmon `soctherm_oc`)
    all             cooling devices of the kernel's that slow a processor down

Counters say that something happened since they were read before: the first reading says nothing yet.
"""

from __future__ import annotations

from firstline_core.hardware.readings import Absent, Measured
from firstline_core.hardware.tree import Found, Tree, name_of, placed

# raspberrypi.com/documentation/computers/os.html, "get_throttled"; the bits from 16 on say what ever was.
_FIRMWARE_BITS = ("under_voltage", "frequency_capped", "throttled", "soft_temperature_limit")
_FIRMWARE_FOLDERS = (("sys/devices/platform/soc", "soc:firmware"), ("sys/devices/platform", "*firmware"))
_HEX_DIGITS = frozenset("0123456789abcdef")
# Types of cooling devices that slow something down, as drivers name them; fans are cooling devices too.
_SLOWING = ("thermal-cpufreq", "cpufreq-", "thermal-devfreq", "devfreq-", "Processor")
_ALERT = "-throttle-alert"


class Throttling:
    """Reads them all; keeps what counters said.

    Args:
        tree: the kernel's files.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._counted: dict[str, float] = {}  # by file

    def read(self) -> dict[str, Found]:
        """1 where a cause holds now, 0 where it does not."""
        found: dict[str, Found] = {}
        self._firmware(found)
        for chip in self._tree.names("sys/class/hwmon", "hwmon*"):
            name = self._tree.word(f"{chip}/name")
            if name == "rpi_volt" and "under_voltage" not in found:
                found["under_voltage"] = self._tree.number(f"{chip}/in0_lcrit_alarm", low=0, high=1)
            elif name == "soctherm_oc":
                for file in self._tree.names(chip, "oc*_event_cnt"):
                    cause = file.rpartition("/")[2].removesuffix("_event_cnt")
                    placed(found, name_of(cause), self._rose([file]))
        self._cooling(found)
        for cause in ("core_throttle_count", "package_throttle_count"):
            cores = self._tree.names("sys/devices/system/cpu", "cpu[0-9]*")
            files = [file for core in cores if self._tree.has(file := f"{core}/thermal_throttle/{cause}")]
            if files:
                found[cause.removesuffix("_count")] = self._rose(files)
        return found

    def _firmware(self, found: dict[str, Found]) -> None:
        for folder, pattern in _FIRMWARE_FOLDERS:
            for firmware in self._tree.names(folder, pattern):
                file = f"{firmware}/get_throttled"
                if self._tree.has(file):
                    self._bits(found, file)
                    return

    def _bits(self, found: dict[str, Found], file: str) -> None:
        text = self._tree.text(file)
        if isinstance(text, str):
            digits = text.lower().removeprefix("0x")
            if digits and len(digits) <= 16 and _HEX_DIGITS.issuperset(digits):
                bits = int(digits, 16)
                found |= {name: Measured(float(bits >> at & 1), f"/{file}") for at, name in enumerate(_FIRMWARE_BITS)}
                return
            text = Absent(f"/{file}: says {text[:40]!a}, which is no hexadecimal number.")
        found |= dict.fromkeys(_FIRMWARE_BITS, text)

    def _cooling(self, found: dict[str, Found]) -> None:
        """All devices of one type are one cause: a processor of many cores has one for each."""
        by_type: dict[str, list[Found]] = {}
        for device in self._tree.names("sys/class/thermal", "cooling_device*"):
            kind = self._tree.word(f"{device}/type")
            if kind.startswith(_SLOWING) or kind.endswith(_ALERT):
                cause = kind.rstrip("0123456789").rstrip("-")
                by_type.setdefault(cause, []).append(self._tree.number(f"{device}/cur_state", low=0))
        for cause, states in by_type.items():
            read = [state for state in states if isinstance(state, Measured)]
            slowest = max(read, key=lambda state: state.value, default=None)
            placed(found, cause, states[0] if slowest is None else Measured(float(slowest.value > 0), slowest.source))

    def _rose(self, files: list[str]) -> Found:
        """Each file by itself: of a core that comes or goes, what it counted before did not happen now."""
        read = [(file, self._tree.number(file, low=0)) for file in files]
        counted = {file: reading.value for file, reading in read if isinstance(reading, Measured)}
        if not counted:
            return read[0][1]
        rises = [count > self._counted[file] for file, count in counted.items() if file in self._counted]
        self._counted |= counted
        if not rises:
            return Absent(f"/{files[0]}: counts events, and was read once; the next reading tells.")
        return Measured(float(any(rises)), f"/{files[0]}")
