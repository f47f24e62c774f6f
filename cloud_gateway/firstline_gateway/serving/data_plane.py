"""What the gateway offers to every transport: how it and its models are, what they take, and answers."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from firstline_core.protocol.data_plane import EXTENSIONS, ModelState
from firstline_core.protocol.extensions import config_json
from firstline_core.protocol.limits import Limits
from firstline_core.telemetry.statistics import ModelStatistics
from firstline_core.types import InferRequest, InferResponse, ModelKey, ModelMetadata
from firstline_gateway import __version__
from firstline_gateway.models.repository import Repository
from firstline_gateway.models.residency.orders import UNLOADING
from firstline_gateway.models.residency.residency import Residency
from firstline_gateway.serving.answering import Answering
from firstline_gateway.serving.scheduling.batcher import Batcher
from firstline_gateway.telemetry.counting import Counting


class GatewayDataPlane:
    """Implements `firstline_core.protocol.data_plane.DataPlane`."""

    server_name = "firstline-gateway"
    server_version = __version__
    extensions = EXTENSIONS

    def __init__(
        self,
        repository: Repository,
        batcher: Batcher,
        answering: Answering,
        *,
        counting: Counting,
        residency: Residency,
        limits: Limits,
        looks_after_fleet: bool = False,
    ) -> None:
        self._repository = repository
        self._batcher = batcher
        self._answering = answering
        self._counting = counting
        self._residency = residency
        self._looks_after_fleet = looks_after_fleet
        self.limits = limits

    def infer(self, request: InferRequest) -> Coroutine[Any, Any, InferResponse]:
        """See `Answering.infer`."""
        return self._answering.infer(request)

    def live(self) -> bool:
        return True

    def ready(self) -> bool:
        """True while it could answer for a model, has loaded what it loads at the start, and is not shutting down.

        A gateway that looks after a fleet has something to do before its first model comes.
        """
        served = self._repository
        waits = self._looks_after_fleet and not served.models and not served.away and not served.refused
        usable = waits or any(map(self._usable, served.models))
        return not self._answering.draining and self._residency.complete and usable

    def model_ready(self, model: str, version: str) -> bool:
        return not self._answering.draining and self._usable(self._repository.resolve(model, version).key)

    def _usable(self, key: ModelKey) -> bool:
        return not self._batcher.trouble(key) and self._residency.ready(key)

    def trouble(self, key: ModelKey) -> str:
        """Why the engine cannot run a model at the moment, as a sentence; "" where it can."""
        return self._batcher.trouble(key)

    def metadata(self, model: str, version: str) -> ModelMetadata:
        return self._repository.metadata(model, version)

    def index(self) -> list[ModelState]:
        found = {
            each.key: self._residency.state(
                each, "shutting down" if self._answering.draining else self.trouble(each.key)
            )
            for each in self._repository
        }
        for key, why in self._repository.away.items():
            passing = "UNLOADING" if why == UNLOADING else ""
            found[key] = ModelState(key.name, str(key.version), ready=False, reason=why, passing=passing)
        return [found[key] for key in sorted(found)]

    def statistics(self) -> list[ModelStatistics]:
        apart = self._batcher.apart
        return [self._counting.told(each.key, apart.get(each.key)) for each in self._repository]

    def config(self, model: str, version: str) -> dict[str, Any]:
        return config_json(self.metadata(model, version), self.limits, batching=True)

    async def load(self, model: str) -> None:
        await self._residency.orders.load(model)

    async def unload(self, model: str) -> None:
        await self._residency.orders.unload(model)
