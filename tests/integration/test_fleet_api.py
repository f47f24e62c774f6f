"""The fleet over HTTP: twins of devices, the operators' view, access, and the audit log."""

import asyncio
from typing import Any

import httpx
import msgspec
import pytest
from msgspec.structs import replace
from support.desired import desire
from support.gateway import client_of
from support.profiles import profile

from firstline_core.fleet.audit_log import verify_log
from firstline_core.fleet.profiles import NewProfileRequest, own_profile_path, profile_path, requests_path
from firstline_core.fleet.telemetry import ModelCounts, Telemetry
from firstline_core.fleet.twin import Brake, Desired, DesiredModel, Reported, RunningModel
from firstline_core.profile.profile import encode
from firstline_gateway import audit_log
from firstline_gateway.app import Gateway

REPORTED = Reported("session-1", 1, models=(RunningModel("digits", 1),), agent_version="0.1.0")
WANTED = DesiredModel("digits", 2, "0" * 64)


def json(value: object) -> dict[str, Any]:
    return {"content": msgspec.json.encode(value), "headers": {"Content-Type": "application/json"}}


async def test_unchanged_desired_state_is_not_sent_again(gateway: Gateway, cam: httpx.AsyncClient) -> None:
    first = await cam.get("/fleet/v1/twin")
    assert first.status_code == 200 and msgspec.json.decode(first.content, type=Desired) == Desired(0)
    cached = {"If-None-Match": first.headers["etag"]}
    assert (await cam.get("/fleet/v1/twin", headers=cached)).status_code == 304
    assert await desire(gateway, ["cam"], lambda _, before: replace(before, models=(WANTED,))) == ["cam"]
    then = await cam.get("/fleet/v1/twin", headers=cached)
    assert msgspec.json.decode(then.content, type=Desired) == Desired(1, (WANTED,))


async def test_operators_see_a_devices_report_and_its_age(cam: httpx.AsyncClient, operator: httpx.AsyncClient) -> None:
    assert (await cam.put("/fleet/v1/twin/reported", **json(REPORTED))).status_code == 204
    page = (await operator.get("/fleet/v1/devices")).json()
    assert [device["name"] for device in page["devices"]] == ["cam"] and page["after"] is None
    shown = (await operator.get("/fleet/v1/devices/cam")).json()
    assert shown["reported"]["models"][0]["version"] == 1
    assert shown["accepted"] and shown["online"] and 0 <= shown["last_seen_age_s"] < 60


async def test_the_history_of_answers_by_tier(
    gateway: Gateway, cam: httpx.AsyncClient, operator: httpx.AsyncClient
) -> None:
    for sequence in (1, 2):
        counts = ModelCounts("digits", 1, rows=10 * sequence, kept=8 * sequence, escalated=2 * sequence)
        await cam.post("/fleet/v1/twin/telemetry", **json(Telemetry("session-1", sequence, 60.0, (counts,))))
    await gateway.fleet.store_tiers()
    for params, expected in (
        ({}, (16, 4, 0)),
        ({"model": "digits", "hours": 1}, (16, 4, 0)),
        ({"model": "x"}, (0,) * 3),
    ):
        history = (await operator.get("/fleet/v1/tiers", params=params)).json()
        sums = tuple(sum(point[name] for point in history["points"]) for name in ("kept", "escalated", "errors"))
        assert sums == expected and history["models"] == ["digits"]


async def test_devices_are_found_by_model(cam: httpx.AsyncClient, operator: httpx.AsyncClient) -> None:
    await cam.put("/fleet/v1/twin/reported", **json(REPORTED))
    for params, count in (
        ({"model": "digits"}, 1),
        ({"model": "digits", "version": 1}, 1),
        ({"model": "digits", "version": 2}, 0),
        ({"model": "words"}, 0),
        ({"model": "digits", "selector": "site"}, 0),
    ):
        found = (await operator.get("/fleet/v1/devices", params={"limit": 1} | params)).json()
        assert len(found["devices"]) == count, params


async def test_tags_select_devices_and_need_the_latest_state(
    gateway: Gateway, cam: httpx.AsyncClient, operator: httpx.AsyncClient
) -> None:
    await cam.get("/fleet/v1/twin")
    seen = await operator.get("/fleet/v1/devices/cam")
    match = {"If-Match": seen.headers["etag"]}
    tagged = await operator.patch("/fleet/v1/devices/cam", json={"tags": {"site": "berlin"}}, headers=match)
    assert tagged.json()["tags"] == {"site": "berlin"}
    late = await operator.patch("/fleet/v1/devices/cam", json={"tags": {"site": "paris"}}, headers=match)
    assert late.status_code == 409 and late.json()["code"] == "conflict"
    for selector, count in (("site=berlin", 1), ("site=paris", 0), ("!site", 0)):
        found = await operator.get("/fleet/v1/devices", params={"selector": selector})
        assert len(found.json()["devices"]) == count


async def test_the_brake_reaches_all_devices_and_is_lifted(cam: httpx.AsyncClient, operator: httpx.AsyncClient) -> None:
    await cam.get("/fleet/v1/twin")
    brake = Brake(0.0, "the gateway is being moved")
    assert (await operator.put("/fleet/v1/brake", **json(brake))).json()["devices"] == 1
    assert msgspec.json.decode((await cam.get("/fleet/v1/twin")).content, type=Desired).brake == brake
    assert (await operator.get("/fleet/v1/brake")).json()["brake"]["reason"] == brake.reason
    assert (await operator.delete("/fleet/v1/brake")).json() == {"brake": None, "devices": 1}
    assert msgspec.json.decode((await cam.get("/fleet/v1/twin")).content, type=Desired) == Desired(2)


async def test_changes_by_operators_are_in_the_audit_log(
    gateway: Gateway, cam: httpx.AsyncClient, operator: httpx.AsyncClient
) -> None:
    await cam.get("/fleet/v1/twin")
    await operator.patch("/fleet/v1/devices/cam", json={"tags": {"site": "berlin"}})
    await operator.put("/fleet/v1/brake", **json(Brake(5.0, "why")))
    assert (await operator.post("/fleet/v1/devices/cam/decommission")).status_code == 200
    assert (await operator.get("/fleet/v1/devices/cam")).status_code == 404
    with gateway.store.database.reading() as connection:
        entries = audit_log.page(connection, audit_log.EntryFilter(0), 100)
    verify_log(entries)
    assert [(entry.actor, entry.action) for entry in entries] == [
        ("application:ops", "device.tag"),
        ("application:ops", "fleet.brake"),
        ("application:ops", "device.revoke"),
        ("application:ops", "device.decommission"),
    ]


async def test_decommissioning_deletes_profiles_and_requests(
    gateway: Gateway, gateway_url: str, cam: httpx.AsyncClient, operator: httpx.AsyncClient
) -> None:
    await cam.get("/fleet/v1/twin")
    requested = await operator.post(requests_path("cam"), **json(NewProfileRequest("digits", 1)))
    assert requested.status_code == 201, requested.text
    measured = await cam.put(own_profile_path("digits", 1), content=encode(profile(1.0, machine="cam")))
    assert measured.status_code == 200, measured.text
    assert (await operator.get(profile_path("digits", 1, "cam"))).status_code == 200
    assert (await operator.post("/fleet/v1/devices/cam/decommission")).status_code == 200
    assert (await operator.get(profile_path("digits", 1, "cam"))).status_code == 404
    async with client_of(gateway, gateway_url, "cam", "device") as new:  # a device of the same name starts without them
        assert (await new.get("/fleet/v1/twin")).status_code == 200
    assert (await operator.get(requests_path("cam"))).json()["requests"] == []


REFUSED = [
    ("PUT", "/fleet/v1/brake", b"[", 400),
    ("PUT", "/fleet/v1/brake", b'{"escalations_per_hour": -1, "reason": ""}', 400),
    ("PUT", "/fleet/v1/brake", b" " * (1 << 21), 413),
    ("PATCH", "/fleet/v1/devices/cam", b'{"tags": {"a b": "c"}}', 400),
    ("PATCH", "/fleet/v1/devices/cam", b'{"colour": 1}', 400),
    ("PATCH", "/fleet/v1/devices/nobody", b"{}", 404),
    ("GET", "/fleet/v1/devices/..%2f", b"", 404),
    ("GET", "/fleet/v1/devices/a%00b", b"", 400),
    ("GET", "/fleet/v1/devices?selector=a%20b", b"", 400),
    ("GET", "/fleet/v1/devices?limit=0", b"", 400),
    ("GET", "/fleet/v1/devices?model=a%20b", b"", 400),
    ("GET", "/fleet/v1/devices?model=a&version=0", b"", 400),
    ("GET", "/fleet/v1/tiers?hours=49", b"", 400),
    ("GET", "/fleet/v1/tiers?model=a%20b", b"", 400),
    ("GET", "/fleet/v1/nothing", b"", 404),
    ("DELETE", "/fleet/v1/devices", b"", 405),
]


async def test_a_refusal_is_a_problem_document(operator: httpx.AsyncClient) -> None:
    for method, path, content, status in REFUSED:
        refused = await operator.request(method, path, content=content)
        assert refused.status_code == status, (method, path, refused.text)
        assert refused.headers["content-type"] == "application/problem+json"
        problem = refused.json()
        assert problem["status"] == status and problem["title"] and problem["code"]
        assert problem["detail"].endswith(".") and "Traceback" not in problem["detail"]


async def test_only_known_callers_learn_of_unknown_query_parameters(operator: httpx.AsyncClient) -> None:
    path = "/fleet/v1/devices?limt=3"
    refused = await operator.get(path)
    assert refused.status_code == 400 and "did you mean 'limit'?" in refused.json()["detail"]
    assert (await operator.get(path, headers={"Authorization": "Bearer wrong"})).status_code == 401


async def test_a_fleet_refusal_names_the_scheme_of_keys(operator: httpx.AsyncClient) -> None:
    refused = await operator.get("/fleet/v1/devices", headers={"Authorization": "Bearer wrong"})
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.usefixtures("store_settings")
async def test_only_one_of_concurrent_changes_succeeds(
    gateway: Gateway, cam: httpx.AsyncClient, operator: httpx.AsyncClient
) -> None:
    assert (await cam.put("/fleet/v1/twin/reported", **json(REPORTED))).status_code == 204
    address = "/fleet/v1/devices/cam"
    seen = {"If-Match": (await operator.get(address)).headers["etag"]}
    changes = [operator.patch(address, json={"tags": {"by": str(number)}}, headers=seen) for number in range(8)]
    statuses = sorted(reply.status_code for reply in await asyncio.gather(*changes))
    assert statuses == [200] + [409] * 7
