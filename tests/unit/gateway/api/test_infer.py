"""Inference over HTTP, without a server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.gateway import gated_gateway

from firstline_core.protocol.asgi import RequestInfo
from firstline_gateway.api.infer import InferenceApp


@pytest.mark.parametrize("has_left", [True, False])
async def test_a_client_that_leaves_during_its_answer_ends_quietly(tmp_path: Path, has_left: bool) -> None:
    gateway, _ = gated_gateway(tmp_path)
    info = RequestInfo(0.0)
    info.whole = True
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v2/models/absent/infer",
        "headers": [],
        "query_string": b"",
        "state": {"firstline": info},
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(_message: object) -> None:
        info.disconnected = has_left
        raise asyncio.CancelledError

    async def control_plane(*_: object) -> None:
        raise NotImplementedError

    app = InferenceApp(
        control_plane,
        gateway.plane,
        gateway.files,
        gateway.jobs,
        gateway.identity,
        overload=gateway.overload,
        bodies=gateway.bodies,
        metrics=gateway.metrics,
        clock=gateway.clock,
    )
    answering = asyncio.create_task(app(scope, receive, send))
    await asyncio.wait([answering])
    assert answering.cancelled() is not has_left
    await gateway.close()
