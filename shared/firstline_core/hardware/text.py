"""Catalogue and sensor readings as lines of text."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from firstline_core.hardware.catalogue import Bandwidth, Catalogue, Engine, Storage
from firstline_core.hardware.readings import Absent, Reading, Readings, describe
from firstline_core.hardware.sensors.snapshot import Snapshot
from firstline_core.telemetry.wording import counted

_GIB, _MIB = 1 << 30, 1 << 20


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
        ("memory", f"{memory.total_bytes / _GIB:.3g} GiB{limit}{_speed(memory.bandwidth)}"),
    ]
    facts += [("beside", f"{one.name} ({one.kind}, {one.source})") for one in found.accelerators]
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
        facts.append(("disk", _disk(disk)))
    for link in found.links:
        rate = f", {link.bits_per_s / 1e6:g} Mbit/s" if link.bits_per_s else ""
        facts.append(("link", f"{link.name}: {link.kind}, {'up' if link.up else 'down'}{rate}"))
    facts += [("note", note) for note in found.notes]
    if not found.measured:
        facts.append(("note", "Speeds and engines were not measured: edge-agent hardware --measure"))
    return facts


def _speed(measured: Bandwidth | None) -> str:
    if measured is None:
        return ""
    copy, triad = measured.copy_bytes_per_s / 1e9, measured.triad_bytes_per_s / 1e9
    repeats = f"{measured.repeats} times {measured.buffer_bytes / _MIB:.0f} MiB"
    return f", copy {copy:.3g} GB/s, triad {triad:.3g} GB/s on one core ({repeats})"


def _engine(engine: Engine) -> str:
    if not engine.works or engine.first_run_ms is None:
        return f"{engine.runtime} {engine.name} {'works' if engine.works else 'does not work'}: {engine.reason}"
    return f"{engine.runtime} {engine.name} works: first answer after {engine.first_run_ms:.0f} ms"


def _disk(disk: Storage) -> str:
    room = f"{disk.file_system or 'unknown'}, {disk.free_bytes / _GIB:.3g} of {disk.total_bytes / _GIB:.3g} GiB free"
    if disk.write_bytes_per_s is None or disk.read_bytes_per_s is None or disk.sync_s is None:
        return room
    speeds = f"writes {disk.write_bytes_per_s / 1e6:.0f} MB/s, reads {disk.read_bytes_per_s / 1e6:.0f} MB/s"
    return f"{room}, {speeds}, {disk.sync_s * 1e3:.3g} ms to sync"


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
