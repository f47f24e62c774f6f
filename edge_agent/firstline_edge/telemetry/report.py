"""How the agent is, for people and for programs: `status`, the birth message and the gauges. No secret, no payload."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from firstline_core.hardware.sensors.snapshot import limited
from firstline_core.routing import audit
from firstline_core.routing.timing import TimingReport
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_edge.audits.standing import Standings
from firstline_edge.audits.watched import Watched
from firstline_edge.hardware.metrics import add_sensor_gauges
from firstline_edge.hardware.sampler import missing_kernel_files
from firstline_edge.models.held import HeldModel, Models

if TYPE_CHECKING:
    from firstline_edge.agent import EdgeAgent
    from firstline_edge.budgets.spending import Spending
    from firstline_edge.cloud.chain import LinkChain
    from firstline_edge.parts import Parts

VERSION = version("firstline")


def status_of(agent: EdgeAgent, uptime_s: float) -> dict[str, Any]:
    """What `GET /firstline/v1/status` says."""
    parts = agent.parts
    timings = {name: found and asdict(found) for name, found in parts.links.timings().items()}
    return {
        "device_id": agent.settings.device_id,
        "version": VERSION,
        "ready": agent.ready(),
        "uptime_s": round(uptime_s, 1),
        "models": [
            _described(held, parts.router.threshold(held), parts.complaints.of(held.manifest.name, held.version))
            | {"uncertified": parts.router.uncertified(held) or None, "contract": parts.audits.describe(held)}
            for held in parts.models.all
        ],
        "problems": [
            {"path": str(path), "message": message} for path, message in [*agent.trouble.items(), *_problems(parts)]
        ],
        "identity": parts.identity.describe(),
        "links": {name: asdict(link) | {"timing": timings[name]} for name, link in parts.links.reports().items()},
        "outbox": {"items": parts.outbox.depth, "size_bytes": parts.outbox.size_bytes},
        "cache": {"entries": len(parts.cache), "size_bytes": parts.cache.size_bytes},
        "policy": parts.router.policy.kind,
        "budgets": parts.spending.status() if parts.spending is not None else [],
        "conditions": asdict(parts.spending.conditions) if parts.spending is not None else None,
        "hardware": msgspec.to_builtins(limited(parts.sampler.latest)),
        "fleet": parts.fleet.status() if parts.fleet is not None else None,
    }


def birth_of(
    models: Models, standings: Standings, configuration: Callable[[], object] | None = None
) -> dict[str, object]:
    """What the broker keeps of this device: which models it runs, and under which configuration of a fleet."""
    told: dict[str, object] = {} if configuration is None else {"configuration": configuration()}
    return told | {
        "agent_version": VERSION,
        "models": [_identity(held) | {"contract": _contract_of(standings.find(held))} for held in models.all],
    }


def _contract_of(watched: Watched | None) -> dict[str, object] | None:
    if watched is None:
        return None
    record = watched.record
    return {
        "alarm": record.alarmed,
        "tightened": record.tightened,
        "escalates_all": record.escalates_all,
        "audits": record.agreed + record.disagreed,
        "disagreed": record.disagreed,
    }


def add_gauges(metrics: RequestMetrics, parts: Parts) -> None:
    """What is measured whenever somebody asks for the metrics."""
    gauges: Mapping[str, tuple[str, Callable[[], float]]] = {
        "outbox_items": ("Promised corrections that are still to come.", lambda: parts.outbox.depth),
        "outbox_bytes": ("Payload in the outbox.", lambda: parts.outbox.size_bytes),
        "cache_entries": ("Results in the cache's memory front.", lambda: len(parts.cache)),
        "cache_bytes": ("Size of the cache's memory front.", lambda: parts.cache.size_bytes),
        "link_available": ("1 while a link to a gateway may be used.", lambda: float(parts.links.available)),
    }
    for name, (description, read) in gauges.items():
        metrics.gauge(name, description, read)
    add_sensor_gauges(metrics, lambda: limited(parts.sampler.latest))
    if parts.switcher is not None:
        from firstline_edge.adaptation.switching import add_gauges as add_variant_gauges

        add_variant_gauges(metrics, parts.models, parts.switcher)
    by_contract: Mapping[str, tuple[str, Callable[[Watched], float | None]]] = {
        "contract_alarm": ("1 where the audits broke a certificate.", lambda watched: float(watched.record.alarmed)),
        "contract_e_value": (
            "Evidence of the audits against a certificate, 1 at the beginning.",
            lambda watched: audit.e_value(watched.record.test),
        ),
        "score_drift": (
            "Population stability index of the latest scores against the certificate's, beyond chance.",
            lambda watched: watched.stability_index(),
        ),
    }
    for name, (description, of) in by_contract.items():
        metrics.readings(name, description, ("model", "version"), partial(_contracts, parts.audits.standings, of))
    metrics.readings(
        "link_seconds",
        "How long a link's calls take of late, for payloads of the usual size.",
        ("link", "part", "quantile"),
        lambda: _link_seconds(parts.links.timings()),
    )
    for name, description, key in (
        ("budget_spent", "What was spent in this hour or day.", "spent"),
        ("budget_left", "What may still be spent in it.", "left"),
        ("budget_price", "What a unit is worth at the moment, 0 while the budget is ample.", "price"),
    ):
        metrics.readings(name, description, ("budget",), partial(_budgets, parts.spending, key))
    metrics.readings(
        "retries_total",
        "What was asked again after a failure, and what the budget did not allow to be.",
        ("outcome",),
        lambda: _retries(parts.links.chain),
        counts=True,
    )
    metrics.readings(
        "held_back_total",
        "Requests that would hardly have been answered in time: held back, or asked all the same to learn.",
        ("outcome",),
        lambda: {
            ("held_back",): parts.gateway.punctuality.held_back,
            ("explored",): parts.gateway.punctuality.explored,
        },
        counts=True,
    )
    metrics.readings(
        "hedges_total",
        "Calls to the full model that were made before the edge model had answered.",
        ("outcome",),
        lambda: {("used",): parts.hedging.used, ("unneeded",): parts.hedging.unneeded},
        counts=True,
    )


def _contracts(standings: Standings, of: Callable[[Watched], float | None]) -> dict[tuple[str, ...], float]:
    """Of several variants of a model, the worst."""
    found: dict[tuple[str, ...], float] = {}
    for watched in standings:
        labels, value = (watched.record.model, watched.record.version), of(watched)
        if value is not None:
            found[labels] = max(value, found.get(labels, value))
    return found


def _link_seconds(timings: Mapping[str, TimingReport | None]) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for link, timing in timings.items():
        for part in ("total", "network", "service"):
            for quantile, field in (("0.5", f"{part}_p50_ms"), ("0.95", f"{part}_p95_ms")):
                ms = getattr(timing, field, None)
                if ms is not None:
                    found[link, part, quantile] = ms / 1000
    return found


def _budgets(spending: Spending | None, key: str) -> dict[tuple[str, ...], float]:
    return {(budget["budget"],): budget[key] for budget in spending.status()} if spending is not None else {}


def _retries(chain: LinkChain | None) -> dict[tuple[str, ...], float]:
    return {("allowed",): chain.retries.retries, ("denied",): chain.retries.denied} if chain is not None else {}


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
        "row_ms_from": ("load" if edge.profiled is None else "profile") if edge is not None else None,
        "score_digest": held.manifest.policy.score.digest,
        "threshold": threshold if math.isfinite(threshold) else None,
        "passed_over": list(edge.loaded.passed_over) if edge is not None else [],
        "certificate": certificate_of(held),
        "problem": held.problem or complaint or None,
        "variants": held.variants.describe() if held.variants is not None else None,
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
        "by": certificate.by,
        "thresholds": {label: group.threshold for label, group in certificate.groups.items()},
    }


def _problems(parts: Parts) -> list[tuple[Path, str]]:
    found = [(problem.path, problem.message) for problem in parts.models.problems]
    found += parts.profiles.problems.items()
    found += [(parts.state.standing_path, parts.audits.standings.problem)]
    if parts.spending is not None:
        found += [(parts.state.spending_path, parts.spending.problem)]
    found += [(parts.identity.folder, problem) for problem in parts.identity.problems]
    found += [(parts.state.cache_path, parts.cache.problem), (parts.state.outbox_path, parts.outbox.problem)]
    found += [(parts.state.outbox_path, parts.outbox.damage)]
    found += [(parts.sampler.tree.root, missing_kernel_files(parts.sampler.tree))]
    found += [(parts.state.path, problem) for problem in parts.background.problems.values()]
    return [(path, message) for path, message in found if message]
