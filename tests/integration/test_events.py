"""An answer's events, over a link that is cut and mended, an agent that restarts, callers who leave or do not read."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
from support.agent import edge_settings, serving_agent
from support.broker import free_port
from support.digits import predictions
from support.gateway import serving_gateway
from support.waiting import until

from firstline.demo.cuttable_link import CuttableLink
from firstline_core.telemetry.decisions import find
from firstline_edge.api.access import Access, TokenAccess
from firstline_edge.app import EdgeAgent

SHORT = "/firstline/v1/models/digits/infer"
STREAM = {"Accept": "text/event-stream"}
QUICK = {"breaker__open_ms": 50, "breaker__open_max_ms": 100}


@dataclass(frozen=True)
class Scans:
    """Scans by what the edge model says of them: it is sure; its class is the full model's; it is not."""

    sure: bytes
    confirmed: bytes
    corrected: bytes


@pytest.fixture(scope="module")
def scans() -> Scans:
    found = predictions(200)
    same = found.edge.argmax(axis=1) == found.full.argmax(axis=1)
    return Scans(
        sure=found.surest,
        confirmed=found.contents[int(np.flatnonzero(~found.sure & same)[0])],
        corrected=found.contents[int(np.flatnonzero(~found.sure & ~same)[0])],
    )


@contextlib.asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[CuttableLink]:
    """The way to a gateway that serves the digits."""
    async with serving_gateway(folder, auth__mode="off") as (_, url), CuttableLink(int(url.rpartition(":")[2])) as wire:
        yield wire


@dataclass(frozen=True)
class House:
    agent: EdgeAgent
    http: httpx.AsyncClient
    url: str

    async def promised(self, content: bytes, **query: str) -> dict[str, Any]:
        reply = (await self.http.post(SHORT, params=query, content=content)).json()
        assert (reply["status"], reply["durable"]) == ("provisional", True)
        return dict(reply)


@contextlib.asynccontextmanager
async def device(state: Path, port: int, access: Access | None = None, **overrides: Any) -> AsyncIterator[House]:
    link = {"kind": "http", "url": f"http://127.0.0.1:{port}"}
    settings = edge_settings(state, links=[link], **(QUICK | overrides))
    async with (
        serving_agent(settings, access=access) as (agent, url),
        httpx.AsyncClient(base_url=url, timeout=20) as http,
    ):
        yield House(agent, http, url)


def events_of(request_id: str) -> str:
    return f"/firstline/v1/answers/{request_id}/events"


async def events_from(response: httpx.Response) -> AsyncIterator[tuple[int, dict[str, Any]]]:
    """The ids and answers of a stream, until it ends."""
    assert response.headers["Content-Type"].startswith("text/event-stream")
    buffer = b""
    async for piece in response.aiter_bytes():
        *events, buffer = (buffer + piece).split(b"\n\n")
        for event in events:
            if not event.startswith(b":"):  # a heartbeat
                number, data = event.split(b"\n")
                yield int(number.removeprefix(b"id: ")), orjson.loads(data.removeprefix(b"data: "))


async def all_events(house: House, path: str, **headers: str) -> list[tuple[int, dict[str, Any]]]:
    async with house.http.stream("GET", path, headers=headers) as response:
        return [found async for found in events_from(response)]


async def test_events_send_the_present_and_the_final_answer(tmp_path: Path, scans: Scans) -> None:
    async with gateway(tmp_path) as wire, device(tmp_path, wire.port) as house:
        await wire.cut()
        first = await house.promised(scans.corrected)
        path = events_of(first["request_id"])
        async with house.http.stream("GET", path) as response:
            assert (response.status_code, response.headers["Cache-Control"]) == (200, "no-store")
            events = events_from(response)
            number, provisional = await anext(events)
            assert (number, provisional) == (1, first)
            await wire.restore()
            number, final = await anext(events)
            assert (number, final["status"], final["tier"], final["changed"]) == (2, "final", "cloud", True)
            assert provisional["label"] != final["label"]
            assert [found async for found in events] == []

        assert final == (await house.http.get(path.removesuffix("/events"))).json()
        assert await all_events(house, path) == [(2, final)]
        assert await all_events(house, path, **{"Last-Event-ID": "1"}) == [(2, final)]
        done = await house.http.get(path, headers={"Last-Event-ID": "2"})
        assert (done.status_code, done.content) == (204, b"")
        ((_, v2),) = await all_events(house, f"{path}?form=v2")
        assert v2["parameters"]["changed"] is True and v2["outputs"][0]["name"] == "probabilities"
        assert (await house.http.head(path)).status_code == 200
        house.agent.recorder.flush()
        lines = find(house.agent.state.decisions_path, first["request_id"])
        assert [line["changed"] for line in lines] == [None, True]
        assert len(house.agent.outbox.waiters) == 0


async def test_stream_returns_both_answers(tmp_path: Path, scans: Scans) -> None:
    async with gateway(tmp_path) as wire, device(tmp_path, wire.port) as house:
        for content, changed in ((scans.corrected, True), (scans.confirmed, False)):
            async with house.http.stream(
                "POST", SHORT, params={"wait": "first"}, content=content, headers=STREAM
            ) as response:
                (_, first), (_, last) = [found async for found in events_from(response)]
            assert (first["status"], first["reason"], first["request_id"]) == (
                "provisional", "requested", last["request_id"],
            )  # fmt: skip
            assert "changed" not in first
            assert (last["status"], last["changed"], last["certified"]) == ("final", changed, True)
            assert (first["label"] != last["label"]) is changed

        async with house.http.stream("POST", SHORT, content=scans.sure, headers=STREAM) as response:
            ((number, only),) = [found async for found in events_from(response)]
        assert (number, only["status"], only["reason"]) == (2, "final", "confident")
        plain = await house.http.post(SHORT, content=scans.sure, headers={"Accept": "*/*"})
        assert plain.headers["Content-Type"] == "application/json"
        refused = await house.http.post(SHORT, content=b"no picture", headers=STREAM)
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_tensor")
        assert len(house.agent.outbox.waiters) == 0


async def test_expired_promise_is_an_event(tmp_path: Path, scans: Scans) -> None:
    async with device(tmp_path, free_port(), outbox__max_age_s=0.5) as house:
        first = await house.promised(scans.corrected)
        found = await all_events(house, events_of(first["request_id"]))
        assert [(number, event["status"]) for number, event in found] in (
            [(1, "provisional"), (2, "expired")], [(2, "expired")],
        )  # fmt: skip
        assert "changed" not in found[-1][1]


async def test_answers_and_events_are_limited_to_the_caller_of_the_request(tmp_path: Path, scans: Scans) -> None:
    file = tmp_path / "tokens"
    file.write_text("camera:0123456789abcdef\nphone:fedcba9876543210\n")
    camera, phone = ({"Authorization": f"Bearer {t}"} for t in ("0123456789abcdef", "fedcba9876543210"))
    async with device(tmp_path / "state", free_port(), api__token_file=str(file)) as house:
        reply = (await house.http.post(SHORT, content=scans.corrected, headers=camera)).json()
        assert (reply["status"], reply["reason"], reply["durable"]) == ("provisional", "link_down", True)
        path = events_of(reply["request_id"])
        answer = path.removesuffix("/events")
        assert (await house.http.get(answer, headers=camera)).json()["status"] == "provisional"
        refused = await house.http.get(answer, headers=phone)
        assert (refused.status_code, refused.json()["code"]) == (404, "unknown_answer")
        for headers, expected in (
            ({}, (401, "unauthorized")),
            (phone, (404, "unknown_answer")),
            (camera | {"Last-Event-ID": "3"}, (400, "invalid_request")),
            (camera | {"Last-Event-ID": "one"}, (400, "invalid_request")),
        ):
            refused = await house.http.get(path, headers=headers)
            assert (refused.status_code, refused.json()["code"]) == expected
        unknown = await house.http.get(events_of("01890a5d-ac96-774b-bcce-b302099a8057"), headers=camera)
        assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_answer")
        misspelt = await house.http.get(f"{path}?fom=v2", headers=camera)
        assert misspelt.status_code == 400 and "did you mean 'form'?" in misspelt.json()["error"]
        twice = await house.http.get(f"{path}?form=v2&form=short", headers=camera)
        assert twice.status_code == 400 and "has several values, 'v2' and 'short'" in twice.json()["error"]
        form = await house.http.get(f"{path}?form=long", headers=camera)
        assert (form.status_code, form.json()["code"]) == (400, "invalid_request")
        async with house.http.stream("GET", path, headers=camera) as response:
            assert response.status_code == 200


@pytest.mark.parametrize("heartbeat_s", [pytest.param(0.05, id="silent"), pytest.param(60.0, id="final")])
async def test_stream_ends_after_its_token_was_removed(tmp_path: Path, scans: Scans, heartbeat_s: float) -> None:
    access = TokenAccess({"camera": "0123456789abcdef"})
    async with (
        gateway(tmp_path) as wire,
        device(tmp_path, wire.port, access, api__stream_heartbeat_s=heartbeat_s) as house,
    ):
        house.http.headers["Authorization"] = "Bearer 0123456789abcdef"
        await wire.cut()
        path = events_of((await house.promised(scans.corrected))["request_id"])
        async with house.http.stream("GET", path) as response:
            events = events_from(response)
            assert (await anext(events))[0] == 1
            access.adopt({"camera": "another token of 16"})
            if heartbeat_s > 1:
                await wire.restore()
            async with asyncio.timeout(20):
                assert [found async for found in events] == []


async def test_streams_are_limited_and_released(tmp_path: Path, scans: Scans) -> None:
    async with device(tmp_path, free_port(), api__streams_limit=1) as house:
        path = events_of((await house.promised(scans.corrected))["request_id"])
        async with house.http.stream("GET", path) as response:
            events = events_from(response)  # held: its end would be the connection's
            await anext(events)
            for refused in (
                await house.http.get(path),
                await house.http.post(SHORT, content=scans.confirmed, headers=STREAM),
            ):
                assert (refused.status_code, refused.json()["code"]) == (503, "queue_full")
                assert "api.streams_limit" in refused.json()["error"]
            assert (await house.http.post(SHORT, content=scans.sure)).status_code == 200

        async def free() -> bool:
            async with house.http.stream("GET", path) as response:
                return response.status_code == 200

        await until(free)  # the caller left


async def test_incomplete_request_uses_no_stream(tmp_path: Path, scans: Scans) -> None:
    async with device(tmp_path, free_port(), api__streams_limit=1) as house:
        with socket.create_connection(("127.0.0.1", int(house.url.rpartition(":")[2]))) as slow:
            head = "Host: 127.0.0.1\r\nAccept: text/event-stream\r\nContent-Length: 9\r\nExpect: 100-continue"
            slow.sendall(f"POST {SHORT} HTTP/1.1\r\n{head}\r\n\r\n".encode())
            slow.setblocking(False)
            loop = asyncio.get_running_loop()
            assert (await loop.sock_recv(slow, 100)).startswith(b"HTTP/1.1 100 ")  # its body is waited for
            async with house.http.stream("POST", SHORT, content=scans.sure, headers=STREAM) as response:
                assert response.status_code == 200


async def test_idle_stream_sends_heartbeats(tmp_path: Path, scans: Scans) -> None:
    async with device(tmp_path, free_port(), api__stream_heartbeat_s=0.01) as house:
        path = events_of((await house.promised(scans.corrected))["request_id"])
        async with house.http.stream("GET", path, headers={"Last-Event-ID": "1"}) as response:
            pieces = response.aiter_bytes()
            assert [await anext(pieces) for _ in range(3)] == [b":\n\n"] * 3


async def test_idle_reader_delays_no_other_caller(tmp_path: Path, scans: Scans) -> None:
    async with device(tmp_path, free_port(), api__stream_heartbeat_s=0.001) as house:
        path = events_of((await house.promised(scans.corrected))["request_id"])
        with socket.create_connection(("127.0.0.1", int(house.url.rpartition(":")[2]))) as idle:
            idle.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            for _ in range(20):
                assert (await house.http.post(SHORT, content=scans.sure)).status_code == 200
            async with house.http.stream("GET", path) as response:
                assert (await anext(events_from(response)))[0] == 1


async def test_stream_ends_with_the_agent_and_continues_at_the_next(tmp_path: Path, scans: Scans) -> None:
    async with gateway(tmp_path) as wire, httpx.AsyncClient() as caller:
        async with device(tmp_path, wire.port) as house:
            await wire.cut()
            path = events_of((await house.promised(scans.corrected))["request_id"])
            response = await caller.send(caller.build_request("GET", house.url + path), stream=True)
            events = events_from(response)
            assert (await anext(events))[0] == 1
        # The agent did not wait for the last word; the stream has none, but came to a proper end.
        assert [found async for found in events] == []
        await wire.restore()
        async with device(tmp_path, wire.port) as house:
            ((number, final),) = await all_events(house, path, **{"Last-Event-ID": "1"})
            assert (number, final["status"], final["changed"]) == (2, "final", True)
