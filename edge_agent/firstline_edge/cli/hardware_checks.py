"""Doctor's look at the device itself: does it throttle now, and do the configured providers really work?"""

from __future__ import annotations

import time
from pathlib import Path

from firstline_core.hardware.catalogue import Catalogue
from firstline_core.hardware.readings import measured
from firstline_core.hardware.sensors.snapshot import Snapshot, told
from firstline_core.hardware.tree import Tree
from firstline_edge.cli.findings import Finding, State
from firstline_edge.hardware.room import sensors_of
from firstline_edge.hardware.surveyor import Surveyor
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import hardware_path


def hardware_findings(settings: EdgeSettings) -> list[Finding]:
    """One reading of the sensors, and what was measured before."""
    now = sensors_of(settings).read(time.monotonic())
    folder = settings.state_dir
    kept = Surveyor(Tree(Path(settings.hardware.root)), folder, hardware_path(folder)).kept()
    return [sensor_finding(now, settings.costs.heat_limit_c), *engine_findings(kept, settings.models.providers)]


def sensor_finding(now: Snapshot, heat_limit_c: float) -> Finding:
    """Whether heat or the supply slow it down; that nothing says so is no fault.

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
        return Finding("hardware", State.OK, f"temperature {told(now.hottest_c)}")
    if hottest_c >= heat_limit_c:
        advice = "see to its cooling, or raise costs.heat_limit_c"
        return Finding("hardware", State.SLOW, f"{hottest_c:.0f} C, and the limit is {heat_limit_c:g} C", advice)
    return Finding("hardware", State.OK, f"{hottest_c:.0f} C")


def engine_findings(kept: Catalogue | None, providers: tuple[str, ...]) -> list[Finding]:
    """Configured providers that were tried here and did not work.

    Args:
        kept: what was measured; None where nothing was.
        providers: of the settings.
    """
    tried = [engine for name in providers if kept is not None and (engine := kept.engine("onnx", name)) is not None]
    return [
        Finding(
            engine.name,
            State.SLOW,
            f"did not run a trial model: {engine.reason}",
            "repair its installation and try again (edge-agent hardware --measure), or set models.providers",
        )
        for engine in tried
        if not engine.works
    ]
