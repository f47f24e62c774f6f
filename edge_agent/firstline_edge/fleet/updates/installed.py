"""Opens the models that the fleet installed, when the agent starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from firstline_core.clock import Clock
from firstline_core.errors import UpdateError
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.updates.history import History
from firstline_edge.models.held import HeldModel

log = logger(__name__)


def hold_installed(history: History, hold: Callable[[Path], HeldModel], clock: Clock) -> dict[Path, HeldModel]:
    """Opens the models that run from a slot; one that cannot run is rolled back to the previous one.

    Args:
        history: of this device's updates.
        hold: opens, loads and measures one bundle.
        clock: for when a model was rolled back.

    Returns:
        The models by the folders of their bundles.
    """
    found: dict[Path, HeldModel] = {}
    for name in history.names:
        while (path := history.path(name, history.pointer(name).slot)) is not None:
            try:
                held = hold(path)
                if held.edge is None and held.manifest.edge:
                    raise UpdateError(held.problem)
                found[path] = held
                break
            except UpdateError as error:
                log.error("an installed model cannot run", model=name, path=str(path), error=error.message)
                try:
                    history.give_up(name, "damaged", error.message, clock.wall_s())
                except OSError as refusal:
                    log.error("the rollback is not on the disk yet", model=name, error=str(refusal))
    return found
