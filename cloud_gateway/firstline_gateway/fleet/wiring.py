"""All that looks after the fleet, put together: its devices, registry, rollouts and trail, and who works on its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from firstline_core.clock import Clock
from firstline_core.fleet.twin import LIMIT_BYTES
from firstline_gateway import mqtt
from firstline_gateway.fleet.broker import FleetBroker
from firstline_gateway.fleet.fleet import Fleet
from firstline_gateway.identity.identity import Identity
from firstline_gateway.models.repository import Repository
from firstline_gateway.models.residency.orders import Orders
from firstline_gateway.profiles.keeper import RequestKeeper
from firstline_gateway.profiles.profiles import Profiles
from firstline_gateway.profiles.requests import Requests
from firstline_gateway.rollouts.engine import Engine
from firstline_gateway.rollouts.rollouts import Rollouts
from firstline_gateway.settings.settings import Settings
from firstline_gateway.store.database import Database
from firstline_gateway.store.readers import Readers
from firstline_gateway.store.service import ServiceClock
from firstline_gateway.store.writer import StoreWriter
from firstline_gateway.trail.trail import Trail

if TYPE_CHECKING:
    from firstline_gateway.models.fetched.keeper import FullModels
    from firstline_gateway.registry.wiring import RegistryRoom


class FleetRoom:
    """What one gateway has for its fleet.

    Args:
        settings: the gateway's.
        database: that all of it is kept in, with its `readers` and its `writer`.
        identity: whose devices these are.
        repository: the models served, which the fleet may need more of.
        orders: to load and unload those.
        must_be_whole: whether models run here, so that the files of those fetched have to be there.
        clock: what durations are on.
        service: how long the gateways have been there for devices.

    Raises:
        ConfigError: the registry's files, the folder for full models or the broker's password are no good.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        readers: Readers,
        writer: StoreWriter,
        *,
        identity: Identity,
        repository: Repository,
        orders: Orders,
        must_be_whole: bool,
        clock: Clock,
        service: ServiceClock,
    ) -> None:
        self.fleet = Fleet(readers, writer, settings.fleet, clock=clock)
        self.registry = _registry(settings, readers, writer, identity, clock)
        listed = self.registry.bundles.digest if self.registry is not None else None
        self.rollouts = Rollouts(readers, writer, clock=clock, service=service, listed=listed)
        self.profiles = Profiles(readers, writer, clock=clock)
        self.profile_requests = Requests(
            readers, writer, age_s=settings.fleet.profile_requests_age_s, clock=clock, on_desired=self._tell
        )
        self._request_keeper = RequestKeeper(self.profile_requests, clock)
        self.trail = Trail(readers, Path(settings.identity.directory), clock=clock)
        self.engine = Engine(database, writer, clock=clock, service=service, on_told=self._tell)
        self.rollouts.on_change = self.engine.wake
        self.full_models = _full_models(
            settings, self.registry, readers, repository, orders, must_be_whole=must_be_whole, clock=clock
        )
        if self.full_models is not None:
            self.rollouts.before_start = self.full_models.before
        self._broker = (
            FleetBroker(
                self.fleet,
                mqtt.connection_settings(settings.mqtt, LIMIT_BYTES),
                settings.mqtt.prefix,
                identity.gatekeeper.known.is_revoked,
            )
            if settings.mqtt.enabled and settings.fleet.mqtt
            else None
        )

    async def start(self) -> None:
        """Begins to judge rollouts, renew metadata, fetch full models, end old requests, and speak MQTT."""
        self.engine.start()
        self._request_keeper.start()
        if self.registry is not None:
            self.registry.keeper.start()
        if self.full_models is not None:
            self.full_models.start()
        if self._broker is not None:
            await self._broker.start()

    async def close(self) -> None:
        """Ends what `start` began."""
        if self._broker is not None:
            await self._broker.close()
        await self._request_keeper.close()
        await self.engine.close()
        if self.registry is not None:
            await self.registry.keeper.close()
        if self.full_models is not None:
            await self.full_models.close()

    def _tell(self) -> None:
        self.fleet.on_desired()  # the broker's, which comes later


def _registry(
    settings: Settings, readers: Readers, writer: StoreWriter, identity: Identity, clock: Clock
) -> RegistryRoom | None:
    """The registry, where there is one; python-tuf is loaded for no other gateway."""
    if not settings.registry.blobs:
        return None
    from firstline_gateway.registry.wiring import open_registry

    return open_registry(settings.registry, readers, writer, identity.folder, clock=clock)


def _full_models(
    settings: Settings,
    registry: RegistryRoom | None,
    readers: Readers,
    repository: Repository,
    orders: Orders,
    *,
    must_be_whole: bool,
    clock: Clock,
) -> FullModels | None:
    """Who fetches full models from the registry, where that is asked for."""
    folder = settings.fetched_models
    if registry is None or folder is None:
        return None
    from firstline_gateway.models.fetched.keeper import FullModels
    from firstline_gateway.models.fetched.shelf import Shelf

    return FullModels(
        Shelf(folder, registry.files.read),
        registry.bundles,
        repository,
        orders,
        readers,
        retire_after_s=settings.registry.retire_after_s,
        must_be_whole=must_be_whole,
        clock=clock,
    )
