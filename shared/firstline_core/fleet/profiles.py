"""The HTTP interface of the profiles that a gateway stores: addresses, requests and answers. No I/O.

The gateway stores the newest profile per bundle, version and machine. The digests of its points say which models it is
valid for.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import asdict, replace

from firstline_core.fleet.registry import Version
from firstline_core.fleet.twin import DesiredProfile, ProfileScope, ProfilingState
from firstline_core.profile.profile import LIMIT_BYTES, Profile
from firstline_core.types import Name, Sha256

PROFILES_PATH = "/fleet/v1/profiles"
"""GET lists `ProfileEntry`s; `profile_path` returns one profile as measured."""
OWN_PROFILES_PATH = "/fleet/v1/twin/profiles"
"""A device PUTs a profile of itself to OWN_PROFILES_PATH/{bundle}/versions/{version}."""
BODY_BYTES = LIMIT_BYTES
MACHINE_VERSIONS = 8
"""Number of versions of a bundle that are stored per machine, latest first."""


class ProfileEntry(Struct, frozen=True):
    """A stored profile.

    Attributes:
        machine: name of a device, or the name given to another machine.
        fingerprint: of the machine's hardware and software; machines with the same one are equally fast.
        board: description of the machine; "" if unknown.
        points: number of measured points.
        refused: number of points that could not be measured.
        models: digests of the measured models.
        made_s: wall time of the latest point, by the machine's clock.
        kept_s: wall time when the gateway stored it.
        by: the principal that uploaded it; only `device:NAME` is the device itself.
        size_bytes: of the document.
        sha256: of the document.
    """

    bundle: Name
    version: Version
    machine: Name
    fingerprint: Annotated[str, Meta(max_length=64)]
    board: Annotated[str, Meta(max_length=200)]
    points: int
    refused: int
    models: tuple[Sha256, ...]
    made_s: float
    kept_s: float
    by: str
    size_bytes: int
    sha256: Sha256

    @property
    def place(self) -> tuple[str, int, str]:
        """Returns what identifies the profile, in the order of pages."""
        return self.bundle, self.version, self.machine


class ProfilePage(Struct, frozen=True):
    """A page of profiles, sorted by bundle, version and machine.

    `after` is the cursor of the next page, None at the end.
    """

    profiles: tuple[ProfileEntry, ...]
    after: str | None


class NewProfileRequest(ProfileScope, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request that a device measures a bundle. Defaults are not sent."""

    def desired(self, id_: str) -> DesiredProfile:
        """Returns the request in the form that the device receives."""
        return DesiredProfile(**asdict(self), id=id_)

    def is_same(self, other: DesiredProfile) -> bool:
        """Returns whether another request asks for the same."""
        return replace(other, id="-") == self.desired("-")


class ProfileRequest(Struct, frozen=True):
    """The state of a request.

    Attributes:
        desired: the request as the device receives it.
        version: that it measures or has measured; 0 while unknown.
        done: measured points, of `total`, which is 0 while unknown.
        message: one sentence, or "".
        new: whether this call created it.
    """

    device: Name
    desired: DesiredProfile = field(name="asked")
    state: ProfilingState
    version: int = 0
    done: int = 0
    total: int = 0
    message: str = ""
    new: bool = False


class ProfileRequests(Struct, frozen=True):
    """The requests of one device whose profiles are not stored yet."""

    requests: tuple[ProfileRequest, ...]


def requests_path(device: str) -> str:
    """The address of a device's requests: GET lists, POST creates, DELETE requests_path/{bundle} withdraws one."""
    return f"/fleet/v1/devices/{device}/profiles"


def profile_path(bundle: str, version: int, machine: str) -> str:
    """Returns the address of one profile, for names that need no quoting."""
    return f"{PROFILES_PATH}/{bundle}/versions/{version}/machines/{machine}"


def own_profile_path(bundle: str, version: int) -> str:
    """Returns the address to which a device uploads its own profile."""
    return f"{OWN_PROFILES_PATH}/{bundle}/versions/{version}"


def entry_of(profile: Profile, content: bytes) -> ProfileEntry:
    """Returns the entry of a profile that is not stored yet.

    Args:
        profile: the decoded document.
        content: the document.
    """
    hardware = profile.hardware
    return ProfileEntry(
        profile.bundle,
        profile.version,
        profile.machine,
        fingerprint=profile.fingerprint,
        board=(hardware.board or hardware.processor.model) if hardware is not None else "",
        points=len(profile.points),
        refused=len(profile.refused),
        models=tuple(dict.fromkeys(point.key.model_digest for point in profile.points)),
        made_s=profile.made_s,
        kept_s=0.0,
        by="",
        size_bytes=len(content),
        sha256=sha256(content).hexdigest(),
    )
