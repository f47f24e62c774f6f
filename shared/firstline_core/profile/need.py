"""What a machine has to have for a point to be measured on it, known before it is."""

from __future__ import annotations

from msgspec import Struct

from firstline_core.bundle.manifest import Model
from firstline_core.hardware.readings import measured
from firstline_core.profile.profile import Key, Profile

LOADING_COPIES = 3
"""While ONNX Runtime loads a model, its file, what is parsed of it and the weights as they are used are all there."""


class Need(Struct, frozen=True):
    """Of one point.

    Attributes:
        point: its name.
        memory_bytes: that loading the model takes.
        cores: that its runs keep busy.
        heats: it is to be measured hot, so that heat is no reason to wait.
    """

    point: str
    memory_bytes: float
    cores: float
    heats: bool = False


def need(key: Key, model: Model, profile: Profile | None, usable_cores: float) -> Need:
    """What a point needs.

    Args:
        key: of the point.
        model: that it measures.
        profile: what is known of it so far.
        usable_cores: of the machine.
    """
    cores = min(float(key.threads), usable_cores) if key.threads else usable_cores
    name = f"{key.variant}, {key.provider}, threads {key.threads}, batch {key.batch}, {key.condition}"
    return Need(name, loading_bytes(model, profile), cores, key.condition == "sustained")


def loading_bytes(model: Model, profile: Profile | None) -> float:
    """Memory that loading it takes, at least: the peak that was measured, else by its files."""
    points = profile.points if profile is not None else ()
    own = (point for point in points if point.key.model_digest == model.digest and point.key.of_one_row)
    peaks = (measured(point.peak_memory_bytes) for point in own)
    return max((peak for peak in peaks if peak is not None), default=LOADING_COPIES * files_bytes(model))


def files_bytes(model: Model) -> int:
    """Of a model's artefacts together."""
    return sum(artefact.size_bytes for artefact in model.artefacts)
