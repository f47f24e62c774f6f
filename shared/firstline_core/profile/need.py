"""Memory and cores that a point needs, estimated before it is measured."""

from __future__ import annotations

from msgspec import Struct

from firstline_core.bundle.manifest import Model
from firstline_core.hardware.readings import measured
from firstline_core.profile.profile import Key, Profile

LOADING_COPIES = 3
"""While ONNX Runtime loads a model, memory holds the file, the parsed model and the prepared weights."""


class Need(Struct, frozen=True):
    """Needs of one point.

    Attributes:
        point: its name.
        memory_bytes: to load the model.
        cores: that its runs keep busy.
        heats: whether it is measured hot and does not wait to cool.
    """

    point: str
    memory_bytes: float
    cores: float
    heats: bool = False


def need(key: Key, model: Model, profile: Profile | None, usable_cores: float) -> Need:
    """Returns the needs of a point.

    Args:
        key: of the point.
        model: that it measures.
        profile: earlier points; None if there are none.
        usable_cores: of the machine.
    """
    cores = min(float(key.threads), usable_cores) if key.threads else usable_cores
    name = f"{key.variant}, {key.provider}, threads {key.threads}, batch {key.batch}, {key.condition}"
    return Need(name, loading_bytes(model, profile), cores, key.condition == "sustained")


def loading_bytes(model: Model, profile: Profile | None) -> float:
    """Returns the memory that loading a model takes: the measured peak, else an estimate by its files."""
    points = profile.points if profile is not None else ()
    own = (point for point in points if point.key.model_digest == model.digest and point.key.of_one_row)
    peaks = (measured(point.peak_memory_bytes) for point in own)
    return max((peak for peak in peaks if peak is not None), default=LOADING_COPIES * files_bytes(model))


def files_bytes(model: Model) -> int:
    """Returns the size of a model's artefacts together."""
    return sum(artefact.size_bytes for artefact in model.artefacts)
