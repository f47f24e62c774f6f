"""The HTTP application: inference as plain ASGI, and the control plane as a FastAPI application."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

from firstline_gateway import __version__
from firstline_gateway.api import contracts, control, errors, executors, identity, jobs, openapi, store
from firstline_gateway.api.fleet import audit, blobs, configurations, devices, profiles, registry, rollouts, twins
from firstline_gateway.api.gateway import Gateway
from firstline_gateway.api.infer import InferenceApp, infer_routes


def create_asgi(gateway: Gateway) -> ASGIApp:
    """Returns the whole application; requests for inference do not reach the framework."""
    return InferenceApp(create_app(gateway), gateway)


def create_app(gateway: Gateway) -> FastAPI:
    """Returns the framework's application with every route; `GET /openapi.json` describes it."""
    app = FastAPI(
        title="Firstline gateway",
        version=__version__,
        routes=list(infer_routes()),
        redirect_slashes=False,
        # The framework's documentation pages load scripts from other hosts.
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
