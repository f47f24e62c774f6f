"""The operations of a running agent for operators: status, metrics and rollbacks.

The status and the birth message for the broker have no secret and no payload.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from firstline_core.errors import RequestError
from firstline_core.hardware.readings import limited
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_edge.api.data_plane import EdgeDataPlane
from firstline_edge.audits import certificate_reports
from firstline_edge.audits.certificate_states import CertificateStates
from firstline_edge.budgets.spending import Spending
from firstline_edge.cache.results import ResultCache
from firstline_edge.cascade.cascade import TierRouter
from firstline_edge.cloud.client import ModelRefusals
from firstline_edge.hardware.sampler import Sampler, missing_kernel_files
from firstline_edge.identity.credentials import DeviceIdentity
from firstline_edge.identity.renewal import CredentialRenewal
from firstline_edge.models.models import DeviceModel, EdgeModel, Models
from firstline_edge.models.profiles import Profiles
from firstline_edge.outbox.outbox import Outbox
from firstline_edge.state import StateDirectory
from firstline_edge.telemetry.background import Background
from firstline_edge.telemetry.version import VERSION

if TYPE_CHECKING:  # httpx takes time and memory to import
    from firstline_edge.fleet.member import FleetMember


@dataclass(eq=False, kw_only=True)
class Operations:
    """The operations of one agent, and the parts that they describe.

    Args:
        plane: answers requests; its models, links and clock are used too.
        startup_problems: problems before the agent started, by file.
        renewal: None on a device that has not joined.
        fleet: None on a device that is not a member of a fleet.
    """

    plane: EdgeDataPlane
    metrics: RequestMetrics
    startup_problems: Mapping[Path, str]
    state: StateDirectory
    profiles: Profiles
    cache: ResultCache
    outbox: Outbox
    certificates: CertificateStates
    router: TierRouter
    model_refusals: ModelRefusals
    identity: DeviceIdentity
    renewal: CredentialRenewal | None
    spending: Spending
    sampler: Sampler
    background: Background
    fleet: FleetMember | None
    _started_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._started_s = self.plane.clock.monotonic_s()

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Returns the metrics in a form that the `Accept` header names, and its content type."""
        self.plane.recorder.flush()
        return self.metrics.render(accept)

    async def roll_back(self, model: str | None) -> None:
        """Rolls back to what ran before the fleet's latest update of a model, or of the configuration.

        Args:
            model: name of the model; None for the configuration.

        Raises:
            RequestError: this device is not a member of a fleet, or there is no previous version.
        """
        if self.fleet is None:
            what = "configuration" if model is None else "models"
            raise RequestError(
                f"This device takes no {what} from a fleet, so there is no previous version to roll back to."
            )
        await self.fleet.updater.roll_back(model)

    def status(self) -> dict[str, Any]:
        """Returns what `GET /firstline/v1/status` says."""
        timings = self.plane.links.chain.timings()
        problems = [*self.startup_problems.items(), *self._problems()]
        return {
            "device_id": self.plane.settings.device_id,
            "version": VERSION,
            "ready": self.plane.ready(),
            "uptime_s": round(self.plane.clock.monotonic_s() - self._started_s, 1),
            "models": [self._describe_model(model) for model in self.plane.models.all],
            "problems": [{"path": str(path), "message": message} for path, message in problems],
            "identity": self.identity.describe(),
            "links": {
                name: asdict(link) | {"timing": (timing := timings[name]) and asdict(timing)}
                for name, link in self.plane.links.chain.reports().items()
            },
            "outbox": {"items": self.outbox.depth, "size_bytes": self.outbox.size_bytes},
            "cache": {"entries": len(self.cache), "size_bytes": self.cache.size_bytes},
            "policy": self.router.policy.kind,
            "budgets": self.spending.status(),
            "conditions": asdict(self.spending.conditions),
            "hardware": msgspec.to_builtins(limited(self.sampler.latest)),
            "fleet": self.fleet.status() if self.fleet is not None else None,
        }

    def _describe_model(self, model: DeviceModel) -> dict[str, object]:
        edge, threshold = model.edge, self.router.threshold(model)
        return _identity(model) | {
            "edge": edge.loaded.model.id if edge is not None else None,
            "provider": edge.loaded.runtime.provider if edge is not None else None,
            "row_ms": round(edge.row_ms, 3) if edge is not None else None,
            "row_ms_from": ("load" if edge.profiled is None else "profile") if edge is not None else None,
            "score_digest": model.manifest.score_digest(model.manifest.policy.score),
            "threshold": threshold if math.isfinite(threshold) else None,
            "passed_over": list(edge.loaded.passed_over) if edge is not None else [],
            "certificate": _certificate_of(edge),
            "problem": model.problem or self.model_refusals.message_of(model.key) or None,
            "variants": model.variants.describe() if model.variants is not None else None,
            "uncertified": self.router.uncertified(model) or None,
            "contract": certificate_reports.describe(self.certificates, model),
        }

    def _problems(self) -> list[tuple[Path, str]]:
        found = [(problem.path, problem.message) for problem in self.plane.models.problems]
        found += self.profiles.problems.items()
        found += [(self.state.certificates_path, self.certificates.problem)]
        found += [(self.state.spending_path, self.spending.problem)]
        found += [(self.identity.folder, problem) for problem in self.identity.problems]
        if self.renewal is not None:
            found += [(self.identity.folder, self.renewal.problem)]
        found += [(self.state.cache_path, self.cache.problem), (self.state.outbox_path, self.outbox.problem)]
        found += [(self.state.outbox_path, self.outbox.damage)]
        tree = self.sampler.sensors.tree
        found += [(tree.root, missing_kernel_files(tree))]
        found += [(self.state.path, problem) for problem in self.background.problems.values()]
        return [(path, message) for path, message in found if message]


def birth_message(models: Models, configuration: Callable[[], object] | None) -> dict[str, object]:
    """Returns what the broker keeps of this device: the models that it runs, and the fleet's configuration.

    Args:
        models: the models of this device.
        configuration: returns the configuration that runs; None on a device that is not a member of a fleet.
    """
    message: dict[str, object] = {} if configuration is None else {"configuration": configuration()}
    return message | {"agent_version": VERSION, "models": [_identity(model) for model in models.all]}


def _identity(model: DeviceModel) -> dict[str, object]:
    return {
        "name": model.manifest.name,
        "version": model.version,
        "model_digest": model.edge.loaded.digest if model.edge is not None else None,
        "full_model_digest": model.manifest.full_digest or None,
    }


def _certificate_of(edge: EdgeModel | None) -> dict[str, object] | None:
    """Returns the certificate of the variant in use; None if it has none."""
    certificate = edge.certificate if edge is not None else None
    if certificate is None:
        return None
    return {
        "contract": certificate.contract,
        "epsilon": certificate.epsilon,
        "delta": certificate.delta,
        "threshold": certificate.threshold,
        "promise": certificate.promise,
        "by": certificate.by,
        "thresholds": {label: group.threshold for label, group in certificate.groups.items()},
    }
