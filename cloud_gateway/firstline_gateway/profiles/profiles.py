"""Profiles: the requests of devices and people. Changes by people are in the audit log, in the same transaction."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace
from sqlalchemy import Connection

from firstline_core.clock import Clock
from firstline_core.errors import NotFoundError
from firstline_core.fleet.profiles import ProfileEntry, ProfilePage
from firstline_core.protocol.enrolment import device_principal
from firstline_core.telemetry.logs import logger
from firstline_gateway.audit_log import records as audit_log
from firstline_gateway.profiles import records, request_records
from firstline_gateway.profiles.permission import fulfilled, permitted
from firstline_gateway.profiles.records import Place
from firstline_gateway.profiles.uploaded import UploadedProfile
from firstline_gateway.store.readers import Readers
from firstline_gateway.store.writer import StoreWriter

_T = TypeVar("_T")

log = logger(__name__)


class Profiles:
    """Of one gateway, or of the replicas that share its store.

    Args:
        readers: of the store.
        writer: writes to it.
        clock: gives wall time.
    """

    def __init__(self, readers: Readers, writer: StoreWriter, *, clock: Clock) -> None:
        self._readers = readers
        self._writer = writer
        self._clock = clock

    async def page(self, after: Place, limit: int, *, bundle: str = "", machine: str = "") -> ProfilePage:
        """Profiles after a place; see `records.page`."""
        found = await self._readers.ask(lambda on: records.page(on, after, limit + 1, bundle=bundle, machine=machine))
        shown = found[:limit]
        last = shown[-1] if len(found) > limit else None
        return ProfilePage(tuple(shown), f"{last.bundle}/{last.version}/{last.machine}" if last is not None else None)

    async def get(self, place: Place) -> tuple[ProfileEntry, bytes]:
        """One profile: its entry, and the document.

        Raises:
            NotFoundError: there is none.
        """
        found = await self._readers.ask(lambda on: records.find(on, place))
        if found is None:
            raise _unknown(place)
        return found

    async def put(self, brought: UploadedProfile, by: str) -> ProfileEntry:
        """Keeps what a person brings."""
        entry = brought.entry(by, self._clock.wall_s())

        def kept(connection: Connection) -> None:
            records.put(connection, entry, brought.content)
            _note(connection, entry.kept_s, by, "profile.put", (entry.bundle, entry.version, entry.machine))

        await self._writer.write(kept)
        return entry

    async def check_asked(self, device: str, bundle: str, version: int) -> None:
        """Whether it is worth while that a device sends a profile.

        Raises:
            ConflictError: see `permission.permitted`.
        """
        now_s = self._clock.wall_s()
        await self._readers.ask(lambda on: permitted(on, device, bundle, version, now_s))

    async def take(self, brought: UploadedProfile, device: str) -> ProfileEntry:
        """Keeps what a device measured of itself, which it was asked for; the same again changes nothing.

        Raises:
            ConflictError: it was not, or has brought something else already.
        """
        now_s = self._clock.wall_s()
        entry = brought.entry(device_principal(device), now_s)

        def kept(connection: Connection) -> tuple[ProfileEntry, bool]:
            request = permitted(connection, device, entry.bundle, entry.version, now_s, lock=True)
            if request.brought_s is not None:
                if request.sha256 != entry.sha256:
                    raise fulfilled(request)
                return replace(entry, kept_s=request.brought_s), False
            records.put(connection, entry, brought.content)
            request_records.put(
                connection, replace(request, version=entry.version, sha256=entry.sha256, brought_s=now_s)
            )
            return entry, True

        entry, new = await self._writer.write(kept)
        if new:
            log.info("profile stored", device=device, bundle=entry.bundle, version=entry.version, points=entry.points)
        return entry

    async def remove(self, place: Place, by: str) -> None:
        """Forgets one.

        Raises:
            NotFoundError: there is none.
        """
        now_s = self._clock.wall_s()

        def removed(connection: Connection) -> None:
            if not records.remove(connection, place):
                raise _unknown(place)
            _note(connection, now_s, by, "profile.remove", place)

        await self._writer.write(removed)


def _note(connection: Connection, now_s: float, by: str, action: str, place: Place) -> None:
    bundle, version, machine = place
    audit_log.add(
        connection,
        at_s=now_s,
        actor=by,
        action=action,
        subject=f"profile:{bundle}/{version}",
        details={"machine": machine},
    )


def _unknown(place: Place) -> NotFoundError:
    bundle, version, machine = place
    return NotFoundError(
        f"Nobody has stored a profile of {bundle} version {version} on {machine}; "
        f"`firstline model profile ls {bundle}` shows those that are there."
    )
