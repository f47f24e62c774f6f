"""The services of the gateway that inference uses; `app.Gateway` provides them."""

from __future__ import annotations

from typing import Protocol

from starlette.types import ASGIApp

from firstline_core.clock import Clock
from firstline_core.protocol.http import BodyBudget
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_gateway.api.overload import OverloadGuard
from firstline_gateway.identity.identity import Identity
from firstline_gateway.jobs.jobs import Jobs
from firstline_gateway.serving.data_plane import GatewayDataPlane
from firstline_gateway.settings.settings import Settings


class Gateway(Protocol):
    """One gateway, as its transports see it; see each package for what its service does."""

    settings: Settings
    clock: Clock
    metrics: RequestMetrics
    identity: Identity
    bodies: BodyBudget
    overload: OverloadGuard
    plane: GatewayDataPlane
    jobs: Jobs

    def control_plane(self) -> ASGIApp:
        """Returns the application that answers all other requests."""
        ...
