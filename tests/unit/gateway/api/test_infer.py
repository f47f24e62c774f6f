"""Inference over HTTP, without a server."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.gateway import gated_gateway
from support.memory import growth_below

from firstline_core.protocol.asgi import RequestInfo
from firstline_gateway.api.infer import InferenceApp, match_route
from firstline_gateway.app import Gateway


def app_of(gateway: Gateway) -> InferenceApp:
    async def control_plane(*_: object) -> None:
        raise NotImplementedError

    return InferenceApp(
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


def scope_of(model: str, info: RequestInfo) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": f"/v2/models/{model}/infer",
        "headers": [],
        "query_string": b"",
        "state": {"firstline": info},
    }


@pytest.mark.parametrize("has_left", [True, False])
async def test_a_client_that_leaves_during_its_answer_ends_quietly(tmp_path: Path, has_left: bool) -> None:
    gateway, _ = gated_gateway(tmp_path)
    info = RequestInfo(0.0)
    info.whole = True

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(_message: object) -> None:
        info.disconnected = has_left
        raise asyncio.CancelledError

    answering = asyncio.create_task(app_of(gateway)(scope_of("absent", info), receive, send))
    await asyncio.wait([answering])
    assert answering.cancelled() is not has_left
    await gateway.close()


async def test_the_body_of_a_refused_request_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    gateway, _ = gated_gateway(tmp_path)
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": bytes(1_000_000), "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    with growth_below(3_000_000):  # the thread that decodes may keep the latest
        for _ in range(10):
            info = RequestInfo(0.0)
            info.whole = True
            await app_of(gateway)(scope_of("digits", info), receive, send)
    assert statuses == [400] * 10
    await gateway.close()


def test_long_paths_are_not_remembered() -> None:
    with growth_below(100_000):
        for number in range(100):
            found = match_route(f"/v2/models/{number:05}{'m' * 60_000}/infer")
            assert found is not None and found.model.startswith(f"{number:05}")
            assert match_route(f"/v2/{number:05}{'m' * 60_000}") is None
            del found
