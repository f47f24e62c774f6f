"""How the agent is, for people and for programs: `status`, the birth message and the gauges. No secret, no payload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firstline_edge.models import HeldModel

if TYPE_CHECKING:
    from firstline_edge.agent import EdgeAgent


def status_of(agent: EdgeAgent, uptime_s: float) -> dict[str, Any]:
    """What `GET /firstline/v1/status` says."""
    return {
        "device_id": agent.settings.device_id,
        "version": agent.server_version,
        "ready": agent.ready(),
        "uptime_s": round(uptime_s, 1),
        "models": [
            _described(held, agent.threshold(held), agent.complaints.of(held.manifest.name, held.version))
            for held in agent.models.all
        ],
        "problems": [{"path": str(path), "message": message} for path, message in _problems(agent)],
        "links": {name: asdict(link) for name, link in agent.links.reports().items()},
        "outbox": {"items": agent.outbox.depth, "size_bytes": agent.outbox.size_bytes},
        "cache": {"entries": len(agent.cache), "size_bytes": agent.cache.size_bytes},
    }


def birth_of(agent: EdgeAgent) -> dict[str, object]:
    """What the broker keeps of this device: which models it runs."""
    return {
        "agent_version": agent.server_version,
        "models": [_identity(held) for held in agent.models.all],
    }


def add_gauges(agent: EdgeAgent) -> None:
    """What is measured whenever somebody asks for the metrics."""
    gauges: Mapping[str, tuple[str, Callable[[], float]]] = {
        "outbox_items": ("Promised corrections that are still to come.", lambda: agent.outbox.depth),
        "outbox_bytes": ("Payload in the outbox.", lambda: agent.outbox.size_bytes),
        "cache_entries": ("Results in the cache's memory front.", lambda: len(agent.cache)),
        "cache_bytes": ("Size of the cache's memory front.", lambda: agent.cache.size_bytes),
        "link_available": ("1 while a link to a gateway may be used.", lambda: float(agent.links.available)),
    }
    for name, (description, read) in gauges.items():
        agent.metrics.gauge(name, description, read)


def _identity(held: HeldModel) -> dict[str, object]:
    return {
        "name": held.manifest.name,
        "version": held.version,
        "model_digest": held.edge.loaded.digest if held.edge is not None else None,
        "full_model_digest": held.manifest.full_digest or None,
    }


def _described(held: HeldModel, threshold: float, complaint: str) -> dict[str, object]:
    edge = held.edge
    return _identity(held) | {
        "edge": edge.loaded.model.id if edge is not None else None,
        "provider": edge.loaded.runtime.provider if edge is not None else None,
        "row_ms": round(edge.row_ms, 3) if edge is not None else None,
        "score_digest": held.manifest.policy.score.digest,
        "threshold": threshold,
        "passed_over": list(edge.loaded.passed_over) if edge is not None else [],
        "certificate": certificate_of(held),
        "uncertified": edge.uncertified or None if edge is not None else None,
        "problem": held.problem or complaint or None,
    }


def certificate_of(held: HeldModel) -> dict[str, object] | None:
    """What the variant in use is certified for; None where it is not."""
    certificate = held.edge.certificate if held.edge is not None else None
    if certificate is None:
        return None
    return {
        "contract": certificate.contract,
        "epsilon": certificate.epsilon,
        "delta": certificate.delta,
        "threshold": certificate.threshold,
        "promise": certificate.promise,
    }


def _problems(agent: EdgeAgent) -> list[tuple[Path, str]]:
    found = [(problem.path, problem.message) for problem in agent.models.problems]
    found += [(agent.state.cache_path, agent.cache.problem), (agent.state.outbox_path, agent.outbox.problem)]
    return [(path, message) for path, message in found if message]
