"""The services that routes of the control plane use, and the dependencies by which each route gets its own.

A route names the services that it needs: `async def read_brake(fleet: FleetDep)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from fastapi import Depends, Request

from firstline_core.file_route import FileRoute
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_gateway.contracts.monitor import ContractMonitor
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher
from firstline_gateway.fleet.fleet import Fleet
from firstline_gateway.identity.audit_head import AuditLog
from firstline_gateway.identity.devices import Devices
from firstline_gateway.identity.identity import IdentityService
from firstline_gateway.jobs.jobs import Jobs
from firstline_gateway.models.repository import Repository
from firstline_gateway.profiles.profiles import Profiles
from firstline_gateway.rollouts.rollouts import Rollouts
from firstline_gateway.serving.data_plane import GatewayDataPlane
from firstline_gateway.settings.settings import Settings
from firstline_gateway.store.store import Store
from firstline_gateway.webhooks.webhooks import Webhooks

if TYPE_CHECKING:
    from firstline_gateway.registry.registry import Registry
else:
    Registry = Any  # the module loads python-tuf, which a gateway without a registry does not need


class Services(Protocol):
    """The services of a gateway that the state of its application holds for the routes."""

    audit_log: AuditLog
    contracts: ContractMonitor
    dispatcher: Dispatcher
    files: FileRoute
    fleet: Fleet
    identity: IdentityService
    jobs: Jobs
    metrics: RequestMetrics
    plane: GatewayDataPlane
    profiles: Profiles
    registry: Registry | None
    repository: Repository
    rollouts: Rollouts
    settings: Settings
    store: Store
    webhooks: Webhooks


def _provided(read: Callable[[Services], object]) -> Any:
    """Returns a dependency that reads one service of the application that answers."""

    async def service(request: Request) -> object:  # async, because the framework runs other functions in threads
        return read(request.app.state.services)

    return Depends(service)


AuditLogDep = Annotated[AuditLog, _provided(lambda services: services.audit_log)]
ContractsDep = Annotated[ContractMonitor, _provided(lambda services: services.contracts)]
DevicesDep = Annotated[Devices, _provided(lambda services: services.identity.devices)]
DispatcherDep = Annotated[Dispatcher, _provided(lambda services: services.dispatcher)]
FilesDep = Annotated[FileRoute, _provided(lambda services: services.files)]
FleetDep = Annotated[Fleet, _provided(lambda services: services.fleet)]
IdentityDep = Annotated[IdentityService, _provided(lambda services: services.identity)]
JobsDep = Annotated[Jobs, _provided(lambda services: services.jobs)]
MetricsDep = Annotated[RequestMetrics, _provided(lambda services: services.metrics)]
PlaneDep = Annotated[GatewayDataPlane, _provided(lambda services: services.plane)]
ProfilesDep = Annotated[Profiles, _provided(lambda services: services.profiles)]
RegistryDep = Annotated[Registry | None, _provided(lambda services: services.registry)]
RepositoryDep = Annotated[Repository, _provided(lambda services: services.repository)]
RolloutsDep = Annotated[Rollouts, _provided(lambda services: services.rollouts)]
StoreDep = Annotated[Store, _provided(lambda services: services.store)]
WebhooksDep = Annotated[Webhooks, _provided(lambda services: services.webhooks)]
