"""A document that is uploaded as a profile."""

from __future__ import annotations

from hashlib import sha256

from msgspec import Struct

from firstline_core.errors import ProtocolError, RequestError
from firstline_core.fleet.profiles import ProfileEntry, entry_of
from firstline_core.profile.profile import Profile, decode
from firstline_gateway.profiles.records import Place


class UploadedProfile(Struct, frozen=True):
    """A profile as it came, with the digest of its bytes."""

    profile: Profile
    content: bytes
    sha256: str

    def entry(self, by: str, now_s: float) -> ProfileEntry:
        """Returns the entry of the profile, uploaded by a principal at a wall time."""
        return entry_of(self.profile, self.content, self.sha256, by=by, now_s=now_s)


def read_uploaded(content: bytes, place: Place) -> UploadedProfile:
    """Reads what was sent to the address of a place; megabytes take a while, so not on an event loop.

    Raises:
        RequestError: it is not a profile, or has another address.
    """
    try:
        profile = decode(content, "The body")
    except ProtocolError as error:
        raise RequestError(error.message) from error
    if (found := (profile.bundle, profile.version, profile.machine)) != place:
        told, wanted = (f"{bundle} version {version} on {machine}" for bundle, version, machine in (found, place))
        raise RequestError(f"The body is a profile of {told}; its address is that of {wanted}.")
    return UploadedProfile(profile, content, sha256(content).hexdigest())
