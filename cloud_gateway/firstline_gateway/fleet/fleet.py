"""The requests of the fleet's devices and people, over every transport.

Devices say what they run and counted, and hear what they are to run. People look, tag, let in, send away, and brake.
Changes by people are in the audit log, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace
from sqlalchemy import Connection

from firstline_core.clock import Clock
from firstline_core.errors import RequestError
from firstline_core.fleet.rest import DeviceChange, FleetDevice, FleetDevicePage, TierHistory
from firstline_core.fleet.telemetry import Telemetry
from firstline_core.fleet.twin import Brake, Desired, Reported
from firstline_core.telemetry.logs import logger
from firstline_gateway import audit_log
from firstline_gateway.fleet import devices, tiers, totals
from firstline_gateway.fleet.selector import Selector
from firstline_gateway.settings import settings
from firstline_gateway.store.readers import Readers
from firstline_gateway.store.writer import StoreWriter

_TAGS = 64

_T = TypeVar("_T")

log = logger(__name__)


class Fleet:
    """The devices of one gateway, or of the replicas that share its store.

    Args:
        readers: of the store.
        writer: writes to it.
        found: the settings.
        clock: gives wall time.
        on_desired: called when devices are to run something else, on the event loop.
        delete_with_device: each deletes what another package has stored of a device, in the given transaction.
    """

    def __init__(
        self,
        readers: Readers,
        writer: StoreWriter,
        found: settings.Fleet,
        *,
        clock: Clock,
        on_desired: Callable[[], None],
        delete_with_device: Sequence[Callable[[Connection, str], None]] = (),
    ) -> None:
        self._readers = readers
        self._writer = writer
        self._accept = found.accept == "automatic"
        self._clock = clock
        self._tally = tiers.Tally()
        self._on_desired = on_desired
        self._delete_with_device = delete_with_device

    async def desired(self, device: str) -> Desired:
        """Returns a device's desired document; the request itself shows that the device is online."""
        now_s = self._clock.wall_s()

        def asked(connection: Connection) -> Desired:
            devices.seen(connection, device, "", now_s, accept=self._accept)
            found = devices.find(connection, device)
            return found.desired if found is not None and found.accepted_s is not None else Desired(0)

        return await self._writer.write(asked)

    async def report(self, device: str, reported: Reported) -> bool:
        """Stores a device's report; returns False if a newer one is stored already."""
        now_s = self._clock.wall_s()
        return await self._writer.write(lambda on: devices.report(on, device, reported, now_s, accept=self._accept))

    async def count(self, device: str, telemetry: Telemetry) -> bool:
        """Takes what a device counted; likewise."""
        now_s = self._clock.wall_s()

        def counted(connection: Connection) -> totals.Counted | None:
            if not devices.seen(connection, device, telemetry.session, now_s, accept=self._accept):
                return None
            return totals.count(connection, device, telemetry, now_s)

        found = await self._writer.write(counted)
        if found is not None:
            self._tally.add(found.before, found.after, now_s)
        return found is not None

    async def presence(self, device: str, session: str, *, online: bool) -> bool:
        """A device's process has come, or has ended; False for the late word of an earlier one."""
        now_s = self._clock.wall_s()
        if online:
            return await self._writer.write(lambda on: devices.seen(on, device, session, now_s, accept=self._accept))
        return await self._writer.write(lambda on: devices.left(on, device, session))

    async def page(
        self, after: str, limit: int, selector: Selector, *, model: str = "", version: int | None = None
    ) -> FleetDevicePage:
        """Devices by name; see `devices.page`."""
        now_s = self._clock.wall_s()
        found = await self._readers.ask(
            lambda on: devices.page(on, after, limit, selector, model=model, version=version)
        )
        return FleetDevicePage(
            tuple(_shown(device, now_s) for device in found), found[-1].name if len(found) == limit else None
        )

    async def device(self, name: str) -> FleetDevice:
        """One device.

        Raises:
            NotFoundError: the device is unknown.
        """
        found = await self._readers.ask(lambda on: devices.find(on, name))
        return _shown(_known(found, name), self._clock.wall_s())

    async def change(
        self, name: str, change: DeviceChange, by: str, check: Callable[[FleetDevice], None] = lambda _: None
    ) -> FleetDevice:
        """Tags a device, and lets it in.

        Args:
            name: of the device.
            change: the change.
            by: who.
            check: whether it is still as it was seen; raises where it is not, in the transaction that changes it.

        Raises:
            NotFoundError: the device is unknown.
            RequestError: it would have too many tags, or is not as it was seen.
        """
        now_s = self._clock.wall_s()

        def changed(connection: Connection) -> devices.Device:
            check(_shown(_known(devices.find(connection, name, lock=True), name), now_s))
            tags = devices.tag(connection, name, change.tags)
            if len(tags) > _TAGS:
                raise RequestError(f"The device {name} would have {len(tags)} tags; {_TAGS} are the most.")
            said = partial(audit_log.add, connection, at_s=now_s, actor=by, subject=f"device:{name}")
            if change.tags:
                said(action="device.tag", details={"tags": change.tags})
            if change.accepted and devices.accept(connection, name, now_s):
                said(action="device.accept", details={})
            return _known(devices.find(connection, name), name)

        found = await self._writer.write(changed)
        if change.accepted:
            self._on_desired()
        return _shown(found, now_s)

    async def decommission(self, name: str, by: str) -> None:
        """Deletes a device with its reports and counts; the caller ends its access.

        Raises:
            NotFoundError: the device is unknown.
        """
        now_s = self._clock.wall_s()

        def forgotten(connection: Connection) -> bool:
            if not devices.forget(connection, name):
                return False
            for delete_data in self._delete_with_device:
                delete_data(connection, name)
            audit_log.add(
                connection, at_s=now_s, actor=by, action="device.decommission", subject=f"device:{name}", details={}
            )
            return True

        if not await self._writer.write(forgotten):
            raise devices.unknown(name)

    async def brake(self) -> Brake | None:
        """Returns the limits on the whole fleet's escalations."""
        return await self._readers.ask(devices.brake)

    async def set_brake(self, brake: Brake | None, by: str) -> int:
        """Sets or lifts the brake on the whole fleet's escalations; returns the number of devices that are informed."""
        now_s = self._clock.wall_s()

        def braked(connection: Connection) -> int:
            devices.set_brake(connection, brake, by, now_s)
            told = devices.desire(
                connection, devices.names(connection), lambda _, before: replace(before, brake=brake), now_s
            )
            audit_log.add(
                connection,
                at_s=now_s,
                actor=by,
                action="fleet.brake" if brake is not None else "fleet.lift",
                subject="fleet",
                details={"brake": brake, "devices": len(told)},
            )
            return len(told)

        told = await self._writer.write(braked)
        self._on_desired()
        log.warning("fleet braked" if brake is not None else "brake lifted", principal=by, devices=told)
        return told

    async def desire(self, names: Iterable[str], change: Callable[[str, Desired], Desired]) -> list[str]:
        """Changes what devices are to run; those for which that is something new."""
        now_s, wanted = self._clock.wall_s(), list(names)
        changed = await self._writer.write(lambda on: devices.desire(on, wanted, change, now_s))
        if changed:
            self._on_desired()
        return changed

    async def unpublished(self, limit: int) -> Sequence[tuple[str, Desired]]:
        """What does not lie at the broker yet."""
        return await self._readers.ask(lambda on: devices.unpublished(on, limit))

    async def published(self, revisions: dict[str, int]) -> None:
        """Notes what lies there now."""
        await self._writer.write(lambda on: devices.published(on, revisions))

    async def tiers(self, hours: int, model: str) -> TierHistory:
        """Returns the answers by tier, over time."""
        since_s = self._clock.wall_s() - hours * 3600
        return await self._readers.ask(lambda on: tiers.history(on, since_s, model))

    async def keep_tiers(self) -> None:
        """Puts into the store who answered since the last call.

        Raises:
            CapacityError: the store takes nothing; the next call tries again.
        """
        counted = self._tally.take()
        if not counted:
            return
        try:
            await self._writer.write(lambda on: tiers.keep(on, counted))
        except BaseException:
            self._tally.put_back(counted)
            raise

    async def forget_old(self) -> None:
        """Forgets what is older than anybody looks back."""
        now_s = self._clock.wall_s()

        def forgotten(connection: Connection) -> None:
            totals.forget(connection, now_s)
            tiers.forget(connection, now_s)

        await self._writer.write(forgotten)


def _shown(device: devices.Device, now_s: float) -> FleetDevice:
    return FleetDevice(
        name=device.name,
        tags=device.tags,
        accepted=device.accepted_s is not None,
        online=device.online,
        last_seen_age_s=None if device.last_seen_s is None else round(max(0.0, now_s - device.last_seen_s), 3),
        first_seen_s=device.first_seen_s,
        reported=device.reported,
        desired=device.desired,
    )


def _known(device: Any, name: str) -> devices.Device:
    if not isinstance(device, devices.Device):
        raise devices.unknown(name)
    return device
