"""Asks devices for profiles by their desired documents until they have measured or the request expires."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace
from sqlalchemy import Connection

from firstline_core.clock import Clock
from firstline_core.errors import ConflictError, NotFoundError
from firstline_core.fleet.profiles import ProfileAsked, ProfileRequest, ProfileRequests
from firstline_core.fleet.twin import REQUESTS, Desired
from firstline_core.ids import new_request_id
from firstline_core.telemetry.logs import logger
from firstline_gateway.audit_log import records as audit_log
from firstline_gateway.fleet import devices
from firstline_gateway.profiles import request_records as records
from firstline_gateway.profiles.request_records import RequestRecord
from firstline_gateway.profiles.request_state import request_of, why_not
from firstline_gateway.store.readers import Readers
from firstline_gateway.store.writer import StoreWriter

_AT_ONCE = 100  # devices whose requests end in one transaction

_T = TypeVar("_T")

log = logger(__name__)


class Requests:
    """Of one gateway, or of the replicas that share its store.

    Args:
        readers: of the store.
        writer: writes to it.
        age_s: so long a request stands.
        clock: gives wall time.
        on_desired: called when a device is to do something else, on the event loop.
    """

    def __init__(
        self,
        readers: Readers,
        writer: StoreWriter,
        *,
        age_s: float,
        clock: Clock,
        on_desired: Callable[[], None] = lambda: None,
    ) -> None:
        self._readers = readers
        self._writer = writer
        self._age_s = age_s
        self._clock = clock
        self._on_desired = on_desired

    async def of(self, device: str) -> ProfileRequests:
        """All of one device, those that have ended too.

        Raises:
            NotFoundError: the device is unknown.
        """
        now_s = self._clock.wall_s()

        def read(connection: Connection) -> ProfileRequests:
            found = _known(connection, device)
            return ProfileRequests(tuple(request_of(found, one, now_s) for one in records.of(connection, device)))

        return await self._readers.ask(read)

    async def ask(self, device: str, asked: ProfileAsked, by: str) -> ProfileRequest:
        """Asks a device to measure; an equal request that is open is returned instead.

        Raises:
            NotFoundError: the device is unknown.
            ConflictError: it is not let in, or has as many to do as one may.
        """
        now_s, subject = self._clock.wall_s(), f"device:{device}"

        def made(connection: Connection) -> ProfileRequest:
            found = _known(connection, device, lock=True)
            if found.accepted_s is None:
                raise ConflictError(f"{device} is not let in yet; `firstline device accept {device}` does that.")
            before = {one.wanted.bundle: one for one in records.of(connection, device)}
            same = before.pop(asked.bundle, None)
            if same is not None and asked.is_same(same.wanted):
                told = request_of(found, same, now_s)
                if not told.ended:
                    return told
            ended = [one for one in before.values() if request_of(found, one, now_s).ended]
            standing = len(before) - len(ended)
            if standing >= REQUESTS:
                raise ConflictError(f"{device} has {standing} profiles to measure, as many as can wait; take one back.")
            for one in ended[: max(0, len(before) + 1 - REQUESTS)]:  # the oldest
                records.remove(connection, device, one.wanted.bundle)
            wanted = asked.desired(new_request_id())
            new = RequestRecord(device, wanted, by, now_s, now_s + self._age_s)
            records.put(connection, new)
            _tell(connection, device, records.of(connection, device), now_s)
            details: dict[str, Any] = {"bundle": wanted.bundle, "version": wanted.version, "request": wanted.id}
            audit_log.add(connection, at_s=now_s, actor=by, action="profile.request", subject=subject, details=details)
            return replace(request_of(_known(connection, device), new, now_s), new=True)

        found = await self._writer.write(made)
        if found.new:
            self._on_desired()
        return found

    async def cancel(self, device: str, bundle: str, by: str) -> None:
        """Takes a request back: a device that is at it stops, and keeps the points that it has.

        Raises:
            NotFoundError: the device is unknown, or has no request for that bundle.
        """
        now_s, subject = self._clock.wall_s(), f"device:{device}"

        def cancelled(connection: Connection) -> None:
            _known(connection, device, lock=True)
            gone = records.find(connection, device, bundle)
            if gone is None:
                raise NotFoundError(f"{device} is asked for no profile of {bundle}.")
            records.remove(connection, device, bundle)
            _tell(connection, device, records.of(connection, device), now_s)
            details = {"bundle": bundle, "request": gone.wanted.id}
            audit_log.add(connection, at_s=now_s, actor=by, action="profile.cancel", subject=subject, details=details)

        await self._writer.write(cancelled)
        self._on_desired()

    async def expire(self) -> int:
        """Ends requests that were not fulfilled in time; how many.

        Raises:
            StoreUnavailableError: the database refuses, or says nothing.
        """
        now_s = self._clock.wall_s()
        count = 0
        while due := await self._readers.ask(lambda on: records.due(on, now_s, _AT_ONCE)):

            def expired(connection: Connection, names: Sequence[str] = due) -> int:
                return sum(_expire(connection, name, now_s) for name in names)

            count += await self._writer.write(expired)
        if count:
            log.info("profile requests expired", requests=count)
            self._on_desired()
        return count


def _expire(connection: Connection, device: str, now_s: float) -> int:
    found = devices.find(connection, device, lock=True)
    all_ = records.of(connection, device)
    over = [one for one in all_ if one.ended_s is None and one.has_expired(now_s)]
    for one in over:
        why = why_not(found, one, now_s) if found is not None else ""
        records.put(connection, replace(one, ended_s=now_s, why=why))
    _tell(connection, device, all_, now_s)
    return len(over)


def _tell(connection: Connection, device: str, asked: Sequence[RequestRecord], now_s: float) -> None:
    """Fulfilled requests stay in the document, so that the device gets no new one; expired requests are removed."""
    wanted = tuple(one.wanted for one in asked if not one.has_expired(now_s))

    def changed(_: str, before: Desired) -> Desired:
        return replace(before, profiles=wanted)

    devices.desire(connection, [device], changed, now_s, known=True)


def _known(connection: Connection, device: str, *, lock: bool = False) -> devices.Device:
    found = devices.find(connection, device, lock=lock)
    if found is None:
        raise devices.unknown(device)
    return found
