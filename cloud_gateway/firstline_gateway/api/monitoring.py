"""Routes that show the state of the gateway: metrics, executors, the store and webhooks."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from firstline_core.errors import CapacityError
from firstline_core.fleet.rest import WEBHOOKS_PATH, WebhookStates, WebhookTest
from firstline_core.telemetry.logs import logger
from firstline_gateway.api.auth import Operator, metrics_reader, scope
from firstline_gateway.api.messages import json_response, known_parameters, schemas
from firstline_gateway.api.services import AuditLogDep, DispatcherDep, MetricsDep, StoreDep, WebhooksDep

log = logger(__name__)

metrics_router = APIRouter(tags=["health"], dependencies=[Depends(metrics_reader), Depends(known_parameters)])
router = APIRouter(dependencies=[Depends(scope("fleet")), Depends(known_parameters)])


@metrics_router.get("/metrics", response_class=PlainTextResponse)
async def read_metrics(metrics: MetricsDep, request: Request) -> Response:
    """Prometheus metrics, for an API key of any scope; for all callers if api.open_metrics is set."""
    content, content_type = metrics.render(request.headers.get("accept", ""))
    return Response(content, headers={"Content-Type": content_type})


@router.get("/firstline/v1/executors", tags=["executors"])
async def list_executors(dispatcher: DispatcherDep) -> Response:
    """The executors, if there are several: their state, shares and speeds."""
    return json_response({"executors": dispatcher.report().executors})


@router.get("/firstline/v1/store", tags=["store"])
async def read_store(store: StoreDep) -> Response:
    """The database, and the reason if it accepts no writes at the moment."""
    problem = store.reason_down()
    return json_response({"database": store.database.shown, "up": not problem, "problem": problem})


@router.get(WEBHOOKS_PATH, tags=["webhooks"], openapi_extra=schemas(WebhookStates))
async def list_webhooks(webhooks: WebhooksDep) -> Response:
    """The webhooks, with the reason if the latest attempt failed, and whether a message was ever delivered."""
    return json_response({"webhooks": [asdict(state) for state in await webhooks.states()]})


@router.post(f"{WEBHOOKS_PATH}/{{webhook}}/test", tags=["webhooks"], openapi_extra=schemas(WebhookTest))
async def test_webhook(webhooks: WebhooksDep, audit_log: AuditLogDep, webhook: str, principal: Operator) -> Response:
    """Send a signed message of the type `webhook.test` at once, and return the receiver's answer."""
    found = await webhooks.test(webhook)
    details = {"status": found.status, "problem": found.problem}
    try:
        await audit_log.note(principal, "webhook.test", f"webhook:{webhook}", details)
    except CapacityError as error:  # the operator needs the answer nevertheless
        log.error("audit entry not stored", action="webhook.test", principal=principal, why=error.message)
    return json_response(asdict(found))
