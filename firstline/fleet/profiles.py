"""Profiles stored by a gateway, and requests to devices to measure one."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from firstline.fleet.api import Api, read_limited
from firstline_core.fleet import profiles as wire
from firstline_core.profile.profile import LIMIT_BYTES, Profile, decode

_AT_ONCE = 200


class Profiles(Api):
    """See `Fleet.profiles`."""

    def all(self, bundle: str = "", machine: str = "") -> Iterator[wire.ProfileEntry]:
        """Yields the summaries of the stored profiles, by bundle, version and machine."""
        params = {"bundle": bundle, "machine": machine, "limit": _AT_ONCE}
        for page in self._pages(wire.PROFILES_PATH, wire.ProfilePage, params):
            yield from page.profiles

    def page(self, after: str = "", bundle: str = "", machine: str = "", limit: int = _AT_ONCE) -> wire.ProfilePage:
        """Returns the next page; `after` comes from the page before, "" for the first page."""
        params = {"after": after, "bundle": bundle, "machine": machine, "limit": limit}
        return self._send("GET", wire.PROFILES_PATH, wire.ProfilePage, params=params)

    def get(self, bundle: str, version: int, machine: str) -> Profile:
        """Returns one profile, as it was measured."""
        with self._stream("GET", _path(bundle, version, machine)) as reply:
            content = read_limited(reply.iter_bytes(), LIMIT_BYTES)
        return decode(content, f"What {self._url} answers")

    def put(self, profile: Profile) -> wire.ProfileEntry:
        """Stores a profile, in place of the earlier one of the same bundle, version and machine."""
        path = _path(profile.bundle, profile.version, profile.machine)
        return self._send("PUT", path, wire.ProfileEntry, profile)

    def remove(self, bundle: str, version: int, machine: str) -> None:
        """Deletes a stored profile."""
        self._send("DELETE", _path(bundle, version, machine), dict)

    def requests(self, device: str) -> tuple[wire.ProfileRequest, ...]:
        """Returns a device's requests to measure bundles that are not fulfilled, with their progress."""
        return self._send("GET", _requests(device), wire.ProfileRequests).requests

    def ask(self, device: str, request: wire.NewProfileRequest) -> wire.ProfileRequest:
        """Requests that a device measures a bundle; returns an existing request with its progress."""
        return self._send("POST", _requests(device), wire.ProfileRequest, request)

    def request(self, before: wire.ProfileRequest) -> wire.ProfileRequest | None:
        """Returns the current progress of a request; None if it is fulfilled, cancelled or replaced."""
        return next((one for one in self.requests(before.device) if one.desired.id == before.desired.id), None)

    def latest(self, bundle: str, machine: str) -> wire.ProfileEntry | None:
        """Returns the summary of the profile that was stored last; None if there is none."""
        return max(self.all(bundle, machine), key=lambda one: one.kept_s, default=None)

    def cancel(self, device: str, bundle: str) -> None:
        """Cancels a request."""
        self._send("DELETE", f"{_requests(device)}/{quote(bundle, safe='')}", dict)


def _requests(device: str) -> str:
    return wire.requests_path(quote(device, safe=""))


def _path(bundle: str, version: int, machine: str) -> str:
    return wire.profile_path(quote(bundle, safe=""), version, quote(machine, safe=""))
