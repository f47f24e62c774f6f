"""Times of batches from a profile of the executor's machine (`firstline_core.profile`)."""

from __future__ import annotations

from pathlib import Path

from firstline_core.bundle.manifest import Model
from firstline_core.errors import ConfigError, ProtocolError
from firstline_core.profile import profile
from firstline_core.storage.files import naming, read_limited


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
