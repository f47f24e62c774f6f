"""Profiles of this device: measured times of its models, available before they are loaded.

A point is valid for the digest of its model, the fingerprint of its machine, its provider and its number of threads.
Others are ignored, and the model is timed when it is loaded. No error here is fatal.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.manifest import Model
from firstline_core.bundle.store import Bundle
from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.survey import fingerprint
from firstline_core.planning.plan import quickest
from firstline_core.profile.files import bundled_profiles, profile_of_machine
from firstline_core.profile.profile import Point, PointKey, Profile, of_one_row
from firstline_core.runtime.select import RUNTIMES, RuntimeOptions
from firstline_core.telemetry.logs import logger
from firstline_edge.state import StatePaths

log = logger(__name__)

_ANEW = "It is ignored; edge-agent profile create {name} measures again."


class Profiles:
    """The profiles that are valid on this device.

    Args:
        state_dir: contains the device's own profiles.
        root: where the kernel's files begin.

    Attributes:
        problems: damaged files with the error, in sentences.
    """

    def __init__(self, state_dir: Path, root: Path) -> None:
        self._state_dir = state_dir
        self._root = root
        self.problems: dict[Path, str] = {}

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of this machine; takes some ten milliseconds, and is computed only if there is a profile."""
        return fingerprint(Tree(self._root))

    def of(self, bundle: Bundle) -> Profile | None:
        """Returns the device's own profile, else one of this machine in the bundle; None if there is neither."""
        name = bundle.manifest.name
        own = StatePaths(self._state_dir).device_profile_path(name)
        paths = [path for path in (own, *bundled_profiles(bundle.path, name)) if path.is_file()]
        before = self.problems.items()
        self.problems = {path: problem for path, problem in before if path.is_file() and path not in paths}
        found, damaged = profile_of_machine(paths, self.fingerprint) if paths else (None, {})
        for path, message in damaged.items():
            self.problems[path] = f"{message} {_ANEW.format(name=name)}"
            log.warning("profile damaged", path=str(path), error=message)
        if paths and found is None and len(damaged) < len(paths):
            log.info("profile of this machine missing", model=name, profiles=[str(path) for path in paths])
        return found


def fastest_options(profile: Profile, options: RuntimeOptions, model: Model) -> RuntimeOptions:
    """Returns the fastest provider and number of threads for a variant; `options` if it was not measured.

    Args:
        profile: of this machine.
        options: as configured.
        model: the variant.
    """
    points = of_one_row(profile.points, model.digest)
    if not points:
        return options
    key = quickest(points).key
    providers = options.providers if RUNTIMES[model.runtime].only_provider else (key.provider,)
    return RuntimeOptions(providers, key.threads, options.decoding)


def known_point(profile: Profile, loaded: LoadedModel, options: RuntimeOptions) -> Point | None:
    """Returns the point of this model as it runs here, one row a query; None if it was not measured like this.

    Args:
        profile: of this machine.
        loaded: the model.
        options: with which it was loaded.
    """
    runs_on = loaded.runtime.provider
    provider = RUNTIMES[loaded.model.runtime].only_provider or runs_on
    wanted = PointKey(loaded.model.id, loaded.digest, provider, options.threads, 1)
    point = next((one for one in profile.points if one.key == wanted), None)
    measured = point is not None and point.ran_on == runs_on and point.query.quantiles_ms[0] > 0
    return point if measured else None
