"""The models that the fleet installed: each has a folder with two slots (`a` and `b`) and a state file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias

from firstline_core.bundle.store import key_at
from firstline_core.clock import Clock
from firstline_core.errors import UnknownModelError, UpdateError
from firstline_core.fleet.twin import DesiredModel
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.updates.installed import Installed, InstalledFile
from firstline_edge.models.loading import bundle_paths
from firstline_edge.models.models import DeviceModel
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import StatePaths

log = logger(__name__)

STATE = "state"
"""Name of the state file in a model's folder."""

Slot = Literal["a", "b"]
"""A folder of a model's own."""

ModelFile: TypeAlias = InstalledFile[Slot, DesiredModel]


class ModelStore:
    """The state of all models of one device.

    Args:
        folder: one folder for each model.
        repair: see `InstalledFile`.
    """

    def __init__(self, folder: Path, *, repair: bool = True) -> None:
        self.folder = folder
        self._repair = repair
        self._files: dict[str, ModelFile] = {}
        self._names = {path.name for path in folder.iterdir() if path.is_dir()} if folder.is_dir() else set[str]()

    @property
    def names(self) -> list[str]:
        """The models that have, or should have had, an update."""
        return sorted(self._names)

    def file(self, name: str) -> ModelFile:
        """Returns the state of a model, which is empty before its first update; for errors see `InstalledFile`."""
        if name not in self._files:
            self._names.add(name)
            kind = Installed[Slot, DesiredModel]
            self._files[name] = InstalledFile(self.folder / name / STATE, kind, repair=self._repair)
        return self._files[name]

    def known(self, name: str) -> ModelFile:
        """Returns the state of a model that the fleet has updated; raises UnknownModelError for another one."""
        if name not in self._names:
            raise UnknownModelError(
                f"No update of a model {name!a} is known on this device; see `edge-agent update list`."
            )
        return self.file(name)

    def start(self, wall_s: float) -> None:
        """Counts a start of the agent for every model on trial."""
        for name in self.names:
            self.file(name).start(wall_s)

    def path(self, name: str, slot: Slot | None) -> Path | None:
        """Returns a slot's folder; None for the bundle that the device was set up with."""
        return self.folder / name / slot if slot else None

    def running(self, name: str) -> Path | None:
        """Returns the folder of the slot that runs; None for the bundle that the device was set up with."""
        return self.path(name, self.file(name).state.running)


def current_bundles(settings: EdgeSettings) -> list[Path]:
    """Returns the bundles that the agent uses: the configured ones, or those of the fleet that replace them.

    Raises:
        IntegrityError: the state of an update is damaged.
        OSError: the state of an update cannot be read.
    """
    store = ModelStore(StatePaths(settings.state_dir).updates_path, repair=False)
    names = store.names if settings.fleet.enabled else []
    installed = {name: path for name in names if (path := store.running(name)) is not None}
    configured = bundle_paths(settings.models.folders)
    kept = [path for path in configured if (key := key_at(path)) is None or key.name not in installed]
    return [*kept, *installed.values()]


def load_installed(
    store: ModelStore, load_bundle: Callable[[Path], DeviceModel], clock: Clock
) -> dict[Path, DeviceModel]:
    """Opens the models that run from a slot when the agent starts; one that cannot run is rolled back.

    Args:
        store: the installed models.
        load_bundle: opens, loads and measures one bundle.
        clock: for the time of a rollback.

    Returns:
        The models by the folders of their bundles.
    """
    opened: dict[Path, DeviceModel] = {}
    for name in store.names:
        while (path := store.running(name)) is not None:
            try:
                device_model = load_bundle(path)
                if device_model.edge is None and device_model.manifest.edge:
                    raise UpdateError(device_model.problem)
                opened[path] = device_model
                break
            except UpdateError as error:
                log.error("installed model not runnable", model=name, path=str(path), error=error.message)
                store.file(name).roll_back("damaged", error.message, clock.wall_s())
    return opened
