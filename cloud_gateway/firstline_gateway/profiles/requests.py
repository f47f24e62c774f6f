"""Devices are asked for profiles, by their twins; what people ask for is in the audit trail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Connection

from firstline_core.clock import Clock
from firstline_core.errors import ConflictError, NotFoundError
from firstline_core.fleet.profiles import ProfileAsked, ProfileRequest, ProfileRequests
from firstline_core.fleet.profiling import REQUESTS, DesiredProfile
from firstline_core.fleet.twin import Desired
from firstline_core.ids import new_request_id
from firstline_gateway.fleet import devices
from firstline_gateway.profiles.standing import request_of
from firstline_gateway.store.readers import Readers
from firstline_gateway.store.writer import GroupWriter
from firstline_gateway.trail import records as trail


class Requests:
    """Of one gateway, or of the replicas that share its store.

    Args:
        readers: of the store.
        writer: writes to it.
        clock: what times are on.
        on_desired: called when a device is to do something else, on the event loop.
    """

    def __init__(
        self, readers: Readers, writer: GroupWriter, *, clock: Clock, on_desired: Callable[[], None] = lambda: None
    ) -> None:
        self._readers = readers
        self._writer = writer
        self._clock = clock
        self._on_desired = on_desired

    async def of(self, device: str) -> ProfileRequests:
        """All of one device.

        Raises:
            NotFoundError: nobody has heard of it.
        """
        now_s = self._clock.wall_s()
        found = await self._readers.ask(lambda on: _known(on, device))
        return ProfileRequests(tuple(request_of(found, asked, now_s) for asked in found.desired.profiles))

    async def ask(self, device: str, asked: ProfileAsked, by: str) -> ProfileRequest:
        """Asks a device; one that stands already and asks for the same is told instead.

        Raises:
            NotFoundError: nobody has heard of the device.
            ConflictError: it is not let in, or has as many to do as one may.
        """
        now_s, subject = self._clock.wall_s(), f"device:{device}"

        def made(connection: Connection) -> ProfileRequest:
            found = _known(connection, device, lock=True)
            if found.accepted_s is None:
                raise ConflictError(f"{device} is not let in yet; `firstline device accept {device}` does that.")
            standing = {one.bundle: one for one in found.desired.profiles}
            before = standing.pop(asked.bundle, None)
            if before is not None and asked.is_same(before) and not request_of(found, before, now_s).ended:
                return request_of(found, before, now_s)
            kept = [one for one in standing.values() if not request_of(found, one, now_s).ended]
            if len(kept) >= REQUESTS:
                raise ConflictError(
                    f"{device} has {len(kept)} profiles to measure, as many as can wait; take one back."
                )
            ended = [one for one in standing.values() if one not in kept]
            wanted = asked.desired(new_request_id())
            _desire(connection, device, (*kept, *ended[: REQUESTS - 1 - len(kept)], wanted), now_s)
            details: dict[str, Any] = {"bundle": wanted.bundle, "version": wanted.version, "request": wanted.id}
            trail.add(connection, at_s=now_s, actor=by, action="profile.request", subject=subject, details=details)
            return replace(request_of(_known(connection, device), wanted, now_s), new=True)

        found = await asyncio.wrap_future(self._writer.submit(made))
        if found.new:
            self._on_desired()
        return found

    async def cancel(self, device: str, bundle: str, by: str) -> None:
        """Takes a request back: a device that is at it stops, and keeps the points that it has.

        Raises:
            NotFoundError: nobody has heard of the device, or it is asked for nothing of that bundle.
        """
        now_s, subject = self._clock.wall_s(), f"device:{device}"

        def cancelled(connection: Connection) -> None:
            found = _known(connection, device, lock=True)
            gone = next((one for one in found.desired.profiles if one.bundle == bundle), None)
            if gone is None:
                raise NotFoundError(f"{device} is asked for no profile of {bundle}.")
            left = tuple(one for one in found.desired.profiles if one != gone)
            _desire(connection, device, left, now_s)
            details = {"bundle": bundle, "request": gone.id}
            trail.add(connection, at_s=now_s, actor=by, action="profile.cancel", subject=subject, details=details)

        await asyncio.wrap_future(self._writer.submit(cancelled))
        self._on_desired()


def check_asked(connection: Connection, device: str, bundle: str, version: int) -> None:
    """Whether the device was asked for that profile: it stores no other.

    Raises:
        ConflictError: it was not, or somebody has taken that back.
    """
    found = devices.find(connection, device)
    asked = found.desired.profiles if found is not None and found.accepted_s is not None else ()
    if not any(one.bundle == bundle and one.version in (0, version) for one in asked):
        raise ConflictError(f"Nobody asks {device} for a profile of {bundle} version {version} (any more).")


def _desire(connection: Connection, device: str, wanted: tuple[DesiredProfile, ...], now_s: float) -> None:
    def changed(_: str, before: Desired) -> Desired:
        return replace(before, profiles=wanted)

    devices.desire(connection, [device], changed, now_s, known=True)


def _known(connection: Connection, device: str, *, lock: bool = False) -> devices.Device:
    found = devices.find(connection, device, lock=lock)
    if found is None:
        raise devices.unknown(device)
    return found
