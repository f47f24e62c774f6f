"""The services of the gateway that the API uses; `app.Gateway` provides them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from firstline_core.clock import Clock
from firstline_core.protocol.http import BodyBudget
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_gateway.api.overload import OverloadGuard
from firstline_gateway.audit_log import AuditLog
from firstline_gateway.contracts.monitor import ContractMonitor
from firstline_gateway.executors.base import ExecutorReport
from firstline_gateway.fleet.fleet import Fleet
from firstline_gateway.identity.identity import Identity
from firstline_gateway.jobs.jobs import Jobs
from firstline_gateway.models.repository import Repository
from firstline_gateway.profiles.profiles import Profiles
from firstline_gateway.profiles.requests import Requests
from firstline_gateway.rollouts.rollouts import Rollouts
from firstline_gateway.serving.data_plane import GatewayDataPlane
from firstline_gateway.settings.settings import Settings
from firstline_gateway.store.database import Database
from firstline_gateway.store.writer import StoreWriter

if TYPE_CHECKING:  # loads python-tuf, which a gateway without a registry does not need
    from firstline_gateway.registry.registry import Registry


class Gateway(Protocol):
    """One gateway, as its routes see it; see each package for what its service does."""

    settings: Settings
    clock: Clock
    metrics: RequestMetrics
    identity: Identity
    bodies: BodyBudget
    overload: OverloadGuard
    repository: Repository
    plane: GatewayDataPlane
    jobs: Jobs
    contracts: ContractMonitor
    fleet: Fleet
    registry: Registry | None
    rollouts: Rollouts
    profiles: Profiles
    profile_requests: Requests
    audit_log: AuditLog
    database: Database
    writer: StoreWriter

    @property
    def executors(self) -> tuple[ExecutorReport, ...]:
        """The state of each executor if there are several; empty if there is one."""
        ...
