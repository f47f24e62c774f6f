"""The interface of a tier to its transports: HTTP, gRPC and MQTT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from firstline_core.protocol.limits import Limits
from firstline_core.telemetry.statistics import ModelStatistics
from firstline_core.types import InferRequest, InferResponse, ModelMetadata

# Supported by both tiers over both transports; a tier adds its own.
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
    """One version of a model in the repository's index.

    Args:
        ready: whether a request would be answered, possibly after the model is loaded into memory.
        reason: why it is not ready, or another note.
        passing: "LOADING" or "UNLOADING" meanwhile; "" otherwise.
    """

    name: str
    version: str
    ready: bool
    reason: str = ""
    passing: str = ""

    @property
    def state(self) -> str:
        """Returns Triton's name of the state."""
        return self.passing or ("READY" if self.ready else "UNAVAILABLE")


class DataPlane(Protocol):
    """The operations of a tier for every transport."""

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
        """Returns whether the model would answer now.

        Raises:
            UnknownModelError: there is no such model or version.
        """
        ...

    def metadata(self, model: str, version: str) -> ModelMetadata:
        """Returns the inputs and outputs of the model.

        Raises:
            UnknownModelError: there is no such model or version.
        """
        ...

    def index(self) -> list[ModelState]:
        """Returns every version of every model, sorted by name and version."""
        ...

    def statistics(self) -> list[ModelStatistics]:
        """Returns the statistics of every version of every model, sorted by name and version."""
        ...

    def config(self, model: str, version: str) -> dict[str, Any]:
        """Returns Triton's configuration of the model, see `config_json`.

        Raises:
            UnknownModelError: there is no such model or version.
        """
        ...

    async def load(self, model: str) -> None:
        """Reloads all versions of a model's bundles.

        Raises:
            UnknownModelError: there is no bundle of that name.
            RequestError: a bundle does not load; the versions served before stay.
        """
        ...

    async def unload(self, model: str) -> None:
        """Stops serving a model, and frees its memory after requests in flight are answered.

        Raises:
            UnknownModelError: no such model is served.
        """
        ...
