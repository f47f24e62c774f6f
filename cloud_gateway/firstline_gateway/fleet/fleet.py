"""The requests of the fleet's devices and operators, over every transport.

Devices report their state and counts, and read their desired state. Operators list, tag, accept and decommission
devices, and set the brake. Changes by operators are in the audit log, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace
from sqlalchemy import Connection

from firstline_core.clock import Clock
from firstline_core.errors import RequestError
from firstline_core.fleet.rest import DeviceChange, FleetDevice, FleetDevicePage, FleetOverview, Sort, TierHistory
from firstline_core.fleet.selector import Selector
from firstline_core.fleet.telemetry import Telemetry
from firstline_core.fleet.twin import Brake, Desired, Reported
from firstline_core.telemetry.logs import logger
from firstline_core.types import ModelKey
from firstline_gateway import audit_log
from firstline_gateway.fleet import alarms, answers, devices, overview, tiers, totals
from firstline_gateway.identity.enrolment import revoked_devices
from firstline_gateway.settings import settings
from firstline_gateway.store.service_clock import ServiceClock
from firstline_gateway.store.store import Store

_TAGS = 64

log = logger(__name__)


@dataclass(eq=False)
class Fleet:
    """The devices of one gateway, or of the replicas that share its store.

    Args:
        store: reads and writes it.
        fleet_settings: from the configuration.
        clock: gives wall time.
        service: clock by which alarms age.
        on_desired: called on the event loop when the desired state of devices has changed.
        monitors: returns whether the alarms of devices about a version are stored; devices may invent versions.
        wants_answers: whether devices report the promises that end.
        delete_with_device: functions that delete what other packages store about a device, in the given transaction.
    """

    store: Store
    fleet_settings: settings.FleetSection
    clock: Clock
    service: ServiceClock
    on_desired: Callable[[], None]
    monitors: Callable[[ModelKey], bool] = lambda _: True
    wants_answers: bool = False
    delete_with_device: Sequence[Callable[[Connection, str], None]] = ()
    _tier_counter: tiers.TierCounter = field(default_factory=tiers.TierCounter)

    @property
    def _accept(self) -> bool:
        return self.fleet_settings.accept == "automatic"

    def activity(self) -> Mapping[str, float]:
        """Returns what devices counted since this process started; see `TierCounter.sums`."""
        return self._tier_counter.sums

    async def desired(self, device: str) -> Desired:
        """Returns a device's desired document; the request itself shows that the device is online."""
        now_s = self.clock.wall_s()

        def read(connection: Connection) -> Desired:
            devices.mark_seen(connection, device, "", now_s, accept=self._accept)
            found = devices.find(connection, device)
            return found.desired if found is not None and found.accepted_s is not None else Desired(0)

        return await self.store.write(read, key=device)

    async def report(self, device: str, reported: Reported) -> bool:
        """Stores a device's report; returns False if a newer one is stored already."""
        now_s = self.clock.wall_s()

        def report(connection: Connection) -> tuple[bool, list[str]]:
            if not devices.report(connection, device, reported, now_s, accept=self._accept):
                return False, []
            wanted = self.wants_answers
            return True, devices.desire(connection, [device], lambda _, before: replace(before, answers=wanted))

        is_new, informed = await self.store.write(report, key=device)
        if informed:
            self.on_desired()
        return is_new

    async def take_telemetry(self, device: str, telemetry: Telemetry) -> bool:
        """Adds a device's counts, and the promises that have ended.

        Returns:
            False if newer counts were added before; the promises are stored nevertheless.
        """
        now_s = self.clock.wall_s()

        def add(connection: Connection) -> tuple[totals.Counted | None, list[alarms.Change]]:
            if not devices.mark_seen(connection, device, telemetry.session, now_s, accept=self._accept):
                return None, []
            service_s = self.service.now_s()
            counted = totals.count(connection, device, replace(telemetry, ended=()), now_s, service_s=service_s)
            if counted is None:
                return None, []
            monitored = {model.key for model in telemetry.models if self.monitors(model.key)}
            counts = [model for model in counted.after.models if model.key in monitored]
            return counted, alarms.take_telemetry(connection, device, counts, now_s=now_s, service_s=service_s)

        found, changes = await self.store.write(add, key=device)
        for change in changes:
            change.log()
        if found is not None:
            self._tier_counter.add(found.before, found.after, now_s)
        if telemetry.ended and self.wants_answers:
            times = {"now_s": now_s, "service_s": self.service.now_s()}
            await self.store.write(lambda on: answers.add(on, device, telemetry.ended, **times), apart=True)
        return found is not None

    async def take_start(self, device: str, session: str) -> None:
        """Notes that a process has started; a late message of an earlier process has no effect."""
        now_s = self.clock.wall_s()
        await self.store.write(
            lambda on: devices.mark_seen(on, device, session, now_s, accept=self._accept), key=device
        )

    async def take_end(self, device: str, session: str) -> None:
        """Notes that a process has ended; the last will of an earlier process has no effect."""
        await self.store.write(lambda on: devices.mark_offline(on, device, session), key=device)

    async def page(self, after: str, limit: int, wanted: devices.Filter, sort: Sort = Sort.NAME) -> FleetDevicePage:
        """Returns a page of devices; see `devices.page`."""
        now_s = self.clock.wall_s()

        def read(connection: Connection) -> list[FleetDevice]:
            revoked = revoked_devices(connection)
            found = devices.page(connection, after, limit, lambda one: wanted.matches(one, now_s, revoked), sort)
            return [_document(device, now_s, revoked) for device in found]

        found = await self.store.read(read)
        return FleetDevicePage(tuple(found), found[-1].name if len(found) == limit else None)

    async def device(self, name: str) -> FleetDevice:
        """Returns one device.

        Raises:
            NotFoundError: the device is unknown.
        """
        now_s = self.clock.wall_s()

        def read(connection: Connection) -> FleetDevice:
            found = _document(devices.existing(connection, name), now_s, revoked_devices(connection))
            stored = totals.latest(connection, name)
            if stored is None:
                return found
            latest, at_s = stored
            return replace(found, latest=latest, latest_age_s=round(max(0.0, now_s - at_s), 3))

        return await self.store.read(read)

    async def tags(self, name: str) -> dict[str, str]:
        """Returns the tags of a device; none for an unknown device."""
        found = await self.store.read(lambda on: devices.find(on, name))
        return found.tags if found is not None else {}

    async def overview(self, tag: str, selector: Selector) -> FleetOverview:
        """Returns the state of the fleet; see `overview.overview`."""
        now_s = self.clock.wall_s()
        return await self.store.read(lambda on: overview.overview(on, tag, selector, now_s))

    async def change(
        self, name: str, change: DeviceChange, by: str, check: Callable[[FleetDevice], None] = lambda _: None
    ) -> FleetDevice:
        """Tags or accepts a device.

        Args:
            name: of the device.
            change: the change.
            by: the operator.
            check: raises in the transaction if the device is not what the operator saw.

        Raises:
            NotFoundError: the device is unknown.
            RequestError: it would have too many tags, or is not what the operator saw.
        """
        now_s = self.clock.wall_s()

        def changed(connection: Connection) -> FleetDevice:
            revoked = revoked_devices(connection)
            check(_document(devices.existing(connection, name, lock=True), now_s, revoked))
            tags = devices.tag(connection, name, change.tags)
            if len(tags) > _TAGS:
                raise RequestError(f"The device {name} would have {len(tags)} tags; {_TAGS} are the most.")
            if change.tags:
                audit_log.add(connection, now_s, by, "device.tag", f"device:{name}", tags=change.tags)
            if change.accepted and devices.accept(connection, name, now_s):
                audit_log.add(connection, now_s, by, "device.accept", f"device:{name}")
            return _document(devices.existing(connection, name), now_s, revoked)

        found = await self.store.change(changed)
        if change.accepted:
            self.on_desired()
        return found

    async def decommission(self, name: str, by: str) -> None:
        """Deletes a device with its reports and counts; the caller ends its access.

        Raises:
            NotFoundError: the device is unknown.
        """
        now_s = self.clock.wall_s()

        def forgotten(connection: Connection) -> bool:
            if not devices.forget(connection, name):
                return False
            alarms.delete_device(connection, name)
            for delete_data in self.delete_with_device:
                delete_data(connection, name)
            audit_log.add(connection, now_s, by, "device.decommission", f"device:{name}")
            return True

        if not await self.store.change(forgotten):
            raise devices.unknown(name)

    async def brake(self) -> Brake | None:
        """Returns the limits on the whole fleet's escalations."""
        return await self.store.read(devices.brake)

    async def set_brake(self, brake: Brake | None, by: str) -> int:
        """Sets or lifts the brake on the whole fleet's escalations; returns the number of devices that are informed."""
        now_s = self.clock.wall_s()

        def braked(connection: Connection) -> int:
            informed = devices.set_brake(connection, brake)
            action = "fleet.brake" if brake is not None else "fleet.lift"
            audit_log.add(connection, now_s, by, action, "fleet", brake=brake, devices=informed)
            return informed

        informed = await self.store.change(braked)
        self.on_desired()
        log.warning("fleet braked" if brake is not None else "brake lifted", principal=by, devices=informed)
        return informed

    async def unpublished(self, limit: int, after: str = "") -> Sequence[tuple[str, Desired]]:
        """Returns the desired documents that are not at the broker yet; see `devices.unpublished`."""
        return await self.store.read(lambda on: devices.unpublished(on, limit, after))

    async def mark_published(self, revisions: dict[str, int]) -> None:
        """Notes the revisions that are at the broker."""
        await self.store.write(lambda on: devices.mark_published(on, revisions))

    async def tiers(self, hours: int, model: str) -> TierHistory:
        """Returns the answers by tier, over time."""
        since_s = self.clock.wall_s() - hours * 3600
        return await self.store.read(lambda on: tiers.history(on, since_s, model))

    async def store_tiers(self) -> None:
        """Stores the answers by tier since the last call.

        Raises:
            CapacityError: the store is overloaded; the next call tries again.
        """
        counted = self._tier_counter.take()
        if not counted:
            return
        try:
            await self.store.write(lambda on: tiers.store(on, counted, self.service.now_s()))
        except BaseException:
            self._tier_counter.put_back(counted)
            raise

    async def forget_old(self) -> None:
        """Deletes counts that are older than the history."""
        service_s = self.service.now_s()

        def forgotten(connection: Connection) -> None:
            alarms.forget(connection, service_s)
            totals.forget(connection, service_s)
            tiers.forget(connection, service_s)
            answers.forget(connection, service_s)

        await self.store.write(forgotten)


def _document(device: devices.StoredDevice, now_s: float, revoked: Collection[str]) -> FleetDevice:
    return FleetDevice(
        name=device.name,
        tags=device.tags,
        accepted=device.accepted_s is not None,
        online=device.online,
        last_seen_age_s=None if device.last_seen_s is None else round(max(0.0, now_s - device.last_seen_s), 3),
        first_seen_s=device.first_seen_s,
        reported=device.reported,
        desired=device.desired,
        revoked=device.name in revoked,
    )
