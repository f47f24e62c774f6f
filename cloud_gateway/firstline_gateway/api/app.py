"""The HTTP application: the infer routes first, then the framework's."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

from firstline_gateway import __version__
from firstline_gateway.api import contracts, control, errors, executors, identity, jobs, openapi, store
from firstline_gateway.api.fleet import audit, blobs, configurations, devices, profiles, registry, rollouts, twins
from firstline_gateway.api.gateway import Gateway
from firstline_gateway.api.infer import InferenceApp, infer_routes


def create_asgi(gateway: Gateway) -> ASGIApp:
    """All that a gateway serves; requests for inference see nothing of the framework."""
    return InferenceApp(create_app(gateway), gateway)


def create_app(gateway: Gateway) -> FastAPI:
    """The framework's application, with every address; `GET /openapi.json` describes it."""
    app = FastAPI(
        title="Firstline gateway",
        version=__version__,
        routes=list(infer_routes()),
        redirect_slashes=False,
        # The documentation pages load scripts from other hosts; the description itself is served.
        docs_url=None,
        redoc_url=None,
    )
    app.state.gateway = gateway
    for router in (
        control.health,
        control.metadata,
        control.operation,
        control.metrics,
        contracts.router,
        identity.enrolment,
        identity.fleet,
        store.router,
        executors.router,
        jobs.router,
        blobs.reading,
        blobs.writing,
        registry.reading,
        registry.keeping,
        configurations.router,
        twins.router,
        devices.router,
        rollouts.router,
        profiles.router,
        profiles.own,
        audit.router,
    ):
        app.include_router(router)
    errors.install(app, gateway.metrics.error)
    openapi.describe(app)
    return app
