"""The document that describes a device: stored by the device and reported to the fleet; and readings as text.

Unknown values are None or missing from their tuple, and `notes` says why. A reader ignores fields that it does not
know, so that a newer device is still understood.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from firstline_core.hardware.readings import Absent, Reading, Readings, Snapshot, describe
from firstline_core.storage.structs import FORMAT, read_json_document
from firstline_core.telemetry.wording import counted
from firstline_core.types import Amount, Count

LIMIT_BYTES = 16 * 1024
"""Largest catalogue; a report of a device contains one."""
MOST = 32
"""Most entries of each kind."""

Text = Annotated[str, Meta(max_length=160)]
Word = Annotated[str, Meta(max_length=64)]
HIGHEST_COUNT = 2**53
"""Largest plausible count, in bytes or other units."""
LinkKind = Literal["ethernet", "wifi", "cellular", "loopback", "virtual", "other"]
_GIB, _MIB = 1 << 30, 1 << 20


class Processor(Struct, frozen=True):
    """The cores that run models without an accelerator.

    Attributes:
        model: as the kernel names it.
        architecture: as `platform.machine()` names it.
        cores: logical cores that are online.
        usable_cores: cores that this process may use, by its affinity and its cgroup's quota, as a fraction.
        instruction_sets: instruction sets that matter to inference, such as "avx2" or "asimddp".
        rated_hz: of the fastest core; None if unknown.
        last_cache_bytes: size of the last level; None if unknown.
    """

    model: Text
    architecture: Word
    cores: Count
    usable_cores: Amount
    instruction_sets: Annotated[tuple[Word, ...], Meta(max_length=MOST)] = ()
    rated_hz: Amount | None = None
    last_cache_bytes: Count | None = None


class Memory(Struct, frozen=True):
    """Main memory.

    Attributes:
        total_bytes: of the machine.
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
    """A source of power, or a place where power is measured.

    Attributes:
        kind: "battery", "mains", "usb", "rail" or "rapl".
        measures: whether it reports watts or joules.
    """

    name: Word
    kind: Word
    measures: bool


class Storage(Struct, frozen=True):
    """The disk of the state directory.

    Attributes:
        file_system: such as "ext4"; "" if unknown.
    """

    total_bytes: Count
    free_bytes: Count
    file_system: Word = ""


class NetworkLink(Struct, frozen=True):
    """A network interface.

    Attributes:
        up: whether it carries traffic now.
        bits_per_s: as negotiated; None if unknown, as for wireless interfaces.
    """

    name: Word
    kind: LinkKind
    up: bool
    bits_per_s: Amount | None = None


class Catalogue(Struct, frozen=True):
    """One device.

    Attributes:
        fingerprint: of kernel, packages and hardware; another fingerprint requires another survey.
        board: such as "Raspberry Pi 5 Model B Rev 1.0"; "" if unknown.
        kernel: its release.
        notes: unknown values and their reasons, in sentences.
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
    notes: Annotated[tuple[Text, ...], Meta(max_length=MOST)] = ()
    measured: bool = False
    format: int = FORMAT

    def engine(self, runtime: str, name: str) -> Engine | None:
        """Returns the provider or delegate of that name; None if it was not found here."""
        return next((one for one in self.engines if (one.runtime, one.name) == (runtime, name)), None)


def encode(catalogue: Catalogue) -> bytes:
    """Returns the catalogue as JSON."""
    return msgspec.json.encode(catalogue)


def decode(content: bytes, where: str) -> Catalogue:
    """Reads a catalogue.

    Args:
        content: JSON, at most `LIMIT_BYTES`.
        where: its source, for the error.

    Raises:
        ProtocolError: too long, not JSON, no catalogue, or of a newer format.
    """
    return read_json_document(content, Catalogue, where, LIMIT_BYTES, "is no catalogue of a device")


def catalogue_lines(found: Catalogue) -> list[str]:
    """Returns the catalogue as lines."""
    return [f"{name:<12} {text}" for name, text in catalogue_facts(found)]


def catalogue_facts(found: Catalogue) -> list[tuple[str, str]]:
    """Returns the catalogue as names and texts; a name may occur several times."""
    cpu, memory, disk = found.processor, found.memory, found.storage
    clock = f", {cpu.rated_hz / 1e9:.2g} GHz" if cpu.rated_hz else ""
    cache = f", last cache {cpu.last_cache_bytes / _MIB:.3g} MiB" if cpu.last_cache_bytes else ""
    limit = f", of which {memory.limit_bytes / _GIB:.3g} may be used" if memory.limit_bytes else ""
    facts = [
        ("board", f"{found.board or 'unknown'}, kernel {found.kernel}"),
        (
            "processor",
            f"{cpu.model or 'unknown'}, {cpu.architecture}, {counted(cpu.cores, 'core')} "
            f"({cpu.usable_cores:.3g} usable){clock}{cache}",
        ),
        ("instructions", " ".join(cpu.instruction_sets) or "none that matters to inference is known"),
        ("memory", f"{memory.total_bytes / _GIB:.3g} GiB{limit}"),
    ]
    facts += [("accelerator", f"{one.name} ({one.kind}, {one.source})") for one in found.accelerators]
    facts += [("engine", _engine(engine)) for engine in found.engines]
    for zone in found.thermal_zones:
        trips = [
            f"{word} from {at:g} C"
            for word, at in (("throttles", zone.passive_c), ("ends", zone.critical_c))
            if at is not None
        ]
        facts.append(("zone", f"{zone.name}{': ' if trips else ''}{', '.join(trips)}"))
    facts += [
        ("power", f"{one.name} ({one.kind}{', measured' if one.measures else ''})") for one in found.power_sources
    ]
    if disk is not None:
        free, total = disk.free_bytes / _GIB, disk.total_bytes / _GIB
        facts.append(("disk", f"{disk.file_system or 'unknown'}, {free:.3g} of {total:.3g} GiB free"))
    for link in found.links:
        rate = f", {link.bits_per_s / 1e6:g} Mbit/s" if link.bits_per_s else ""
        facts.append(("link", f"{link.name}: {link.kind}, {'up' if link.up else 'down'}{rate}"))
    facts += [("note", note) for note in found.notes]
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
        *_named(
            "frequency", {name: _in(1e9, one) for name, one in now.frequency_hz.items()}, "GHz", now.frequency_share
        ),
        *_named("power", now.power_w, "W", None),
        *_named("energy", now.energy_j, "J since the first reading", None),
        *_one("device", now.device_power_w, "W"),
        *_one("battery", now.battery_share, "of its charge"),
        *_one("powered", now.powered, ""),
        *_one("memory", _in(_GIB, now.memory_available_bytes), "GiB left"),
        *_one("pressure", now.memory_stalled_share, "of the last 10 s waited for memory"),
        *_one("load", now.cpu_busy_share, "of the usable cores"),
    ]


def _in(unit: float, reading: Reading) -> Reading:
    """The reading in a larger unit, with three digits."""
    return reading if isinstance(reading, Absent) else replace(reading, value=float(f"{reading.value / unit:.3g}"))


def _named(what: str, readings: Readings, unit: str, none: Reading | None) -> Iterable[str]:
    if not readings and none is not None:
        yield f"{what:<12}{describe(none)}"
    for name, reading in readings.items():
        yield f"{what:<12}{name}: {_value(reading, unit)}"


def _one(what: str, reading: Reading, unit: str) -> Iterable[str]:
    yield f"{what:<12}{_value(reading, unit)}"


def _value(reading: Reading, unit: str) -> str:
    return describe(reading) if isinstance(reading, Absent) else f"{describe(reading)} {unit}".rstrip()
