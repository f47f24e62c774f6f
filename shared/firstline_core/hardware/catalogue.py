"""The document that describes a device: stored by the device and reported to the fleet; and readings as text.

Unknown values are None or missing from their tuple. A reader ignores fields that it does not know, so that a newer
device is still understood.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from firstline_core.hardware.readings import Absent, Reading, Readings, Snapshot, describe
from firstline_core.storage.structs import FORMAT
from firstline_core.telemetry.wording import counted, rounded
from firstline_core.types import Amount, Count
from firstline_core.units import GIB

LIMIT_BYTES = 16 * 1024
"""Largest catalogue; a report of a device contains one."""
MOST = 16
"""Most entries of each kind."""

Text = Annotated[str, Meta(max_length=160)]
Word = Annotated[str, Meta(max_length=64)]
HIGHEST_COUNT = 2**53
"""Largest plausible count, in bytes or other units."""


class Processor(Struct, frozen=True):
    """The cores that run models without an accelerator.

    Attributes:
        model: as the kernel names it.
        architecture: as `platform.machine()` names it.
        cores: logical cores that are online.
        usable_cores: cores that this process may use, by its affinity and its cgroup's quota, as a fraction.
        instruction_sets: instruction sets that matter to inference, such as "avx2" or "asimddp".
    """

    model: Text
    architecture: Word
    cores: Count
    usable_cores: Amount
    instruction_sets: Annotated[tuple[Word, ...], Meta(max_length=MOST)] = ()


class Memory(Struct, frozen=True):
    """Main memory.

    Attributes:
        total_bytes: of the machine; 0 if unknown.
        limit_bytes: limit of this process's cgroup; None without a limit.
    """

    total_bytes: Count
    limit_bytes: Count | None = None


class Accelerator(Struct, frozen=True):
    """An accelerator that the kernel shows; whether a runtime can use it is in `Engine`.

    Attributes:
        kind: "gpu", "npu" or "tpu".
        source: the file that shows it.
    """

    kind: Word
    name: Text
    source: Text


class Engine(Struct, frozen=True):
    """A provider of ONNX Runtime or a delegate of TFLite, and whether it ran a small model here.

    Attributes:
        runtime: "onnx" or "tflite", as a bundle's manifest names them.
        name: of the provider or delegate.
        works: whether it ran without help of the processor, and gave the right answer.
        reason: a sentence: that it ran, or why it does not work.
        first_run_ms: time to load the runtime and the model, and to run it once.
    """

    runtime: Word
    name: Word
    works: bool
    reason: Text
    first_run_ms: Amount | None = None


class ThermalZone(Struct, frozen=True):
    """A thermal zone.

    Attributes:
        passive_c: temperature at which the kernel throttles; None if unknown.
        critical_c: temperature at which it switches off; None if unknown.
    """

    name: Word
    passive_c: float | None = None
    critical_c: float | None = None


class PowerSource(Struct, frozen=True):
    """A source of power, as the kernel names it; `kind` is its type in lower case, such as "battery" or "mains"."""

    name: Word
    kind: Word


class Storage(Struct, frozen=True):
    """The disk of the state directory; free bytes are in whole GiB, because each change is reported."""

    total_bytes: Count
    free_bytes: Count


class NetworkLink(Struct, frozen=True):
    """A network interface; `kind` is "ethernet", "wifi", "cellular" or "other"."""

    name: Word
    kind: Word
    up: bool


class Catalogue(Struct, frozen=True):
    """One device.

    Attributes:
        fingerprint: of kernel, packages and hardware; another fingerprint requires another survey.
        board: such as "Raspberry Pi 5 Model B Rev 1.0"; "" if unknown.
        kernel: its release.
        measured: whether engines were tried, which takes seconds.
    """

    fingerprint: Word
    board: Text
    kernel: Text
    processor: Processor
    memory: Memory
    accelerators: Annotated[tuple[Accelerator, ...], Meta(max_length=MOST)] = ()
    engines: Annotated[tuple[Engine, ...], Meta(max_length=MOST)] = ()
    thermal_zones: Annotated[tuple[ThermalZone, ...], Meta(max_length=MOST)] = ()
    power_sources: Annotated[tuple[PowerSource, ...], Meta(max_length=MOST)] = ()
    storage: Storage | None = None
    links: Annotated[tuple[NetworkLink, ...], Meta(max_length=MOST)] = ()
    measured: bool = False
    format: int = FORMAT

    def engine(self, runtime: str, name: str) -> Engine | None:
        """Returns the provider or delegate of that name; None if it was not found here."""
        return next((one for one in self.engines if (one.runtime, one.name) == (runtime, name)), None)


def catalogue_lines(found: Catalogue) -> list[str]:
    """Returns the catalogue as lines."""
    return [f"{name:<12} {text}" for name, text in catalogue_facts(found)]


def catalogue_facts(found: Catalogue) -> list[tuple[str, str]]:
    """Returns the catalogue as names and texts; a name may occur several times."""
    cpu, memory = found.processor, found.memory
    limit = f", of which {rounded(memory.limit_bytes / GIB)} may be used" if memory.limit_bytes else ""
    cores = f"{counted(cpu.cores, 'core')} ({rounded(cpu.usable_cores)} usable)"
    facts = [
        ("board", f"{found.board or 'unknown'}, kernel {found.kernel}"),
        ("processor", f"{cpu.model or 'unknown'}, {cpu.architecture}, {cores}"),
        ("instructions", " ".join(cpu.instruction_sets) or "none that matters to inference is known"),
        ("memory", f"{rounded(memory.total_bytes / GIB)} GiB{limit}" if memory.total_bytes else "unknown"),
    ]
    facts += [("accelerator", f"{one.name} ({one.kind}, {one.source})") for one in found.accelerators]
    facts += [("engine", _engine(engine)) for engine in found.engines]
    for zone in found.thermal_zones:
        limits = (("throttles", zone.passive_c), ("ends", zone.critical_c))
        trips = ", ".join(f"{word} from {at:g} C" for word, at in limits if at is not None)
        facts.append(("zone", f"{zone.name}{': ' if trips else ''}{trips}"))
    facts += [("power", f"{one.name} ({one.kind})") for one in found.power_sources]
    if (disk := found.storage) is not None:
        facts.append(("disk", f"{rounded(disk.free_bytes / GIB)} of {rounded(disk.total_bytes / GIB)} GiB free"))
    facts += [("link", f"{one.name}: {one.kind}, {'up' if one.up else 'down'}") for one in found.links]
    if not found.measured:
        facts.append(("note", "Engines were not tried: edge-agent hardware get --measure"))
    return facts


def _engine(engine: Engine) -> str:
    if not engine.works or engine.first_run_ms is None:
        return f"{engine.runtime} {engine.name} {'works' if engine.works else 'does not work'}: {engine.reason}"
    return f"{engine.runtime} {engine.name} works: first answer after {engine.first_run_ms:.0f} ms"


def sensor_lines(now: Snapshot) -> list[str]:
    """Returns the readings as lines; an absent one says why."""
    return [
        *_named("temperature", now.temperature_c, "C", now.hottest_c),
        *_named("throttling", now.throttling, "", now.throttled),
        *_named("frequency", {name: _in(1e9, one) for name, one in now.frequency_hz.items()}, "GHz", None),
        *_named("power", now.power_w, "W", None),
        *_named("energy", now.energy_j, "J since the first reading", None),
        f"{'device':<12}{_value(now.device_power_w, 'W')}",
        f"{'battery':<12}{_value(now.battery_share, 'of its charge')}",
        f"{'powered':<12}{_value(now.powered, '')}",
        f"{'memory':<12}{_value(_in(GIB, now.memory_available_bytes), 'GiB left')}",
        f"{'pressure':<12}{_value(now.memory_stalled_share, 'of the last 10 s waited for memory')}",
        f"{'load':<12}{_value(now.cpu_busy_share, 'of the usable cores')}",
    ]


def _in(unit: float, reading: Reading) -> Reading:
    """The reading in a larger unit, with three digits."""
    return reading if isinstance(reading, Absent) else replace(reading, value=float(f"{reading.value / unit:.3g}"))


def _named(what: str, readings: Readings, unit: str, none: Reading | None) -> Iterable[str]:
    if not readings and none is not None:
        yield f"{what:<12}{describe(none)}"
    for name, reading in readings.items():
        yield f"{what:<12}{name}: {_value(reading, unit)}"


def _value(reading: Reading, unit: str) -> str:
    return describe(reading) if isinstance(reading, Absent) else f"{describe(reading)} {unit}".rstrip()
