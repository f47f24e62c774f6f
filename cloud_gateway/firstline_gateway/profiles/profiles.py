"""Stores profiles that people and devices upload, and requests profiles from devices.

A request is part of the device's desired document until the profile is stored. Changes by people are in the audit log,
in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace
from sqlalchemy import Connection

from firstline_core.clock import Clock
from firstline_core.errors import ConflictError, NotFoundError, ProtocolError, RequestError
from firstline_core.fleet.profiles import NewProfileRequest, ProfileEntry, ProfileRequest, ProfileRequests, entry_of
from firstline_core.fleet.rest import LATE_AFTER_S
from firstline_core.fleet.twin import REQUESTS, DesiredProfile, Profiling, ProfilingState
from firstline_core.ids import new_request_id
from firstline_core.profile.profile import decode
from firstline_core.protocol.enrolment import device_principal
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.wording import duration_text
from firstline_gateway import audit_log
from firstline_gateway.fleet import devices
from firstline_gateway.fleet.devices import StoredDevice
from firstline_gateway.profiles import records
from firstline_gateway.profiles.records import Place
from firstline_gateway.store.store import Store

Requests = tuple[DesiredProfile, ...]

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


@dataclass(eq=False)
class Profiles:
    """The profiles of one gateway, or of the replicas that share its store, and the requests for them.

    Args:
        store: reads and writes it.
        clock: gives wall time.
        on_desired: called on the event loop when the desired document of a device changes.
    """

    store: Store
    clock: Clock
    on_desired: Callable[[], None]

    async def page(
        self, after: Place, limit: int, *, bundle: str = "", machine: str = ""
    ) -> tuple[list[ProfileEntry], bool]:
        """Returns profiles after a place, and whether there are more; see `records.page`."""
        found = await self.store.read(lambda on: records.page(on, after, limit + 1, bundle=bundle, machine=machine))
        return found[:limit], len(found) > limit

    async def get(self, place: Place) -> tuple[ProfileEntry, bytes]:
        """Returns the entry and the document of one profile.

        Raises:
            NotFoundError: it is not stored.
        """
        found = await self.store.read(lambda on: records.find(on, place))
        if found is None:
            raise _unknown(place)
        return found

    async def put(self, uploaded: ProfileEntry, content: bytes, by: str) -> ProfileEntry:
        """Stores a profile that a person uploads."""
        entry = replace(uploaded, by=by, kept_s=self.clock.wall_s())

        def store(connection: Connection) -> None:
            records.put(connection, entry, content)
            _record(connection, entry.kept_s, by, "profile.put", (entry.bundle, entry.version, entry.machine))

        await self.store.change(store)
        return entry

    async def check_requested(self, device: str, bundle: str, version: int) -> None:
        """Checks whether a device may upload a profile, or has uploaded it, before it sends one.

        Raises:
            ConflictError: it was not requested.
        """

        def check(connection: Connection) -> None:
            if not _permit(_requests(connection, device), bundle, version):
                _uploaded(connection, device, (bundle, version, device))

        await self.store.read(check)

    async def take(self, uploaded: ProfileEntry, content: bytes, device: str) -> ProfileEntry:
        """Stores a requested profile that a device measured of itself, and ends the request.

        The same profile again changes nothing: the answer to the first upload was lost.

        Raises:
            ConflictError: it was not requested, or the device has uploaded another one.
        """
        now_s = self.clock.wall_s()
        entry = replace(uploaded, by=device_principal(device), kept_s=now_s)

        def store(connection: Connection) -> ProfileEntry:
            requests = _requests(connection, device, lock=True)
            if not _permit(requests, entry.bundle, entry.version):
                return _uploaded(connection, device, (entry.bundle, entry.version, entry.machine), entry.sha256)
            records.put(connection, entry, content)
            _desire(connection, device, _without(requests, entry.bundle))
            return entry

        stored = await self.store.write(store, key=device)
        if stored is not entry:
            return stored
        self.on_desired()
        log.info("profile stored", device=device, bundle=entry.bundle, version=entry.version, points=entry.points)
        return entry

    async def remove(self, place: Place, by: str) -> None:
        """Deletes a profile.

        Raises:
            NotFoundError: it is not stored.
        """
        now_s = self.clock.wall_s()

        def delete(connection: Connection) -> None:
            if not records.remove(connection, place):
                raise _unknown(place)
            _record(connection, now_s, by, "profile.remove", place)

        await self.store.change(delete)

    async def requests_of(self, device: str) -> ProfileRequests:
        """Returns the requests of one device whose profiles are not stored yet.

        Raises:
            NotFoundError: the device is unknown.
        """
        found, now_s = await self.store.read(lambda on: devices.existing(on, device)), self.clock.wall_s()
        return ProfileRequests(tuple(request_of(found, one, now_s) for one in found.desired.profiles))

    async def request(self, device: str, asked: NewProfileRequest, by: str) -> ProfileRequest:
        """Requests a profile; an equal request that is open is returned instead.

        Raises:
            NotFoundError: the device is unknown.
            ConflictError: the device is not accepted, or has the largest number of requests.
        """
        now_s = self.clock.wall_s()

        def request(connection: Connection) -> ProfileRequest:
            found = devices.existing(connection, device, lock=True)
            if found.accepted_s is None:
                raise ConflictError(f"{device} has not been accepted; run `firstline device accept {device}`.")
            before = found.desired.profiles
            same = next((one for one in before if asked.is_same(one)), None)
            if same is not None and (existing := request_of(found, same, now_s)).state is not ProfilingState.REFUSED:
                return existing
            others = _without(before, asked.bundle)
            refused = [one for one in others if request_of(found, one, now_s).state is ProfilingState.REFUSED]
            is_open = len(others) - len(refused)
            if is_open >= REQUESTS:
                raise ConflictError(f"{device} has {is_open} profiles to measure, the most allowed; cancel one.")
            dropped = refused[: max(0, len(others) + 1 - REQUESTS)]  # the oldest
            desired = asked.desired(new_request_id())
            _desire(connection, device, (*(one for one in others if one not in dropped), desired))
            details = {"bundle": desired.bundle, "version": desired.version, "request": desired.id}
            audit_log.add(connection, now_s, by, "profile.request", f"device:{device}", **details)
            return replace(request_of(found, desired, now_s), new=True)

        created = await self.store.change(request)
        if created.new:
            self.on_desired()
        return created

    async def cancel_request(self, device: str, bundle: str, by: str) -> None:
        """Cancels a request; a device that is measuring stops, and keeps the points that it has.

        Raises:
            NotFoundError: the device is unknown, or has no request for that bundle.
        """
        now_s = self.clock.wall_s()

        def remove(connection: Connection) -> None:
            found = devices.existing(connection, device, lock=True)
            others = _without(found.desired.profiles, bundle)
            if others == found.desired.profiles:
                raise NotFoundError(f"{device} is asked for no profile of {bundle}.")
            _desire(connection, device, others)
            audit_log.add(connection, now_s, by, "profile.cancel", f"device:{device}", bundle=bundle)

        await self.store.change(remove)
        self.on_desired()


def request_of(device: StoredDevice, request: DesiredProfile, now_s: float) -> ProfileRequest:
    """Returns the state of a request, as the device reports it. Pure.

    Args:
        device: as the fleet knows it.
        request: one of its requests.
        now_s: wall time.
    """
    profiles = device.reported.profiles if device.reported is not None else ()
    sent = Profiling(request.id, request.bundle, ProfilingState.SENT, message=f"{device.name} has not received it yet.")
    reported = next((one for one in profiles if one.id == request.id), sent)
    offline = _offline(device, now_s)
    message = offline if offline and not reported.state.ended else reported.message
    return ProfileRequest(
        device.name, request, reported.state, reported.version, reported.done, reported.total, message
    )


def _offline(device: StoredDevice, now_s: float) -> str:
    """Returns a sentence if the device is offline, else ""."""
    if device.last_seen_s is None:
        return f"{device.name} has never connected. The request stays valid until it is back."
    silent_s = max(0.0, now_s - device.last_seen_s)
    if device.online and silent_s <= LATE_AFTER_S:
        return ""
    last_seen = f"it was last seen {duration_text(silent_s)} ago"
    return f"{device.name} is offline: {last_seen}. The request stays valid until it is back."


def _requests(connection: Connection, device: str, *, lock: bool = False) -> Requests:
    """Returns the requests of a device; none if it is unknown or not accepted."""
    found = devices.find(connection, device, lock=lock)
    return found.desired.profiles if found is not None and found.accepted_s is not None else ()


def _permit(requests: Requests, bundle: str, version: int) -> bool:
    """Returns whether requests ask for a profile of this version."""
    return any(one.bundle == bundle and one.version in (0, version) for one in requests)


def _without(requests: Requests, bundle: str) -> Requests:
    """Returns the requests of other bundles."""
    return tuple(one for one in requests if one.bundle != bundle)


def _desire(connection: Connection, device: str, requests: Requests) -> None:
    """Replaces the requests in the desired document of a device."""
    devices.desire(connection, [device], lambda _, before: replace(before, profiles=requests))


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
