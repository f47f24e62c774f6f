"""A device's twin: what the fleet desires of it, and what it reports. JSON, over retained MQTT topics or HTTP.

Desired documents are numbered for each device, so that an old one that comes late is known as old. Neither document is
a proof of anything: what a device installs is what signed metadata names, whatever its twin desires, and what it
reports is its own word. A reader ignores fields that it does not know, so that a newer writer is still understood.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from msgspec import Meta, Struct

from firstline_core.fleet.profiling import REQUESTS, DesiredProfile, Profiling
from firstline_core.fleet.update import UpdateState
from firstline_core.hardware.catalogue import Catalogue
from firstline_core.protocol.json_document import read_json_document
from firstline_core.storage.artefact import Sha256
from firstline_core.types import Name

FORMAT = 1
LIMIT_BYTES = 64 * 1024
_MODELS = 64
_WITHDRAWN = 8
UPDATES = 64
"""Most updates that a report tells of."""
_MINUTES_PER_WEEK = 7 * 24 * 60

Version = Annotated[int, Meta(ge=1, le=2**53)]
RolloutId = Annotated[str, Meta(max_length=64)]
Sentence = Annotated[str, Meta(max_length=500)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
_Minute = Annotated[int, Meta(ge=0, lt=_MINUTES_PER_WEEK)]
Withdrawn = Annotated[tuple[Sha256, ...], Meta(max_length=_WITHDRAWN)]
_T = TypeVar("_T", bound=Struct)


class Window(Struct, frozen=True):
    """When a staged update may be tried, each week; UTC, as devices need no time zones.

    Attributes:
        from_minute: of the week, 0 is Monday 00:00.
        minutes: how long it is open; it may reach over the week's end.
    """

    from_minute: _Minute
    minutes: Annotated[int, Meta(ge=1, le=_MINUTES_PER_WEEK)]

    def wait_s(self, wall_s: float) -> float:
        """Seconds until it is open; 0 while it is.

        Args:
            wall_s: seconds since 1970, which began on a Thursday.
        """
        minute = (wall_s / 60 + 3 * 24 * 60) % _MINUTES_PER_WEEK
        since = (minute - self.from_minute) % _MINUTES_PER_WEEK
        return 0.0 if since < self.minutes else (_MINUTES_PER_WEEK - since) * 60


class DesiredModel(Struct, frozen=True):
    """A bundle that the device shall run.

    Attributes:
        manifest_sha256: of the manifest, as signed metadata must have it too.
        rollout: which rollout brought it; "" where somebody set it by hand.
        not_before_s: wall time from which it may be tried; it is fetched before.
        expires_s: wall time after which it is no more begun; 0 for never.
        window: further bounds when it is tried; None for any time.
        attempt: grows where somebody has it tried again on a device that had given it up.
        undone: it is given up instead: what it replaced, or was to replace, runs again.
        withdrawn: what the fleet took back before, by sha256, the latest last: a device that was away then, and still
            runs one of them, goes back from it first.
    """

    name: Name
    version: Version
    manifest_sha256: Sha256
    rollout: RolloutId = ""
    not_before_s: Seconds = 0.0
    expires_s: Seconds = 0.0
    window: Window | None = None
    attempt: Annotated[int, Meta(ge=1, le=2**31)] = 1
    undone: bool = False
    withdrawn: Withdrawn = ()


class DesiredConfiguration(Struct, frozen=True):
    """Settings that travel as models do: a signed file with a version, see `configuration.py`; attributes as there."""

    name: Name
    version: Version
    sha256: Sha256
    rollout: RolloutId = ""
    not_before_s: Seconds = 0.0
    expires_s: Seconds = 0.0
    window: Window | None = None
    attempt: Annotated[int, Meta(ge=1, le=2**31)] = 1
    undone: bool = False
    withdrawn: Withdrawn = ()


class Brake(Struct, frozen=True):
    """The whole fleet escalates less; `status` of each device says why.

    Attributes:
        escalations_per_hour: rows that this device may escalate; 0 is none.
        until_s: wall time at which it ends by itself; 0 for not before it is lifted.
    """

    escalations_per_hour: Annotated[float, Meta(ge=0, le=1e12)]
    reason: Sentence
    until_s: Seconds = 0.0


class Desired(Struct, frozen=True):
    """What the fleet wants of one device.

    Attributes:
        revision: grows with each change, for this device.
        models: at most one version of each name; a bundle that is not named stays as it is.
        profiles: bundles to be measured, each named once; agents of before there were such requests pass over it.
    """

    revision: Annotated[int, Meta(ge=0, le=2**53)]
    models: Annotated[tuple[DesiredModel, ...], Meta(max_length=_MODELS)] = ()
    configuration: DesiredConfiguration | None = None
    brake: Brake | None = None
    profiles: Annotated[tuple[DesiredProfile, ...], Meta(max_length=REQUESTS)] = ()
    format: int = FORMAT

    def __post_init__(self) -> None:
        names = [model.name for model in self.models]
        if len(set(names)) != len(names):
            raise ValueError("a model is desired in one version at a time")
        if len({each.bundle for each in self.profiles}) != len(self.profiles):
            raise ValueError("a bundle is to be measured once")


class RunningModel(Struct, frozen=True):
    """A bundle that answers on the device.

    Attributes:
        variant: which edge variant runs; "" where none does.
        edge_digest: of what really runs; "" likewise.
        full_digest: which full model its escalations name; "" where the bundle has none.
        certified: whether a valid certificate stands behind the answers that it keeps.
    """

    name: Name
    version: Version
    variant: Annotated[str, Meta(max_length=64)] = ""
    edge_digest: Annotated[str, Meta(max_length=64)] = ""
    full_digest: Annotated[str, Meta(max_length=64)] = ""
    certified: bool = False


class Update(Struct, frozen=True):
    """How an update stands.

    Attributes:
        what: "model" or "configuration".
        reason: code of an error, or another word for a program; "" while all goes well.
        message: a sentence for people, or "".
        received_bytes: of `total_bytes`, which is 0 while nobody knows.
        since_s: wall time of the device when it came into this state.
        tries: how often it was begun to be tried.
    """

    name: Name
    version: Version
    state: UpdateState
    what: Annotated[str, Meta(max_length=32)] = "model"
    rollout: RolloutId = ""
    reason: Annotated[str, Meta(max_length=64)] = ""
    message: Sentence = ""
    received_bytes: Annotated[int, Meta(ge=0)] = 0
    total_bytes: Annotated[int, Meta(ge=0)] = 0
    since_s: Seconds = 0.0
    tries: Annotated[int, Meta(ge=0)] = 0


class Reported(Struct, frozen=True):
    """What one device says of itself.

    Attributes:
        session: of the process; a last will that names another session is an old one.
        sequence: grows with each report of a session, so that a late one is known as late.
        revision: of the desired document that it knows; 0 for none.
        updates: of each name the latest, ended ones too.
        configuration: version of the settings that run; 0 where the device's own do.
        configuration_name: of those; "" likewise.
        configuration_sha256: of what was really read; likewise.
        braked: whether a brake holds.
        capabilities: what the needs of bundles are held against: runtimes, machine, free bytes.
        profiles: how far it is with each request that it knows of.
        hardware: what the device is; None until it has looked, and of devices from before they did.
    """

    session: Annotated[str, Meta(min_length=1, max_length=64)]
    sequence: Annotated[int, Meta(ge=0, le=2**53)]
    revision: Annotated[int, Meta(ge=0, le=2**53)] = 0
    models: Annotated[tuple[RunningModel, ...], Meta(max_length=_MODELS)] = ()
    updates: Annotated[tuple[Update, ...], Meta(max_length=UPDATES)] = ()
    configuration: Annotated[int, Meta(ge=0, le=2**53)] = 0
    configuration_name: Annotated[str, Meta(max_length=64)] = ""
    configuration_sha256: Annotated[str, Meta(max_length=64)] = ""
    braked: bool = False
    agent_version: Annotated[str, Meta(max_length=64)] = ""
    capabilities: Annotated[dict[str, str | int | float | bool | tuple[str, ...]], Meta(max_length=64)] = {}
    hardware: Catalogue | None = None
    profiles: Annotated[tuple[Profiling, ...], Meta(max_length=REQUESTS)] = ()
    format: int = FORMAT


def withdrawn_after(said: DesiredModel | None, wanted: Sha256) -> Withdrawn:
    """What was taken back by the time that a device is told something else than it was told before."""
    if said is None:
        return ()
    before = (*said.withdrawn, said.manifest_sha256) if said.undone else said.withdrawn
    return tuple(dict.fromkeys(each for each in before if each != wanted))[-_WITHDRAWN:]


def read_document(content: bytes, kind: type[_T], where: str) -> _T:
    """Reads one of the fleet's documents.

    Args:
        content: JSON, at most `LIMIT_BYTES`.
        kind: `Desired`, `Reported` or `telemetry.Telemetry`.
        where: whence it came, for the error.

    Raises:
        ProtocolError: too long, not JSON, not such a document, or of a newer format.
    """
    return read_json_document(
        content, kind, where=where, limit_bytes=LIMIT_BYTES, known=FORMAT, fault="does not say what it must"
    )
