"""The latest sensor readings as gauges; a modelled power has its own label."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from firstline_core.hardware.readings import Modelled, Reading, Readings, Snapshot, known, measured
from firstline_core.telemetry.metrics import RequestMetrics

_BY_NAME: Mapping[str, tuple[str, str, Callable[[Snapshot], Readings]]] = {
    "temperature_celsius": ("zone", "Temperature.", lambda now: now.temperature_c),
    "throttling": ("cause", "1 while the hardware holds itself back for it.", lambda now: now.throttling),
    "cpu_hertz": ("policy", "Frequency of a cluster of cores.", lambda now: now.frequency_hz),
    "rail_watts": ("rail", "Power of a rail, domain or draining battery; they nest.", lambda now: now.power_w),
}
_ALONE: Mapping[str, tuple[str, Callable[[Snapshot], Reading]]] = {
    "battery_ratio": ("Charge of the emptiest battery.", lambda now: now.battery_share),
    "externally_powered": ("1 while external power is there.", lambda now: now.powered),
    "memory_available_bytes": ("Memory that the agent may still use.", lambda now: now.memory_available_bytes),
    "memory_stalled_ratio": (
        "Of the last 10 s, in which work waited for memory.",
        lambda now: now.memory_stalled_share,
    ),
    "cpu_busy_ratio": ("Of the usable cores, the part that is busy.", lambda now: now.cpu_busy_share),
    "cpu_allowed_ratio": ("Of the rated frequency, the part that is allowed.", lambda now: now.frequency_share),
    "queued_runs": ("Runs that wait for a thread.", lambda now: now.queue_items),
}


def add_sensor_gauges(metrics: RequestMetrics, latest: Callable[[], Snapshot]) -> None:
    """Registers the gauges; absent readings have no sample. Label values are names of the device's parts.

    Args:
        metrics: the agent's metrics.
        latest: returns the snapshot to show, limited.
    """
    for name, (label, description, of) in _BY_NAME.items():
        metrics.readings(f"device_{name}", description, (label,), partial(_measured, latest, of))
    for name, (description, one) in _ALONE.items():
        metrics.readings(f"device_{name}", description, (), partial(_alone, latest, one))
    metrics.readings("device_watts", "Power of the whole device.", ("kind",), lambda: _power(latest().device_power_w))
    metrics.readings(
        "device_joules_total",
        "Energy that the processor counted since the agent began, by domain; they nest.",
        ("domain",),
        partial(_measured, latest, lambda now: now.energy_j),
        counts=True,
    )


def _measured(latest: Callable[[], Snapshot], of: Callable[[Snapshot], Readings]) -> dict[tuple[str, ...], float]:
    found = {(name,): measured(reading) for name, reading in of(latest()).items()}
    return {labels: value for labels, value in found.items() if value is not None}


def _alone(latest: Callable[[], Snapshot], of: Callable[[Snapshot], Reading]) -> dict[tuple[str, ...], float]:
    value = measured(of(latest()))
    return {} if value is None else {(): value}


def _power(reading: Reading) -> dict[tuple[str, ...], float]:
    value = known(reading)
    return {} if value is None else {("modelled" if isinstance(reading, Modelled) else "measured",): value}
