"""Times of batches from a profile of the executor's machine (`firstline_core.profile`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from firstline_core.bundle.manifest import Model
from firstline_core.errors import ConfigError, ProtocolError
from firstline_core.profile import profile
from firstline_core.profile.files import bundled_profiles, profile_of_machine
from firstline_core.storage.files import naming, read_limited
from firstline_core.telemetry.logs import logger

log = logger(__name__)


def read(files: tuple[str, ...]) -> list[profile.Profile]:
    """Reads the profiles of an executor, one for each bundle.

    Raises:
        ConfigError: a file cannot be read or is not a profile.
    """
    found = []
    for file in files:
        with naming(f"The profile {file}"):
            content = read_limited(Path(file), profile.LIMIT_BYTES)
        try:
            found.append(profile.decode(content, file))
        except ProtocolError as error:
            raise ConfigError(error.message) from error
    return found


def profiles_near(bundle: Path, name: str, fingerprint: Callable[[], str]) -> list[profile.Profile]:
    """Returns the profile of this machine in or next to a bundle's folder; logs and skips unreadable ones.

    Args:
        bundle: its folder.
        name: of the bundle.
        fingerprint: returns that of this machine, `Catalogue.fingerprint`; called only if there is a profile.
    """
    files = list(bundled_profiles(bundle, name))
    if not files:
        return []
    found, damaged = profile_of_machine(files, fingerprint())
    for file, fault in damaged.items():
        log.warning("profile left out", path=str(file), error=fault)
    return [found] if found is not None else []


def batch_seconds(profiles: list[profile.Profile], model: Model, provider: str) -> dict[int, float]:
    """Returns the measured seconds of batches of one model, by their rows.

    Args:
        profiles: of the executor's machine; where two have the same point, the latter's holds.
        model: points of others say nothing of this one.
        provider: that runs it there; "" if it is unknown, which accepts the points of every provider.
    """
    return {
        point.key.batch: point.query.p50_ms / 1000
        for one in profiles
        for point in one.points
        if point.key.model_digest == model.digest
        and point.key.condition == "warm"
        and point.key.threads <= 1
        and provider in ("", point.key.provider)
        and point.query.p50_ms > 0  # 0 would give that executor everything
    }
