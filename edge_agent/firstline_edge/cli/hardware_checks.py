"""Checks of `doctor` on the device: whether it throttles, and whether the configured providers work."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from firstline_core.errors import DeadlineExceededError
from firstline_core.hardware.catalogue import Catalogue, ThermalZone
from firstline_core.hardware.kernel_files import Tree, read_in_time
from firstline_core.hardware.readings import Absent, Snapshot, describe, known, measured
from firstline_core.hardware.sensors import read_twice
from firstline_core.hardware.survey import thermal_zones
from firstline_edge.budgets.sensors import device_sensors
from firstline_edge.cli.findings import Finding, State, from_error
from firstline_edge.hardware.sampler import missing_kernel_files
from firstline_edge.hardware.surveyor import Surveyor
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import hardware_path

_BETWEEN_S = 0.5
_NO_SENSOR = Absent("no sensor")
_BELOW_C = 4.0
"""Degrees below the kernel's limit that the device still warms up while it steps down."""


def hardware_findings(settings: EdgeSettings) -> list[Finding]:
    """Returns the findings of two sensor readings, because counters need two, and of the stored catalogue."""
    tree, folder = Tree(Path(settings.hardware.root)), settings.state_dir
    kept = Surveyor(tree, folder, hardware_path(folder)).kept()
    if problem := missing_kernel_files(tree):
        return [from_error("hardware.root", problem), *engine_findings(kept, settings.models.providers)]
    return [*_findings_now(settings, tree), *engine_findings(kept, settings.models.providers)]


def _findings_now(settings: EdgeSettings, tree: Tree) -> list[Finding]:
    limit_c = settings.costs.heat_limit_c
    try:
        now = read_twice(device_sensors(settings), _BETWEEN_S)
        zones = read_in_time(tree, partial(thermal_zones, tree))
    except DeadlineExceededError as error:
        advice = "until then no guard of heat, battery or memory acts; edge-agent doctor says when it is well again"
        return [Finding("hardware", State.SLOW, error.message, advice)]
    return [
        sensor_finding(now, limit_c),
        *limit_findings(zones, now, limit_c),
        Finding(
            "power", State.OK, f"{describe(now.device_power_w)}{' W' if known(now.device_power_w) is not None else ''}"
        ),
    ]


def sensor_finding(now: Snapshot, heat_limit_c: float) -> Finding:
    """Returns whether heat or the supply slows the device down; a missing sensor is not a fault.

    Args:
        now: one reading.
        heat_limit_c: that the device should stay below.
    """
    causes = [cause for cause, reading in now.throttling.items() if measured(reading) == 1]
    if causes:
        return Finding(
            "hardware",
            State.SLOW,
            f"it is held back now: {', '.join(causes)}",
            "see to its supply and cooling; edge-agent hardware shows its sensors",
        )
    hottest_c = measured(now.hottest_c)
    if hottest_c is None:
        return Finding("hardware", State.OK, f"temperature {describe(now.hottest_c)}")
    if hottest_c >= heat_limit_c:
        advice = "see to its cooling, or raise costs.heat_limit_c"
        return Finding("hardware", State.SLOW, f"{hottest_c:.0f} C, and the limit is {heat_limit_c:g} C", advice)
    return Finding("hardware", State.OK, f"{hottest_c:.0f} C")


def limit_findings(zones: Sequence[ThermalZone], now: Snapshot, heat_limit_c: float) -> list[Finding]:
    """Returns whether the kernel throttles before the agent acts on heat.

    Args:
        zones: from the kernel; the limit of a zone that is warmer than its limit now is ignored.
        now: one reading.
        heat_limit_c: that the device should stay below.
    """
    early = [
        (zone.passive_c, zone.name)
        for zone in zones
        if zone.passive_c is not None
        and zone.passive_c <= heat_limit_c
        and (warmth_c := measured(now.temperature_c.get(zone.name, _NO_SENSOR))) is not None
        and warmth_c < zone.passive_c
    ]
    if not early:
        return []
    from_c, zone = min(early)
    detail = f"the kernel throttles from {from_c:g} C ({zone}), and the agent acts by {heat_limit_c:g} C"
    return [Finding("heat limit", State.SLOW, detail, f"set costs.heat_limit_c = {from_c - _BELOW_C:g}, or less")]


def engine_findings(kept: Catalogue | None, providers: tuple[str, ...]) -> list[Finding]:
    """Returns configured providers that failed their trial, and working ones that are not configured.

    Args:
        kept: the stored catalogue; None if there is none.
        providers: of the settings.
    """
    tried = [engine for name in providers if kept is not None and (engine := kept.engine("onnx", name)) is not None]
    idle = [
        Finding(
            engine.name, State.OK, "works here, and models.providers does not have it; edge-agent profile tells more"
        )
        for engine in (kept.engines if kept is not None else ())
        if engine.runtime == "onnx" and engine.works and engine.name not in providers
    ]
    return idle + [
        Finding(
            engine.name,
            State.SLOW,
            f"did not run a trial model: {engine.reason}",
            "repair its installation and try again (edge-agent hardware --measure), or set models.providers",
        )
        for engine in tried
        if not engine.works
    ]
