"""Requests profiles from devices: a request is part of the desired document until the profile is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from msgspec.structs import replace
from sqlalchemy import Connection

from firstline_core.clock import Clock
from firstline_core.errors import ConflictError, NotFoundError
from firstline_core.fleet.profiles import NewProfileRequest, ProfileRequest, ProfileRequests
from firstline_core.fleet.twin import REQUESTS, DesiredProfile, ProfilingState
from firstline_core.ids import new_request_id
from firstline_core.telemetry.wording import duration_text
from firstline_gateway import audit_log
from firstline_gateway.fleet import devices
from firstline_gateway.fleet.devices import Device
from firstline_gateway.store.store import Store

_SILENT_S = 900.0
"""A device reports at least this often."""

Requests = tuple[DesiredProfile, ...]


@dataclass(eq=False)
class RequestedProfiles:
    """The requests of one gateway, or of the replicas that share its store.

    Args:
        store: reads and writes it.
        clock: gives wall time.
        on_desired: called on the event loop when the desired document of a device changes.
    """

    store: Store
    clock: Clock
    on_desired: Callable[[], None]

    async def of(self, device: str) -> ProfileRequests:
        """Returns the requests of one device whose profiles are not stored yet.

        Raises:
            NotFoundError: the device is unknown.
        """
        found, now_s = await self.store.read(lambda on: devices.existing(on, device)), self.clock.wall_s()
        return ProfileRequests(tuple(request_of(found, one, now_s) for one in found.desired.profiles))

    async def ask(self, device: str, asked: NewProfileRequest, by: str) -> ProfileRequest:
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
            if same is not None and (known := request_of(found, same, now_s)).state is not ProfilingState.REFUSED:
                return known
            others = without(before, asked.bundle)
            refused = [one for one in others if request_of(found, one, now_s).state is ProfilingState.REFUSED]
            is_open = len(others) - len(refused)
            if is_open >= REQUESTS:
                raise ConflictError(f"{device} has {is_open} profiles to measure, the most allowed; cancel one.")
            dropped = refused[: max(0, len(others) + 1 - REQUESTS)]  # the oldest
            stay = tuple(one for one in others if one not in dropped)
            wanted = asked.desired(new_request_id())
            desire_profiles(connection, device, lambda _: (*stay, wanted), now_s)
            details = {"bundle": wanted.bundle, "version": wanted.version, "request": wanted.id}
            audit_log.add(connection, now_s, by, "profile.request", f"device:{device}", **details)
            return replace(request_of(found, wanted, now_s), new=True)

        made = await self.store.write(request)
        if made.new:
            self.on_desired()
        return made

    async def cancel(self, device: str, bundle: str, by: str) -> None:
        """Cancels a request; a device that is measuring stops, and keeps the points that it has.

        Raises:
            NotFoundError: the device is unknown, or has no request for that bundle.
        """
        now_s = self.clock.wall_s()

        def remove(connection: Connection) -> None:
            found = devices.existing(connection, device, lock=True)
            others = without(found.desired.profiles, bundle)
            if others == found.desired.profiles:
                raise NotFoundError(f"{device} is asked for no profile of {bundle}.")
            desire_profiles(connection, device, lambda _: others, now_s)
            audit_log.add(connection, now_s, by, "profile.cancel", f"device:{device}", bundle=bundle)

        await self.store.write(remove)
        self.on_desired()


def without(requests: Iterable[DesiredProfile], bundle: str) -> Requests:
    """Returns the requests of other bundles."""
    return tuple(one for one in requests if one.bundle != bundle)


def desire_profiles(connection: Connection, device: str, change: Callable[[Requests], Requests], now_s: float) -> None:
    """Changes the requests in the desired document of a device."""
    devices.desire(
        connection,
        [device],
        lambda _, before: replace(before, profiles=change(before.profiles)),
        now_s,
        existing_only=True,
    )


def request_of(device: Device, request: DesiredProfile, now_s: float) -> ProfileRequest:
    """Returns the state of a request, as the device reports it. Pure.

    Args:
        device: as the fleet knows it.
        request: one of its requests.
        now_s: wall time.
    """
    profiles = device.reported.profiles if device.reported is not None else ()
    reported = next((one for one in profiles if one.id == request.id), None)
    offline = _offline(device, now_s)
    if reported is None:
        message = offline or f"{device.name} has not received it yet."
        return ProfileRequest(device.name, request, ProfilingState.SENT, message=message)
    message = offline if offline and not reported.state.ended else reported.message
    return ProfileRequest(
        device.name, request, reported.state, reported.version, reported.done, reported.total, message
    )


def _offline(device: Device, now_s: float) -> str:
    """Returns a sentence if the device is offline, else ""."""
    if device.last_seen_s is None:
        return f"{device.name} has never connected. The request stays valid until it is back."
    silent_s = max(0.0, now_s - device.last_seen_s)
    if device.online and silent_s < _SILENT_S:
        return ""
    last_seen = f"it was last seen {duration_text(silent_s)} ago"
    return f"{device.name} is offline: {last_seen}. The request stays valid until it is back."
