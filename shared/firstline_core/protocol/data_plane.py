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
    "parameters",
    "schedule_policy",
    "statistics",
)


@dataclass(frozen=True, slots=True)
class ModelState:
    """One version of a model, as the repository's index has it; `reason` says why it is not ready."""

    name: str
    version: str
    ready: bool
    reason: str = ""


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
