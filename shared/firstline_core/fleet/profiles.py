"""Profiles in a gateway's keeping, in words of both sides: addresses, and what is asked and answered there. No I/O.

A profile is kept by bundle, version and machine: the newest of each. What in it holds is told by its points' digests.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from firstline_core.fleet.profiling import ENDED, DesiredProfile, ProfilingState, Providers, Share, Variants
from firstline_core.fleet.registry import Version
from firstline_core.profile.profile import LIMIT_BYTES, Profile
from firstline_core.storage.artefact import Sha256
from firstline_core.types import Name

PROFILES_PATH = "/fleet/v1/profiles"
"""GET lists `ProfileEntry`s; `profile_path` has one, as it was measured."""
OWN_PROFILES_PATH = "/fleet/v1/twin/profiles"
"""A device PUTs a profile of itself to OWN_PROFILES_PATH/{bundle}/versions/{version}."""
BODY_BYTES = LIMIT_BYTES
MACHINE_VERSIONS = 8
"""So many versions of a bundle are kept for each machine, those that were stored last."""


class ProfileEntry(Struct, frozen=True):
    """A profile that is kept.

    Attributes:
        machine: a device's name, or what somebody called another machine.
        fingerprint: of the machine's hardware and software; another machine of the same is as quick.
        board: what it is, for people; "" where nobody looked.
        points: how many were measured.
        refused: how many could not be.
        models: digests of those that were measured.
        made_s: wall time of the latest point, by the machine's clock.
        kept_s: wall time when it came here.
        by: the principal that brought it: only `device:NAME` is the device's own word.
        size_bytes: of the document.
        sha256: likewise.
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


class ProfilePage(Struct, frozen=True):
    """Profiles by bundle, version and machine; `after` is what to ask for next (`?after=`), None at the end."""

    profiles: tuple[ProfileEntry, ...]
    after: str | None


class ProfileAsked(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a device is to measure; attributes as `DesiredProfile` has them.

    What is not said is not sent: a gateway of before refuses only what it does not know.
    """

    bundle: Name
    version: Annotated[int, Meta(ge=0, le=2**53)] = 0
    quick: bool = False
    threads: Annotated[tuple[Annotated[int, Meta(ge=0, le=1024)], ...], Meta(max_length=16)] = ()
    batches: Annotated[tuple[Annotated[int, Meta(ge=1, le=1024)], ...], Meta(max_length=16)] = ()
    anew: bool = False
    variants: Variants = ()
    providers: Providers = ()
    throttled_share: Share = 0.0

    def desired(self, id_: str) -> DesiredProfile:
        """As the device hears it."""
        return DesiredProfile(id_, **asdict(self))

    def is_same(self, other: DesiredProfile) -> bool:
        """Whether that asks for the same."""
        return replace(other, id="-") == self.desired("-")


class ProfileRequest(Struct, frozen=True):
    """How a request stands.

    Attributes:
        asked: what the device is to do.
        version: that it measures, or has measured; 0 while it has not said.
        done: points, of `total`, which is 0 while it has not said.
        message: a sentence for people, or "".
        new: whether it was made by this very call.
        by: the principal that asks; "" where that is not known.
        asked_s: wall time when it did.
        until_s: wall time when the request ends, unless it was fulfilled.
    """

    device: Name
    asked: DesiredProfile
    state: ProfilingState
    version: int = 0
    done: int = 0
    total: int = 0
    message: str = ""
    new: bool = False
    by: str = ""
    asked_s: float = 0.0
    until_s: float = 0.0

    @property
    def ended(self) -> bool:
        """Whether nothing more comes of it."""
        return self.state in ENDED


class ProfileRequests(Struct, frozen=True):
    """All of one device."""

    requests: tuple[ProfileRequest, ...]


def requests_path(device: str) -> str:
    """Where a device's are: GET lists them, POST asks; DELETE requests_path/{bundle} takes one back."""
    return f"/fleet/v1/devices/{device}/profiles"


def profile_path(bundle: str, version: int, machine: str) -> str:
    """Where one profile is, for names that need no quoting."""
    return f"{PROFILES_PATH}/{bundle}/versions/{version}/machines/{machine}"


def own_profile_path(bundle: str, version: int) -> str:
    """Where a device puts its own."""
    return f"{OWN_PROFILES_PATH}/{bundle}/versions/{version}"


def entry_of(profile: Profile, content: bytes, sha256: str, *, by: str, now_s: float) -> ProfileEntry:
    """What is told of a profile.

    Args:
        profile: as it was read.
        content: the document.
        sha256: of it.
        by: who brought it.
        now_s: wall time.
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
        kept_s=now_s,
        by=by,
        size_bytes=len(content),
        sha256=sha256,
    )
