"""What a tier offers, whichever transport asks: HTTP, gRPC and MQTT know it by this alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from firstline_core.protocol.limits import Limits
from firstline_core.telemetry.statistics import ModelStatistics
from firstline_core.types import InferRequest, InferResponse, ModelMetadata

# What both tiers offer over both transports; a tier adds its own.
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
)


@dataclass(frozen=True, slots=True)
class ModelState:
    """One version of a model, as the repository's index has it.

    Args:
        ready: whether a request would be answered, if need be once the model is in memory again.
        reason: why it is not ready, or what else is to be said of it.
        passing: "LOADING" or "UNLOADING" while it is; "" else.
    """

    name: str
    version: str
    ready: bool
    reason: str = ""
    passing: str = ""

    @property
    def state(self) -> str:
        """In Triton's words."""
        return self.passing or ("READY" if self.ready else "UNAVAILABLE")


class DataPlane(Protocol):
    """What a tier offers to every transport."""

    @property
    def limits(self) -> Limits: ...
    @property
    def server_name(self) -> str: ...
    @property
    def server_version(self) -> str: ...
    @property
    def extensions(self) -> tuple[str, ...]: ...

    async def infer(self, request: InferRequest) -> InferResponse: ...

    def live(self) -> bool: ...

    def ready(self) -> bool: ...

    def model_ready(self, model: str, version: str) -> bool:
        """Whether the model would answer now.

        Raises:
            UnknownModelError: there is no such model or version.
        """
        ...

    def metadata(self, model: str, version: str) -> ModelMetadata:
        """What the model takes and gives.

        Raises:
            UnknownModelError: there is no such model or version.
        """
        ...

    def index(self) -> list[ModelState]:
        """Every version of every model, by name and version."""
        ...

    def statistics(self) -> list[ModelStatistics]:
        """Of every version of every model, by name and version."""
        ...

    def config(self, model: str, version: str) -> dict[str, Any]:
        """Triton's configuration of the model, see `config_json`.

        Raises:
            UnknownModelError: there is no such model or version.
        """
        ...

    async def load(self, model: str) -> None:
        """Reads a model's bundles anew, all versions, and serves what is found.

        Raises:
            UnknownModelError: there is no bundle of that name.
            RequestError: one does not load; what was served before is served on.
        """
        ...

    async def unload(self, model: str) -> None:
        """Serves a model no more, and frees its memory once requests in flight are answered.

        Raises:
            UnknownModelError: no such model is served.
        """
        ...
