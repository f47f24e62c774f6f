"""The HTTP application: the infer routes first, then the framework's."""

from __future__ import annotations

from fastapi import FastAPI

from firstline_gateway import __version__
from firstline_gateway.api import contracts, control, errors, identity, openapi, store
from firstline_gateway.api.infer import InferFirst, infer_routes
from firstline_gateway.gateway import Gateway


def create_app(gateway: Gateway) -> FastAPI:
    """The ASGI application of a gateway; `GET /openapi.json` describes it."""
    app = FastAPI(
        title="Firstline gateway",
        version=__version__,
        routes=list(infer_routes(gateway)),
        redirect_slashes=False,
        # The documentation pages load scripts from other hosts; the description itself is served.
        docs_url=None,
        redoc_url=None,
    )
    app.state.gateway = gateway
    for router in (
        control.health,
        control.metadata,
        control.metrics,
        contracts.router,
        identity.enrolment,
        identity.fleet,
        store.router,
    ):
        app.include_router(router)
    app.add_middleware(InferFirst, gateway=gateway)
    errors.install(app)  # around it
    openapi.describe(app)
    return app
