"""The API's description: the framework's own routes, and by hand the raw ones that it does not see."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from firstline_core.protocol.openapi import MODEL, VERSION, short_infer, v2_infer


def describe(app: FastAPI) -> None:
    """Puts the raw routes into the app's description."""
    framework = app.openapi

    def whole() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = framework()
            schema["paths"] |= {
                "/v2/models/{model}/infer": {"post": v2_infer("Run the current version.", MODEL)},
                "/v2/models/{model}/versions/{version}/infer": {"post": v2_infer("Run a version.", MODEL, VERSION)},
                "/firstline/v1/models/{model}/infer": {
                    "post": short_infer(
                        route={"enum": ["auto", "cloud"]}, timeout={"type": "integer", "description": "Microseconds."}
                    )
                },
            }
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = whole  # type: ignore[method-assign]  # FastAPI's documented way to extend it
