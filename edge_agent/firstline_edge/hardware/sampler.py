"""Reads the sensors every few seconds in a thread; requests and metrics read the latest snapshot as an attribute.

If memory gets short it is read sooner: another process may take what is left between two readings.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

from msgspec.structs import replace

from firstline_core.clock import Clock
from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.readings import NOTHING_READ, Modelled, Reading, Snapshot, absent_snapshot, known, measured
from firstline_core.hardware.sensors import Sensors
from firstline_core.runtime.threads import REFUSED, in_daemon_thread
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.metrics import RequestMetrics

log = logger(__name__)

_SILENT_PERIODS = 3
_SILENT_S = 30.0
_HANGS = "a driver hangs"
_ERROR_CHARACTERS = 200
FASTEST_BYTES_PER_S = 1 << 30
"""Assumed rate at which another process takes memory."""
SHORTEST_PAUSE_S = 0.1
"""Between two reads of the memory; each starts a thread and reads small files, which a small board would notice."""
_GAUGES: Mapping[str, tuple[str, str, str]] = {
    "temperature_celsius": ("temperature_c", "zone", "Temperature."),
    "throttling": ("throttling", "cause", "1 while the hardware holds itself back for it."),
    "cpu_hertz": ("frequency_hz", "policy", "Frequency of a cluster of cores."),
    "rail_watts": ("power_w", "rail", "Power of a rail, domain or draining battery; they nest."),
    "battery_ratio": ("battery_share", "", "Charge of the emptiest battery."),
    "externally_powered": ("powered", "", "1 while external power is there."),
    "memory_available_bytes": ("memory_available_bytes", "", "Memory that the agent may still use."),
    "memory_stalled_ratio": ("memory_stalled_share", "", "Of the last 10 s, in which work waited for memory."),
    "cpu_busy_ratio": ("cpu_busy_share", "", "Of the usable cores, the part that is busy."),
    "queued_runs": ("queue_items", "", "Runs that wait for a thread."),
}
"""Field of the snapshot, label and description by metric; fields without a label are single readings."""


class MemoryThresholds:
    """Decides how soon memory is read again.

    Args:
        thresholds_bytes: of available memory; a guard acts below each of them. Without any, memory is not read sooner.
    """

    def __init__(self, thresholds_bytes: Sequence[float] = ()) -> None:
        self._thresholds_bytes = tuple(threshold for threshold in thresholds_bytes if threshold > 0)

    def passed(self, available_bytes: float | None) -> int:
        """Returns the number of thresholds that are above the available memory; 0 if that is unknown."""
        if available_bytes is None:
            return 0
        return sum(available_bytes < threshold for threshold in self._thresholds_bytes)

    def pause_s(self, available_bytes: float | None) -> float:
        """Returns the seconds until the next threshold can be reached, at least `SHORTEST_PAUSE_S`.

        Infinite if there is no further threshold.
        """
        if available_bytes is None:
            return math.inf
        above = [available_bytes - threshold for threshold in self._thresholds_bytes if available_bytes >= threshold]
        return max(SHORTEST_PAUSE_S, min(above) / FASTEST_BYTES_PER_S) if above else math.inf


@dataclass(eq=False)
class Sampler:
    """Reads the sensors of one device.

    Args:
        sensors: read in a thread, one reading at a time.
        period_s: between two readings.
        clock: the agent's clock.
        thresholds: when memory is read sooner.
        on_reading: receives each snapshot on the event loop, also those without readings.

    Attributes:
        latest: the latest snapshot; everything in it is absent if that is too long ago.
    """

    sensors: Sensors
    period_s: float
    clock: Clock
    _: KW_ONLY
    thresholds: MemoryThresholds = field(default_factory=MemoryThresholds)
    on_reading: Callable[[Snapshot], None] = lambda snapshot: None
    latest: Snapshot = field(default=NOTHING_READ, init=False)
    _error: str = field(default=_HANGS, init=False)

    def __post_init__(self) -> None:
        self._limit_s = max(_SILENT_S, _SILENT_PERIODS * self.period_s)
        self._silent_since_s = self.clock.monotonic_s()

    async def run(self) -> None:
        """Reads until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:  # two tasks: if a driver hangs, its last reading must expire
                tasks.create_task(self._keep_reading(), name="sensors")
                tasks.create_task(self._expire_readings(), name="silent sensors")
        finally:
            self.latest = absent_snapshot("The sensors are not read any more.")

    async def _keep_reading(self) -> None:
        while True:
            began_s = self.clock.monotonic_s()
            if self._error == _HANGS:
                self._silent_since_s = began_s
            try:
                snapshot = await in_daemon_thread(partial(self.sensors.read, began_s))
            except Exception as error:  # noqa: BLE001 (of one reading; the guards must survive any of them)
                self._note_failure(error)
            else:
                self._error, self._silent_since_s = _HANGS, began_s
                if self.clock.monotonic_s() - began_s >= self._limit_s:
                    continue  # it was reported absent meanwhile, and is outdated
                self._publish(snapshot)
            await self._rest(self.clock.monotonic_s() + self.period_s)

    async def _rest(self, until_s: float) -> None:
        """Returns when the next reading is due, or as soon as memory falls below a threshold."""
        available_bytes = measured(self.latest.memory_available_bytes)
        before = self.thresholds.passed(available_bytes)
        while True:
            pause_s, rest_s = self.thresholds.pause_s(available_bytes), until_s - self.clock.monotonic_s()
            if pause_s >= rest_s:
                await self.clock.sleep(max(0.0, rest_s))
                return
            await self.clock.sleep(pause_s)
            try:
                available = await in_daemon_thread(self.sensors.memory_available)
            except Exception:  # noqa: BLE001 (the reading that follows reports it)
                return
            available_bytes = measured(available)
            if self.thresholds.passed(available_bytes) > before:
                # At once: the other sensors may wait for a slow driver.
                now_s = self.clock.monotonic_s()
                self._publish(replace(self.latest, at_s=now_s, memory_available_bytes=available))
                return

    def _note_failure(self, error: Exception) -> None:
        """The system may refuse threads or memory for a while; reading is retried."""
        message = f"{type(error).__name__}: {error}"[:_ERROR_CHARACTERS]
        if self._error == _HANGS:
            unexpected = None if isinstance(error, REFUSED) else error
            log.warning("sensors not read; retrying", error=message, exc_info=unexpected)
        self._error = message

    async def _expire_readings(self) -> None:
        warned = False
        while True:
            now_s = self.clock.monotonic_s()
            silent_s = now_s - self._silent_since_s
            silent = silent_s >= self._limit_s
            if silent:
                file = self.sensors.tree.reading if self._error == _HANGS else ""
                why = f"{self._error} (/{file})" if file else self._error
                if not warned:
                    log.warning("sensors not answering", seconds=round(silent_s), why=why)
                absent = absent_snapshot(f"The sensors have not answered for {silent_s:.0f} s: {why}.")
                self._publish(replace(absent, at_s=now_s))
            warned = silent
            await self.clock.sleep(max(self._limit_s - silent_s, self.period_s))

    def _publish(self, snapshot: Snapshot) -> None:
        self.latest = snapshot
        try:
            self.on_reading(snapshot)
        except Exception:
            log.exception("sensor reading not handled")


def missing_kernel_files(tree: Tree) -> str:
    """Returns a sentence that names the guards without input because proc or sys is missing; "" if both are there.

    The configured root may be mistyped or not mounted; absent readings would then silently disable the guards.
    """
    guards = {"sys": "heat, throttling and battery", "proc": "memory and load"}
    missing = {folder: inputs for folder, inputs in guards.items() if not tree.has(folder)}
    if not missing:
        return ""
    return (
        f"hardware.root {tree.root} has no {' and no '.join(missing)}: the guards of "
        f"{', and of '.join(missing.values())} see nothing. Name the folder that contains the kernel's proc and sys; "
        "in a container, the folder where the host's are mounted."
    )


def add_sensor_gauges(metrics: RequestMetrics, latest: Callable[[], Snapshot]) -> None:
    """Registers the latest readings as gauges; absent readings have no sample.

    Label values are names of the device's parts. A modelled power has its own label.

    Args:
        metrics: the agent's metrics.
        latest: returns the snapshot to show.
    """
    for name, (attribute, label, description) in _GAUGES.items():
        labels = (label,) if label else ()
        metrics.readings(f"device_{name}", description, labels, partial(_measured, latest, attribute, labels))
    metrics.readings("device_watts", "Power of the whole device.", ("kind",), lambda: _power(latest().device_power_w))
    metrics.readings(
        "device_joules_total",
        "Energy that the processor counted since the agent began, by domain; they nest.",
        ("domain",),
        partial(_measured, latest, "energy_j", ("domain",)),
    )


def _measured(latest: Callable[[], Snapshot], field: str, labels: tuple[str, ...]) -> dict[tuple[str, ...], float]:
    found = getattr(latest(), field)
    by_labels = {(name,): reading for name, reading in found.items()} if labels else {(): found}
    values = {key: measured(reading) for key, reading in by_labels.items()}
    return {key: value for key, value in values.items() if value is not None}


def _power(reading: Reading) -> dict[tuple[str, ...], float]:
    value = known(reading)
    return {} if value is None else {("modelled" if isinstance(reading, Modelled) else "measured",): value}
