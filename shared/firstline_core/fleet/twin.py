"""The twin of a device: its desired state and its reported state. JSON, over retained MQTT topics or HTTP.

Desired documents have a revision per device, so that a late one is recognised. Neither document proves anything: a
device installs only what signed metadata names, and its report is a claim. A reader ignores unknown fields, so that it
understands a newer writer.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeVar

from msgspec import Meta, Struct

from firstline_core.fleet.update import UpdateState
from firstline_core.hardware.catalogue import Catalogue
from firstline_core.storage.structs import FORMAT, read_json_document
from firstline_core.types import Name, Sha256

LIMIT_BYTES = 64 * 1024
_MODELS = 64
_WITHDRAWN = 8
UPDATES = 64
"""Maximum number of updates in a report."""
_MINUTES_PER_WEEK = 7 * 24 * 60

Version = Annotated[int, Meta(ge=1, le=2**53)]
RolloutId = Annotated[str, Meta(max_length=64)]
SENTENCE_CHARACTERS = 500
Sentence = Annotated[str, Meta(max_length=SENTENCE_CHARACTERS)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
_Minute = Annotated[int, Meta(ge=0, lt=_MINUTES_PER_WEEK)]
Withdrawn = Annotated[tuple[Sha256, ...], Meta(max_length=_WITHDRAWN)]
REQUESTS = 8
"""Maximum number of requests per device."""

_RequestId = Annotated[str, Meta(min_length=1, max_length=64)]
_ProfiledVersion = Annotated[int, Meta(ge=0, le=2**53)]
_Count = Annotated[int, Meta(ge=0, le=2**31)]
_T = TypeVar("_T", bound=Struct)


class Window(Struct, frozen=True):
    """The weekly window in which a staged update may be tried, in UTC.

    Attributes:
        from_minute: of the week, 0 is Monday 00:00.
        minutes: length; the window may extend over the end of the week.
    """

    from_minute: _Minute
    minutes: Annotated[int, Meta(ge=1, le=_MINUTES_PER_WEEK)]

    def wait_s(self, wall_s: float) -> float:
        """Returns the seconds until the window opens; 0 while it is open.

        Args:
            wall_s: seconds since 1970 (1 January 1970 was a Thursday).
        """
        minute = (wall_s / 60 + 3 * 24 * 60) % _MINUTES_PER_WEEK
        since = (minute - self.from_minute) % _MINUTES_PER_WEEK
        return 0.0 if since < self.minutes else (_MINUTES_PER_WEEK - since) * 60


class DesiredVersion(Struct, frozen=True):
    """A signed version that the device must use.

    Attributes:
        sha256: of the manifest, or of the configuration; signed metadata must have the same.
        rollout: id of the rollout that set it; "" for a manual change.
        not_before_s: earliest wall time of the trial; the files are fetched earlier.
        expires_s: wall time after which the update does not start; 0 for never.
        window: also bounds the time of the trial; None for any time.
        attempt: increases when a person retries the update on a device that has given it up.
        undone: roll back instead: the version that it replaced, or would have replaced, is used again.
        withdrawn: sha256 of the versions that the fleet withdrew before, latest last. A device that was offline then,
            and still uses one of them, rolls it back first.
    """

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


class DesiredModel(DesiredVersion, frozen=True, rename={"sha256": "manifest_sha256"}):
    """A bundle that the device must run."""


class DesiredConfiguration(DesiredVersion, frozen=True):
    """Settings that the device must use, see `configuration.py`."""


class Brake(Struct, frozen=True):
    """A limit on the escalations of the whole fleet; `status` of each device shows the reason.

    Attributes:
        escalations_per_hour: rows that this device may escalate; 0 forbids escalation.
        until_s: wall time at which it ends; 0 if it only ends when it is lifted.
    """

    escalations_per_hour: Annotated[float, Meta(ge=0, le=1e12)]
    reason: Sentence
    until_s: Seconds = 0.0


class ProfilingState(StrEnum):
    """The progress of a request."""

    SENT = "sent"
    """The device has not acknowledged it."""
    WAITING = "waiting"
    """The device works on other requests first."""
    MEASURING = "measuring"
    """Its points are being measured."""
    UPLOADING = "uploading"
    """All points are measured; the gateway does not have the profile yet."""
    DONE = "done"
    """The gateway has the profile, and removes the request."""
    REFUSED = "refused"
    """The device refuses or cannot."""

    @property
    def ended(self) -> bool:
        return self in (ProfilingState.DONE, ProfilingState.REFUSED)


class ProfileScope(Struct, frozen=True):
    """The scope of a measurement on a device; the device's settings decide the rest.

    Attributes:
        version: 0 for the current version when the device starts.
        quick: measure in a fifth of the time.
    """

    bundle: Name
    version: _ProfiledVersion = 0
    quick: bool = False


class DesiredProfile(ProfileScope, frozen=True, kw_only=True):
    """A bundle that the device must measure, under the id of the request. Agents ignore unknown fields."""

    id: _RequestId


class Profiling(Struct, frozen=True):
    """The progress of a device with a request.

    Attributes:
        id: of the request.
        version: that is measured; 0 while unknown.
        done: measured points, of `total`, which is 0 while unknown.
        message: one sentence, or "".
    """

    id: _RequestId
    bundle: Name
    state: ProfilingState
    version: _ProfiledVersion = 0
    done: _Count = 0
    total: _Count = 0
    message: Sentence = ""


class Desired(Struct, frozen=True):
    """The desired state of one device.

    Attributes:
        revision: increases with each change for this device.
        models: at most one version per name; bundles that are not named do not change.
        profiles: bundles to be measured, each named once, until the gateway has the profile. A new id for the same
            bundle is a new request.
        audits: bundles whose edge answers are audited without a certificate too, because a rollout compares them; ""
            for all bundles.
        answers: whether the device reports the promises that end; see `telemetry.EndedPromise`.
    """

    revision: Annotated[int, Meta(ge=0, le=2**53)]
    models: Annotated[tuple[DesiredModel, ...], Meta(max_length=_MODELS)] = ()
    configuration: DesiredConfiguration | None = None
    brake: Brake | None = None
    profiles: Annotated[tuple[DesiredProfile, ...], Meta(max_length=REQUESTS)] = ()
    audits: Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=_MODELS)] = ()
    answers: bool = False
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
        variant: id of the edge variant that runs; "" if none runs.
        edge_digest: of that variant; "" if none runs.
        full_digest: of the full model that its escalations name; "" for a bundle without one.
        certified: whether a valid certificate covers the edge answers.
    """

    name: Name
    version: Version
    variant: Annotated[str, Meta(max_length=64)] = ""
    edge_digest: Annotated[str, Meta(max_length=64)] = ""
    full_digest: Annotated[str, Meta(max_length=64)] = ""
    certified: bool = False


class Update(Struct, frozen=True):
    """The state of an update.

    Attributes:
        what: an `UpdateKind`; other values come from newer devices.
        reason: code of an error, or another machine-readable word; "" without a problem.
        message: one sentence, or "".
        received_bytes: of `total_bytes`, which is 0 while it is unknown.
        since_s: wall time of the device when this state began.
        tries: starts of the agent during the trial; before it, tests during which the agent ended.
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
    """The state that one device reports.

    Attributes:
        session: id of the process; a last will with another session is outdated.
        sequence: increases with each report of a session, so that a late one is recognised.
        revision: of the desired document that the device has; 0 for none.
        updates: the latest per name, including finished ones.
        configuration: version of the fleet's settings in use; 0 if the device uses its own.
        configuration_name: their name; "" if the device uses its own.
        configuration_sha256: of the file that was read; "" if the device uses its own.
        braked: whether a brake is in force.
        audits_off: name of the setting that switches the device's audits off, e.g. "audit.per_hour"; "" if it audits.
        capabilities: for people: runtimes, machine, memory, and free disk space when the process started.
        profiles: progress of each profiling request.
        hardware: of the device; None until it was surveyed.
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
    audits_off: Annotated[str, Meta(max_length=64, pattern="^[a-z_.]*$")] = ""
    agent_version: Annotated[str, Meta(max_length=64)] = ""
    capabilities: Annotated[dict[str, str | int | float | bool | tuple[str, ...]], Meta(max_length=64)] = {}
    hardware: Catalogue | None = None
    profiles: Annotated[tuple[Profiling, ...], Meta(max_length=REQUESTS)] = ()
    format: int = FORMAT


def withdrawn_after(desired: DesiredVersion | None, wanted: Sha256) -> Withdrawn:
    """Returns the withdrawn digests after the desired version of a device changes."""
    if desired is None:
        return ()
    before = (*desired.withdrawn, desired.sha256) if desired.undone else desired.withdrawn
    return tuple(dict.fromkeys(each for each in before if each != wanted))[-_WITHDRAWN:]


def read_document(content: bytes, kind: type[_T], where: str) -> _T:
    """Reads one of the fleet's documents.

    Args:
        content: JSON, at most `LIMIT_BYTES`.
        kind: `Desired`, `Reported` or `telemetry.Telemetry`.
        where: its origin, for the error.

    Raises:
        ProtocolError: too long, not JSON, not such a document, or of a newer format.
    """
    return read_json_document(content, kind, where, LIMIT_BYTES)
