"""Stores profiles that people and devices upload. Changes by people are in the audit log, in the same transaction."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace
from sqlalchemy import Connection

from firstline_core.clock import Clock
from firstline_core.errors import ConflictError, NotFoundError, ProtocolError, RequestError
from firstline_core.fleet.profiles import ProfileEntry, ProfilePage, entry_of
from firstline_core.profile.profile import decode
from firstline_core.protocol.enrolment import device_principal
from firstline_core.telemetry.logs import logger
from firstline_gateway import audit_log
from firstline_gateway.fleet import devices
from firstline_gateway.profiles import records
from firstline_gateway.profiles.records import Place
from firstline_gateway.profiles.requests import desire_profiles, without
from firstline_gateway.store.store import Store

log = logger(__name__)


def read_uploaded(content: bytes, place: Place) -> ProfileEntry:
    """Reads a profile that was uploaded to the address of a place; takes a while, so not on an event loop.

    Raises:
        RequestError: it is not a profile, or has another address.
    """
    try:
        profile = decode(content, "The body")
    except ProtocolError as error:
        raise RequestError(error.message) from error
    if (found := (profile.bundle, profile.version, profile.machine)) != place:
        own, address = (f"{bundle} version {version} on {machine}" for bundle, version, machine in (found, place))
        raise RequestError(f"The body is a profile of {own}; its address is that of {address}.")
    return entry_of(profile, content)


class Profiles:
    """The profiles of one gateway, or of the replicas that share its store.

    Args:
        store: reads and writes it.
        clock: gives wall time.
        on_desired: called on the event loop when the desired document of a device changes.
    """

    def __init__(self, store: Store, *, clock: Clock, on_desired: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._on_desired = on_desired

    async def page(self, after: Place, limit: int, *, bundle: str = "", machine: str = "") -> ProfilePage:
        """Returns profiles after a place; see `records.page`."""
        found = await self._store.read(lambda on: records.page(on, after, limit + 1, bundle=bundle, machine=machine))
        shown = found[:limit]
        last = shown[-1] if len(found) > limit else None
        return ProfilePage(tuple(shown), f"{last.bundle}/{last.version}/{last.machine}" if last is not None else None)

    async def get(self, place: Place) -> tuple[ProfileEntry, bytes]:
        """Returns the entry and the document of one profile.

        Raises:
            NotFoundError: it is not stored.
        """
        found = await self._store.read(lambda on: records.find(on, place))
        if found is None:
            raise _unknown(place)
        return found

    async def put(self, uploaded: ProfileEntry, content: bytes, by: str) -> ProfileEntry:
        """Stores a profile that a person uploads."""
        entry = replace(uploaded, by=by, kept_s=self._clock.wall_s())

        def store(connection: Connection) -> None:
            records.put(connection, entry, content)
            _record(connection, entry.kept_s, by, "profile.put", (entry.bundle, entry.version, entry.machine))

        await self._store.write(store)
        return entry

    async def check_requested(self, device: str, bundle: str, version: int) -> None:
        """Checks whether a device may upload a profile, or has uploaded it, before it sends one.

        Raises:
            ConflictError: it was not requested.
        """

        def check(connection: Connection) -> None:
            if not _is_requested(connection, device, bundle, version):
                _uploaded(connection, device, (bundle, version, device))

        await self._store.read(check)

    async def take(self, uploaded: ProfileEntry, content: bytes, device: str) -> ProfileEntry:
        """Stores a requested profile that a device measured of itself, and ends the request.

        The same profile again changes nothing: the answer to the first upload was lost.

        Raises:
            ConflictError: it was not requested, or the device has uploaded another one.
        """
        now_s = self._clock.wall_s()
        entry = replace(uploaded, by=device_principal(device), kept_s=now_s)

        def store(connection: Connection) -> ProfileEntry:
            if not _is_requested(connection, device, entry.bundle, entry.version, lock=True):
                return _uploaded(connection, device, (entry.bundle, entry.version, entry.machine), entry.sha256)
            records.put(connection, entry, content)
            desire_profiles(connection, device, lambda open_: without(open_, entry.bundle), now_s)
            return entry

        stored = await self._store.write(store, key=device)
        if stored is not entry:
            return stored
        self._on_desired()
        log.info("profile stored", device=device, bundle=entry.bundle, version=entry.version, points=entry.points)
        return entry

    async def remove(self, place: Place, by: str) -> None:
        """Deletes a profile.

        Raises:
            NotFoundError: it is not stored.
        """
        now_s = self._clock.wall_s()

        def delete(connection: Connection) -> None:
            if not records.remove(connection, place):
                raise _unknown(place)
            _record(connection, now_s, by, "profile.remove", place)

        await self._store.write(delete)


def _is_requested(connection: Connection, device: str, bundle: str, version: int, *, lock: bool = False) -> bool:
    """Returns whether a device is requested to measure this version now."""
    found = devices.find(connection, device, lock=lock)
    is_accepted = found is not None and found.accepted_s is not None
    wanted = found.desired.profiles if found is not None and is_accepted else ()
    return any(one.bundle == bundle and one.version in (0, version) for one in wanted)


def _uploaded(connection: Connection, device: str, place: Place, sha256: str = "") -> ProfileEntry:
    """Returns the profile that a device uploaded of itself, with that SHA-256 if one is stated.

    Raises:
        ConflictError: it is not stored.
    """
    found = records.find(connection, place)
    if found is None or found[0].by != device_principal(device) or sha256 not in ("", found[0].sha256):
        bundle, version, _ = place
        raise ConflictError(f"{device} is not asked for a profile of {bundle} version {version} (any more).")
    return found[0]


def _record(connection: Connection, now_s: float, by: str, action: str, place: Place) -> None:
    bundle, version, machine = place
    audit_log.add(connection, now_s, by, action, f"profile:{bundle}/{version}", machine=machine)


def _unknown(place: Place) -> NotFoundError:
    bundle, version, machine = place
    return NotFoundError(
        f"There is no stored profile of {bundle} version {version} on {machine}; "
        f"`firstline profile list {bundle}` lists the stored ones."
    )
