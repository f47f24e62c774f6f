"""Routes that show the state of the gateway: metrics, executors, the store and webhooks."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from firstline_core.errors import CapacityError
from firstline_core.fleet.rest import WEBHOOKS_PATH, WebhookStates, WebhookTest
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_gateway.api.auth import Access, Operator
from firstline_gateway.api.messages import json_response, schemas
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher
from firstline_gateway.identity.audit_head import AuditLog
from firstline_gateway.store.store import Store
from firstline_gateway.webhooks.webhooks import Webhooks

log = logger(__name__)


def metrics_routes(metrics: RequestMetrics, access: Access) -> APIRouter:
    """Returns the route of the metrics."""
    router = APIRouter(tags=["health"], dependencies=[Depends(access.metrics)])

    @router.get("/metrics", response_class=PlainTextResponse)
    async def read_metrics(request: Request) -> Response:
        """Prometheus metrics, for an API key of any scope; for all callers if api.open_metrics is set."""
        content, content_type = metrics.render(request.headers.get("accept", ""))
        return Response(content, headers={"Content-Type": content_type})

    return router


def monitoring_routes(
    dispatcher: Dispatcher, store: Store, webhooks: Webhooks, audit_log: AuditLog, access: Access
) -> APIRouter:
    """Returns the routes of the executors, the store and the webhooks, for operators."""
    router = APIRouter(dependencies=[Depends(access.scope("fleet"))])

    @router.get("/firstline/v1/executors", tags=["executors"])
    async def list_executors() -> Response:
        """The executors, if there are several: their state, shares and speeds."""
        return json_response({"executors": dispatcher.report().executors})

    @router.get("/firstline/v1/store", tags=["store"])
    async def read_store() -> Response:
        """The database, and the reason if it accepts no writes at the moment."""
        problem = store.reason_down()
        return json_response({"database": store.database.shown, "up": not problem, "problem": problem})

    @router.get(WEBHOOKS_PATH, tags=["webhooks"], openapi_extra=schemas(WebhookStates))
    async def list_webhooks() -> Response:
        """The webhooks, with the reason if the latest attempt failed, and whether a message was ever delivered."""
        return json_response({"webhooks": [asdict(state) for state in await webhooks.states()]})

    @router.post(f"{WEBHOOKS_PATH}/{{webhook}}/test", tags=["webhooks"], openapi_extra=schemas(WebhookTest))
    async def test_webhook(webhook: str, principal: Operator) -> Response:
        """Send a signed message of the type `webhook.test` at once, and return the receiver's answer."""
        found = await webhooks.test(webhook)
        details = {"status": found.status, "problem": found.problem}
        try:
            await audit_log.note(principal, "webhook.test", f"webhook:{webhook}", details)
        except CapacityError as error:  # the operator needs the answer nevertheless
            log.error("audit entry not stored", action="webhook.test", principal=principal, why=error.message)
        return json_response(asdict(found))

    return router
