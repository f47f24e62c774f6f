"""The deployments on a Ray cluster, and the interface of the cluster to the executor. Does not import Ray."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from firstline_core.protocol.limits import DecodingLimits
from firstline_core.types import Arrays
from firstline_gateway import __version__
from firstline_gateway.executors.base import Outcome
from firstline_gateway.models.repository import ServedModel
from firstline_gateway.settings.settings import Settings

# Ray adds replicas where more batches are under way than this part of what fits. Below 1, because the batcher never
# has more under way than fit; high enough for a replica not to be added as long as one does.
_BUSY = 0.75


@dataclass(frozen=True, slots=True)
class Deployment:
    """One full model and how many run it.

    Args:
        name: of the application on the cluster; another full model, or other processing, has another name.
        digest: the full model's, which a replica compares with the bundle that it finds.
        bundle: its folder, as the cluster's machines see it.
        providers: ONNX Runtime's, preferred first.
        max_batch_rows: the most rows that the model sees at once.
        replicas_min: that always run.
        replicas_max: that ever run.
        replica_cores: cores of a replica, and batches that it runs side by side.
        replica_gpus: GPUs of a replica.
        busy: batches under way for each replica, above which Ray adds some.
        decoding: limits of each image and recording that it decodes.
    """

    name: str
    digest: str
    bundle: str
    providers: tuple[str, ...]
    max_batch_rows: int
    replicas_min: int
    replicas_max: int
    replica_cores: int
    replica_gpus: float
    busy: float
    decoding: DecodingLimits

    @property
    def fingerprint(self) -> str:
        """Identifies the settings and the release of a deployment."""
        return hashlib.sha256(repr((__version__, astuple(self))).encode()).hexdigest()[:16]


class State(NamedTuple):
    """The state of a deployment, as the cluster reports it."""

    replicas: int  # that take batches
    failed: str  # why Ray gave up starting replicas, as a sentence; "" where it did not


class Cluster(Protocol):
    """The cluster. Every method raises `LinkDownError` where it is away."""

    async def connect(self) -> None:
        """Becomes a part of it; nothing where it is one already."""

    async def states(self) -> dict[str, State]:
        """Of every deployment, by its name."""

    async def deploy(self, deployment: Deployment) -> None:
        """Has it run from now on, in place of what has its name; returns before replicas are up."""

    async def fingerprint(self, name: str) -> str:
        """Of the deployment that runs under a name."""

    async def run(
        self, name: str, inputs: Sequence[Arrays], left_s: Sequence[float | None], timeout_s: float
    ) -> list[Outcome]:
        """Has one replica run a batch.

        Args:
            name: of the deployment.
            inputs: of each request, by name.
            left_s: seconds until each deadline, or None; clocks differ between machines.
            timeout_s: the longest that it may take.

        Raises:
            LinkDownError: the replica died, or none can be reached; inference has no effects, so it may be run again.
            RemoteTimeoutError: there is no answer by `timeout_s`.
            InferenceError: the batch failed there.
        """

    async def close(self) -> None:
        """Leaves the cluster; deployments stay, other gateways use them."""


def deployment_of(served: ServedModel, settings: Settings) -> Deployment:
    """A served model as a deployment."""
    found = settings.ray
    models = Path(settings.models.directory).absolute()
    there = Path(found.models_directory or models)
    return Deployment(
        name=f"firstline-{served.key.name}-{served.key.version}-{served.digest[:12]}",
        digest=served.digest,
        bundle=str(there / served.path.absolute().relative_to(models)),
        providers=settings.execution.providers,
        max_batch_rows=settings.execution.max_batch_rows,
        replicas_min=found.replicas_min,
        replicas_max=found.replicas_max,
        replica_cores=found.replica_cores,
        replica_gpus=found.replica_gpus,
        busy=found.in_flight * found.replica_cores * _BUSY,
        decoding=settings.decoding.limits,
    )
