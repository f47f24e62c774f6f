"""A gateway with a registry on a loopback port, and its publishers' keys."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
from msgspec.structs import replace
from support.agent import edge_settings
from support.databases import sqlite_store
from support.desired import desire
from support.gateway import gateway_settings, http_link, serving
from support.keys import bearer, create_key
from support.waiting import until

from firstline.fleet.client import open_fleet
from firstline.fleet.registry import Registry
from firstline.release import publishing
from firstline.release.keyring import Keyring
from firstline.release.publishing import PushedBundle, push_bundle
from firstline_core.bundle.store import Bundle
from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.fleet.target import ExtraNeeds
from firstline_core.fleet.twin import Update
from firstline_core.fleet.update import ENDED
from firstline_edge.app import EdgeAgent
from firstline_edge.settings.settings import EdgeSettings
from firstline_gateway.app import Gateway, open_gateway
from firstline_gateway.registry.registry import Registry as GatewayRegistry
from firstline_gateway.settings.settings import StoreSection

_T = TypeVar("_T")


@dataclass
class RegistrySite:
    """What runs, and who keeps the fleet."""

    folder: Path
    gateway: Gateway
    url: str
    operator: str
    device: str
    client: httpx.AsyncClient

    @property
    def registry(self) -> GatewayRegistry:
        return self.gateway.registry

    @property
    def keyring(self) -> Keyring:
        return Keyring(self.folder / "keys")

    def now_s(self) -> float:
        return SYSTEM_CLOCK.wall_s()

    async def with_registry(self, call: Callable[[Registry], _T]) -> _T:
        """What a blocking call gives that fills the registry."""

        def calling() -> _T:
            with open_fleet(self.url, self.operator) as fleet:
                return call(fleet.registry)

        return await asyncio.to_thread(calling)

    async def begin(self) -> None:
        """The keys of a fleet's life, and a first publication."""

        def beginning(registry: Registry) -> None:
            self.keyring.init(registry.online_key(), self.now_s())
            versions = publishing.publish(self.keyring, registry, self.now_s())
            assert (versions["root"], versions["targets"]) == (1, 1)

        await self.with_registry(beginning)

    async def push(self, bundle: Bundle, needs: Mapping[str, ExtraNeeds] | None = None) -> PushedBundle:
        """Signs a bundle and uploads it."""
        return await self.with_registry(
            lambda registry: push_bundle(self.keyring, registry, bundle, dict(needs or {}), self.now_s())
        )

    def device_settings(self, folder: Path, **overrides: Any) -> EdgeSettings:
        """A device of the fleet that asks often, and has a key."""
        return edge_settings(
            folder / "state",
            links=[http_link(self.gateway.settings.store, self.url, "device-1", folder)],
            fleet__enabled=True,
            fleet__poll_s=0.1,
            fleet__root_file=str(self.keyring.anchor),
            fleet__download_jitter_s=0,
            **overrides,
        )

    async def desire(self, **changes: Any) -> None:
        """Changes the desired state of the device of `device_settings`, once it is known."""

        async def changed() -> bool:
            return bool(await desire(self.gateway, ["device-1"], lambda _, before: replace(before, **changes)))

        await until(changed)

    async def ended(self, rollout: str = "r1") -> Update:
        """How that device reports that its update ended."""
        found: list[Update] = []

        async def reported() -> bool:
            state = (await self.gateway.fleet.device("device-1")).reported
            found[:] = [update for update in (state.updates if state else ()) if update.rollout == rollout]
            return bool(found) and found[0].state in ENDED

        await until(reported, 60)
        return found[0]


async def connected_to_fleet(agent: EdgeAgent) -> None:
    """Waits until an agent has its desired state."""
    await until(lambda: agent.operations.status()["fleet"]["revision"] is not None, 60)


@asynccontextmanager
async def registry_site(
    folder: Path, store: StoreSection | None = None, **overrides: Any
) -> AsyncIterator[RegistrySite]:
    """A gateway with the digits, and a registry that is new."""
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240 (a test's own)
    store = store or sqlite_store(folder)
    operator, device = create_key(store, "ops", "operator"), create_key(store, "press-7", "device")
    defaults = {"registry__blobs": str(folder / "blobs"), "store__url": store.url}
    gateway = open_gateway(gateway_settings(folder, **(defaults | overrides)))
    async with serving(gateway) as url, httpx.AsyncClient(base_url=url, headers=bearer(operator), timeout=30) as client:
        yield RegistrySite(folder, gateway, url, operator, device, client)
