"""Routes for operators: the audits of all devices by contract, and the end of an alarm."""

from __future__ import annotations

from asyncio import wrap_future
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Depends
from msgspec.structs import asdict
from starlette.responses import Response

from firstline_core.bundle.manifest import Model
from firstline_core.errors import UnknownModelError
from firstline_core.fleet.rest import CONTRACTS_PATH, ContractStates
from firstline_core.protocol.tensors import shown
from firstline_core.routing import audit
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.wording import iso_time
from firstline_core.types import ModelKey
from firstline_gateway.api.auth import Operator, Sees, scope
from firstline_gateway.api.messages import json_response, known_parameters, schemas
from firstline_gateway.api.services import ContractsDep, RepositoryDep
from firstline_gateway.contracts.monitor import ContractMonitor
from firstline_gateway.contracts.pool import AuditPool, PoolKey, new_pool, promises_in
from firstline_gateway.contracts.records import Contribution
from firstline_gateway.fleet.alarms import DeviceAlarm
from firstline_gateway.models.repository import Repository
from firstline_gateway.store.store import CHECK_CHANGE, limited_wait

# A pool's devices with the most disagreements, and the latest alarms; the devices' metrics have all of them.
_DEVICES_SHOWN = 100

log = logger(__name__)

router = APIRouter(
    prefix=CONTRACTS_PATH,
    tags=["contracts"],
    dependencies=[Depends(scope("fleet", to_change="admin")), Depends(known_parameters)],
)


@router.get("", openapi_extra=schemas(ContractStates))
async def list_contracts(contracts: ContractsDep, repository: RepositoryDep, sees: Sees) -> Response:
    """The audits of every contract."""
    await contracts.refreshed()
    return json_response(await _contracts(contracts, repository, contracts.pools(), "", sees))


@router.get("/{bundle}", openapi_extra=schemas(ContractStates))
async def read_contract(contracts: ContractsDep, repository: RepositoryDep, sees: Sees, bundle: str) -> Response:
    """The contracts of a bundle, with the devices that contributed most disagreements."""
    await contracts.refreshed()
    pools = [pool for pool in contracts.pools() if pool.key.bundle == bundle]
    if not pools:
        repository.versions(bundle)  # raises if the bundle is not served either
    details = await contracts.details([pool.key for pool in pools], _DEVICES_SHOWN)
    named = {one.device for contributions, _ in details.values() for one in contributions}
    seen = {name for name in named if await sees(name)}
    found = await _contracts(contracts, repository, pools, bundle, sees)
    for described, (contributions, evidence) in zip(found["contracts"], details.values(), strict=True):
        described["contributions"] = [_contribution(one) for one in contributions if one.device in seen]
        described["evidence"] = [asdict(one) for one in evidence]
    return json_response({"bundle": bundle, **found})


@router.delete("/{bundle}/versions/{version}")
async def end_contract(contracts: ContractsDep, principal: Operator, bundle: str, version: str) -> Response:
    """End the alarms of a version: delete its audits and start again."""
    model = _model(bundle, version)
    async with limited_wait(contracts.store.database, CHECK_CHANGE):
        ended = await wrap_future(contracts.end(model, principal))
    if not ended:
        raise UnknownModelError(f"There are no audits of version {shown(version)} of {shown(bundle)} here.")
    log.warning("contract audits deleted", model=model.name, version=model.version, principal=principal, tests=ended)
    return json_response({"ended": ended})


async def _contracts(
    contracts: ContractMonitor, repository: Repository, pools: Sequence[AuditPool], bundle: str, sees: Sees
) -> dict[str, Any]:
    """Returns what pools show, and the alarms of the devices that the person sees; "" is all bundles."""
    alarms = [one for one in contracts.device_alarms() if bundle in ("", one.model.name)]
    return {
        "delta": contracts.delta,
        "contracts": [_described(contracts, repository, pool) for pool in pools],
        "unaudited": [one for one in _unaudited(contracts, repository) if bundle in ("", one["bundle"])],
        "device_alarms": _device_alarms(repository, [one for one in alarms if await sees(one.device)]),
    }


def _described(contracts: ContractMonitor, repository: Repository, pool: AuditPool) -> dict[str, Any]:
    key = pool.key
    model = key.model
    level = pool.level(contracts.delta)
    return {
        "bundle": key.bundle,
        "version": str(key.version),
        "served": model in repository.models,
        "variant": _variant(repository, model, key.edge_digest),
        "edge_digest": key.edge_digest,
        "threshold": key.threshold,
        "event": key.event or None,
        "epsilon": key.epsilon,
        "promise": _promise(key, _edge(repository, model, key.edge_digest)),
        "state": pool.result(contracts.delta).value,
        "finding": pool.finding,
        "audits": pool.state.audits,
        "audits_needed": audit.audits_to_alarm(pool.state, level),
        "level": level,
        "disagreements": pool.disagreements,
        "risk": pool.risk,
        "e_value": audit.e_value(pool.state),
        "e_value_peak": pool.state.peak,
        "alarmed_since": None if pool.alarmed_s is None else iso_time(pool.alarmed_s),
        "first_audit": iso_time(pool.first_s),
        "last_audit": iso_time(pool.last_s),
        "devices": contracts.devices(key),
        "devices_last_hour": contracts.devices_last_hour(model),
        "escalations_per_hour": contracts.quota_per_device(model),
    }


def _unaudited(contracts: ContractMonitor, repository: Repository) -> list[dict[str, Any]]:
    """Returns the promises of the served bundles that no audit tests yet."""
    audited = {pool.key for pool in contracts.pools()}
    found: dict[PoolKey, int] = {}  # each with the number of promises of its contract
    for served in repository.models.values():
        promises = promises_in(served.manifest)
        found |= {key: sum(one.edge_digest == key.edge_digest for one in promises) for key in promises}
    nothing = {"finding": "", "first_audit": None, "last_audit": None}
    return [
        _described(contracts, repository, new_pool(key, 0.0, promises=promises)) | nothing
        for key, promises in sorted(found.items())
        if key not in audited
    ]


def _promise(key: PoolKey, variant: Model | None) -> str:
    """Returns a promise as a sentence."""
    of = f"{key.bundle} {key.version}" + (f" ({variant.id})" if variant is not None else "")
    share = f"at most {100 * key.epsilon:.4g} %"
    if key.event:
        return f"Edge answers of {of} have the error '{key.event}' in {share} of the cases in which it can occur."
    if variant is not None and variant.certificate is not None and not variant.certificate.graded:
        return f"{share.capitalize()} of edge answers of {of} disagree with the full model."
    return f"The mean loss of edge answers of {of} against the full model's is {share}."


def _contribution(one: Contribution) -> dict[str, Any]:
    return {
        "device": one.device,
        "audits": one.audits,
        "disagreements": one.disagreements,
        "last_audit": iso_time(one.last_s),
    }


def _device_alarms(repository: Repository, alarms: Sequence[DeviceAlarm]) -> list[dict[str, Any]]:
    return [
        {
            "bundle": alarm.model.name,
            "version": str(alarm.model.version),
            "variant": _variant(repository, alarm.model, alarm.edge_digest),
            "edge_digest": alarm.edge_digest,
            "event": alarm.event or None,
            "device": alarm.device,
            "since": iso_time(alarm.since_s),
            "last_said": iso_time(alarm.last_s),
            "ended": None if alarm.ended_s is None else iso_time(alarm.ended_s),
        }
        for alarm in alarms[:_DEVICES_SHOWN]
    ]


def _variant(repository: Repository, model: ModelKey, edge_digest: str) -> str | None:
    variant = _edge(repository, model, edge_digest)
    return variant.id if variant is not None else None


def _edge(repository: Repository, model: ModelKey, edge_digest: str) -> Model | None:
    served = repository.models.get(model)
    variants = served.manifest.edge if served is not None else ()
    return next((variant for variant in variants if variant.digest == edge_digest), None)


def _model(bundle: str, version: str) -> ModelKey:
    """Returns the key of a version, which need not be served any more."""
    # int() of very long texts takes long.
    is_number = version.isascii() and version.isdigit() and len(version) <= 18
    return ModelKey(bundle, int(version) if is_number else 0)
