"""Stores profiles that people and devices upload. Changes by people are in the audit log, in the same transaction."""

from __future__ import annotations

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
from firstline_gateway.profiles.records import Place, RequestRecord
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
    """

    def __init__(self, store: Store, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock

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
        """Checks whether a device may upload a profile, before it sends one.

        Raises:
            ConflictError: see `permitted`.
        """
        now_s = self._clock.wall_s()
        await self._store.read(lambda on: permitted(on, device, bundle, version, now_s))

    async def take(self, uploaded: ProfileEntry, content: bytes, device: str) -> ProfileEntry:
        """Stores a requested profile that a device measured of itself; the same profile again changes nothing.

        Raises:
            ConflictError: it was not requested, or the device has uploaded another one already.
        """
        now_s = self._clock.wall_s()
        entry = replace(uploaded, by=device_principal(device), kept_s=now_s)

        def store(connection: Connection) -> tuple[ProfileEntry, bool]:
            request = permitted(connection, device, entry.bundle, entry.version, now_s, lock=True)
            if request.delivered_s is not None:
                if request.sha256 != entry.sha256:
                    raise _fulfilled(request)
                return replace(entry, kept_s=request.delivered_s), False
            records.put(connection, entry, content)
            fulfilled = replace(request, version=entry.version, sha256=entry.sha256, delivered_s=now_s)
            records.put_request(connection, fulfilled)
            return entry, True

        entry, is_new = await self._store.write(store)
        if is_new:
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


def permitted(
    connection: Connection, device: str, bundle: str, version: int, now_s: float, *, lock: bool = False
) -> RequestRecord:
    """Returns the request by which a device may upload a profile, or has uploaded that version.

    Args:
        connection: within a transaction.
        device: that uploads it.
        bundle: that was measured.
        version: of the bundle.
        now_s: wall time.
        lock: locks the device until this transaction ends.

    Raises:
        ConflictError: there is none, it has ended, or it was fulfilled with another version.
    """
    found = devices.find(connection, device, lock=lock)
    is_accepted = found is not None and found.accepted_s is not None
    request = records.find_request(connection, device, bundle) if is_accepted else None
    what = f"{device} is not asked for a profile of {bundle} version {version}"
    if request is None or request.wanted.version not in (0, version):
        raise ConflictError(f"{what} (any more).")
    if request.has_expired(now_s):
        raise ConflictError(f"{what} any more: the request has ended.")
    if request.delivered_s is not None and request.version != version:
        raise _fulfilled(request)
    return request


def _fulfilled(request: RequestRecord) -> ConflictError:
    return ConflictError(
        f"{request.device} has uploaded a profile of {request.wanted.bundle} version {request.version} already, as "
        "requested; request another one."
    )


def _record(connection: Connection, now_s: float, by: str, action: str, place: Place) -> None:
    bundle, version, machine = place
    audit_log.add(connection, now_s, by, action, f"profile:{bundle}/{version}", machine=machine)


def _unknown(place: Place) -> NotFoundError:
    bundle, version, machine = place
    return NotFoundError(
        f"There is no stored profile of {bundle} version {version} on {machine}; "
        f"`firstline profile list {bundle}` lists the stored ones."
    )
