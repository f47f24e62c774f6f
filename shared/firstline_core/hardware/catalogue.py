"""The document that describes a device: stored by the device and reported to the fleet. Structs and JSON, no I/O.

Unknown values are None or missing from their tuple, and `notes` says why. A reader ignores fields that it does not
know, so that a newer device is still understood.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from firstline_core.protocol.json_document import read_json_document

FORMAT = 1
LIMIT_BYTES = 16 * 1024
"""Largest catalogue; a report of a device contains one."""
MOST = 32
"""Most entries of each kind."""

Text = Annotated[str, Meta(max_length=160)]
Word = Annotated[str, Meta(max_length=64)]
HIGHEST_COUNT = 2**53
"""Largest plausible count, in bytes or other units."""
Count = Annotated[int, Meta(ge=0, le=HIGHEST_COUNT)]
Amount = Annotated[float, Meta(ge=0, le=1e18)]
LinkKind = Literal["ethernet", "wifi", "cellular", "loopback", "virtual", "other"]


class Processor(Struct, frozen=True):
    """The cores that run models where no accelerator does.

    Attributes:
        model: as the kernel names it.
        architecture: as `platform.machine()` names it.
        cores: logical ones that are online.
        usable_cores: of these, that this process may use: its affinity and its cgroup's quota, as a fraction.
        instruction_sets: those that matter to inference, such as "avx2" or "asimddp".
        rated_hz: of the fastest core; None where the kernel does not say.
        last_cache_bytes: of the last level; None likewise.
    """

    model: Text
    architecture: Word
    cores: Count
    usable_cores: Amount
    instruction_sets: Annotated[tuple[Word, ...], Meta(max_length=MOST)] = ()
    rated_hz: Amount | None = None
    last_cache_bytes: Count | None = None


class Bandwidth(Struct, frozen=True):
    """Measured memory bandwidth, counted as in STREAM: bytes read plus bytes written.

    Attributes:
        copy_bytes_per_s: of a = b, the quickest repeat, on one core.
        triad_bytes_per_s: of a = b + 3 c, as numpy can do it: two passes, of which all traffic is counted.
        buffer_bytes: of each array.
        repeats: of each.
    """

    copy_bytes_per_s: Amount
    triad_bytes_per_s: Amount
    buffer_bytes: Count
    repeats: Count


class Memory(Struct, frozen=True):
    """Main memory.

    Attributes:
        total_bytes: of the machine.
        limit_bytes: that this process's cgroup may use; None where nothing limits it.
        bandwidth: None until it was measured.
    """

    total_bytes: Count
    limit_bytes: Count | None = None
    bandwidth: Bandwidth | None = None


class Accelerator(Struct, frozen=True):
    """An accelerator that the kernel shows; `Engine` says whether a runtime can use it.

    Attributes:
        kind: "gpu", "npu" or "tpu".
        source: the file that shows it.
    """

    kind: Word
    name: Text
    source: Text


class Engine(Struct, frozen=True):
    """A provider of ONNX Runtime's, or a delegate of TFLite's, and whether it ran a small model here.

    Attributes:
        runtime: "onnx" or "tflite", as a bundle's manifest names them.
        name: the provider's or the delegate's own.
        works: it ran, by itself, and what came out was right.
        reason: a sentence: how fast it was, or why it does not work.
        first_run_ms: from nothing to the first answer: to load the runtime and the model, and to run it.
    """

    runtime: Word
    name: Word
    works: bool
    reason: Text
    first_run_ms: Amount | None = None


class ThermalZone(Struct, frozen=True):
    """A place whose temperature is known.

    Attributes:
        passive_c: from here on the kernel throttles; None where the zone does not say.
        critical_c: here it switches off; likewise.
    """

    name: Word
    passive_c: float | None = None
    critical_c: float | None = None


class PowerSource(Struct, frozen=True):
    """Where power comes from, or where it is measured.

    Attributes:
        kind: "battery", "mains", "usb", "rail" or "rapl".
        measures: whether it says watts or joules.
    """

    name: Word
    kind: Word
    measures: bool


class Storage(Struct, frozen=True):
    """Where the agent keeps its state.

    Attributes:
        file_system: such as "ext4"; "" where unknown.
        write_bytes_per_s: of one file, until it was on the disk (fsync); None until it was measured.
        read_bytes_per_s: of the same, after the kernel was asked to forget it; None likewise.
        sync_s: of a write of 4 KiB until it was on the disk, the cost of a durable write; None likewise.
    """

    total_bytes: Count
    free_bytes: Count
    file_system: Word = ""
    write_bytes_per_s: Amount | None = None
    read_bytes_per_s: Amount | None = None
    sync_s: Amount | None = None


class NetworkLink(Struct, frozen=True):
    """A network interface.

    Attributes:
        up: it carries traffic now.
        bits_per_s: as negotiated; None where it does not say, as wireless ones do not.
    """

    name: Word
    kind: LinkKind
    up: bool
    bits_per_s: Amount | None = None


class Catalogue(Struct, frozen=True):
    """One device.

    Attributes:
        fingerprint: of what it depends on: kernel, packages, hardware; another one asks for another survey.
        board: such as "Raspberry Pi 5 Model B Rev 1.0"; "" if unknown.
        kernel: its release.
        notes: unknown values and their reasons, in sentences.
        measured: whether what takes seconds (bandwidth, storage, engines) was measured.
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
        """The provider or delegate of that name; None where it was not found here."""
        return next((one for one in self.engines if (one.runtime, one.name) == (runtime, name)), None)


def encode(catalogue: Catalogue) -> bytes:
    """As JSON."""
    return msgspec.json.encode(catalogue)


def decode(content: bytes, where: str) -> Catalogue:
    """Reads a catalogue.

    Args:
        content: JSON, at most `LIMIT_BYTES`.
        where: whence it came, for the error.

    Raises:
        ProtocolError: too long, not JSON, no catalogue, or of a newer format.
    """
    return read_json_document(
        content, Catalogue, where=where, limit_bytes=LIMIT_BYTES, known=FORMAT, fault="is no catalogue of a device"
    )
