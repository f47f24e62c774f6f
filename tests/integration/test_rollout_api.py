"""Rollouts and the audit log over HTTP, with the twins of devices."""

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from support.digits import digits_bundle
from support.gateway import client_of
from support.pools import KEY, pool_of
from support.registry_site import registry_site

from firstline_core.fleet.audit_log import Head, verify_log
from firstline_core.fleet.rollout_documents import AuditPage, Look, Plan, RolloutSummary
from firstline_core.fleet.twin import Desired, Reported, RunningModel, Update
from firstline_core.fleet.update import UpdateState
from firstline_gateway.app import Gateway
from firstline_gateway.contracts import records as contract_records
from firstline_gateway.rollouts import records
from firstline_gateway.store import store as store_module

ROLLOUTS = "/fleet/v1/rollouts"
LIMITS = {
    name: {"tolerance": 1000} for name in ("crashes", "errors", "latency", "escalations", "disagreement", "alarms")
}
DEFINITION: dict[str, Any] = {
    "bundle": "digits",
    "version": 2,
    "manifest_sha256": "0" * 64,
    "stages": [{"share": 1.0, "soak_s": 0}],
    "rules": {"limits": LIMITS},
    "held_back": 0,
}


async def report(cam: httpx.AsyncClient, sequence: int, revision: int, version: int, *updates: Update) -> None:
    reported = Reported("session", sequence, revision, (RunningModel("digits", version),), updates)
    assert (await cam.put("/fleet/v1/twin/reported", content=msgspec.json.encode(reported))).status_code == 204


async def desired(cam: httpx.AsyncClient) -> Desired:
    return msgspec.json.decode((await cam.get("/fleet/v1/twin")).content, type=Desired)


@pytest.mark.usefixtures("store_settings")
async def test_a_model_is_rolled_out_and_back(
    gateway: Gateway, cam: httpx.AsyncClient, operator: httpx.AsyncClient
) -> None:
    await report(cam, 1, 0, 1)
    created = await operator.post(ROLLOUTS, json=DEFINITION)
    assert created.status_code == 201 and created.json()["state"] == "approved"
    one = f"{ROLLOUTS}/{created.json()['id']}"
    await operator.post(f"{one}/start", headers={"If-Match": created.headers["etag"]})
    await gateway.rollout_driver.drive()
    document = await desired(cam)
    assert document.models[0].version == 2 and document.models[0].rollout == created.json()["id"]
    assert document.audits == ("digits",)
    await report(cam, 2, document.revision, 2, Update("digits", 2, UpdateState.COMMITTED, rollout=created.json()["id"]))
    await gateway.rollout_driver.drive()
    found = (await operator.get(one)).json()
    assert found["state"] == "completed" and found["devices"] == {"done": 1}, found["sentence"]
    assert (await desired(cam)).audits == ()
    looks = (await operator.get(f"{one}/looks")).json()["looks"]
    assert [look["decision"] for look in looks] == ["promote"]
    assert (await operator.post(f"{one}/rollback")).json()["state"] == "rolling_back"
    await gateway.rollout_driver.drive()
    document = await desired(cam)
    assert document.models[0].undone
    await report(cam, 3, document.revision, 1)
    await gateway.rollout_driver.drive()
    assert (await operator.get(one)).json()["state"] == "rolled_back"


async def test_a_plan_may_take_longer_than_other_reads(
    operator: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await operator.get(ROLLOUTS)).status_code == 200
    monkeypatch.setattr(store_module, "PATIENCE_S", 0.0)
    assert (await operator.get(ROLLOUTS)).status_code == 503
    assert (await operator.post(f"{ROLLOUTS}/plan", json=DEFINITION)).status_code == 200


@pytest.mark.usefixtures("store_settings")
async def test_a_repeated_request_creates_one_rollout(operator: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "once"}
    first = await operator.post(ROLLOUTS, json=DEFINITION, headers=headers)
    again = await operator.post(ROLLOUTS, json=DEFINITION, headers=headers)
    assert first.json()["id"] == again.json()["id"]
    other = await operator.post(ROLLOUTS, json=DEFINITION | {"version": 3}, headers=headers)
    assert other.status_code == 409
    await operator.post(ROLLOUTS, json=DEFINITION)
    page = (await operator.get(ROLLOUTS, params={"limit": 1})).json()
    rest = (await operator.get(ROLLOUTS, params={"after": page["after"]})).json()
    assert [each["id"] for each in rest["rollouts"]] == [first.json()["id"]]


async def test_a_second_person_approves_and_a_newer_rollout_supersedes(
    gateway: Gateway, gateway_url: str, cam: httpx.AsyncClient, operator: httpx.AsyncClient
) -> None:
    await report(cam, 1, 0, 1)
    rollout = (await operator.post(ROLLOUTS, json=DEFINITION | {"approval": True})).json()
    one = f"{ROLLOUTS}/{rollout['id']}"
    refused = await operator.post(f"{one}/start")
    assert refused.status_code == 400 and "approve" in refused.json()["detail"]
    assert (await operator.post(f"{one}/approve")).status_code == 403
    async with client_of(gateway, gateway_url, "second", "operator") as second:
        assert (await second.post(f"{one}/approve")).json()["approved_by"] == "application:second"
    assert (await operator.post(f"{one}/start")).json()["state"] == "running"
    await gateway.rollout_driver.drive()
    newer = (await operator.post(ROLLOUTS, json=DEFINITION | {"version": 3})).json()
    planned = msgspec.json.decode(
        (await operator.post(f"{ROLLOUTS}/plan?size_bytes=7", json=DEFINITION)).content, type=Plan
    )
    assert planned.supersedes == (rollout["id"],) and planned.bytes == 7
    await operator.post(f"{ROLLOUTS}/{newer['id']}/start")
    await gateway.rollout_driver.drive()
    older = msgspec.json.decode((await operator.get(one)).content, type=RolloutSummary)
    assert older.state == "aborted" and older.superseded_by == newer["id"]
    assert (await desired(cam)).models[0].version == 3


@pytest.mark.parametrize("has_first", [True, False])
async def test_a_rollback_skips_a_version_withdrawn_meanwhile(
    gateway: Gateway, cam: httpx.AsyncClient, operator: httpx.AsyncClient, has_first: bool
) -> None:
    await report(cam, 1, 0, 1)

    async def bring(version: int) -> str:
        definition = DEFINITION | {"version": version, "manifest_sha256": str(version) * 64}
        rollout: str = (await operator.post(ROLLOUTS, json=definition)).json()["id"]
        await operator.post(f"{ROLLOUTS}/{rollout}/start")
        await gateway.rollout_driver.drive()
        done = Update("digits", version, UpdateState.COMMITTED, rollout=rollout)
        await report(cam, version + 1, (await desired(cam)).revision, version, done)
        await gateway.rollout_driver.drive()
        return rollout

    for version in (1,) if has_first else ():
        await bring(version)
    second, third, fourth = [await bring(version) for version in (2, 3, 4)]
    for withdrawn in (second, third):
        await operator.post(f"{ROLLOUTS}/{withdrawn}/rollback")
        await gateway.rollout_driver.drive()
        assert (await desired(cam)).models[0].version == 4, "a newer rollout has the device"
    await operator.post(f"{ROLLOUTS}/{fourth}/rollback")
    await gateway.rollout_driver.drive()
    model = (await desired(cam)).models[0]
    assert (model.version, model.undone) == ((1, False) if has_first else (4, True))
    assert {"2" * 64, "3" * 64} <= set(model.withdrawn)


async def test_a_command_for_an_older_revision_is_refused(operator: httpx.AsyncClient) -> None:
    created = await operator.post(ROLLOUTS, json=DEFINITION)
    one = f"{ROLLOUTS}/{created.json()['id']}"
    await operator.post(f"{one}/start")
    assert (await operator.post(f"{one}/abort", headers={"If-Match": created.headers["etag"]})).status_code == 409
    assert (await operator.post(f"{one}/abort", headers={"If-Match": '"nonsense"'})).status_code == 409
    assert (await operator.post(f"{one}/abort", headers={"If-Match": "*"})).status_code == 200


INVALID: list[dict[str, Any]] = [
    {"stages": []},
    {"stages": [{"share": 2}]},
    {"stages": [{"share": 0.1}, {"share": 0.05}]},
    {"stages": [{"share": 0.1}, {"share": 0.1, "group": "site=berlin"}]},
    {"selector": "a b"},
    {"stages": [{"share": 1, "group": "="}]},
    {"rules": {"limits": {"speed": {"tolerance": 1}}}},
    {"rules": {"limits": {"errors": {"tolerance": 0.1, "find": 0.1}}}},
    {"version": 0},
    {"unknown": 1},
]


async def test_invalid_definitions_and_commands_for_no_rollout_are_refused(operator: httpx.AsyncClient) -> None:
    for change in INVALID:
        refused = await operator.post(ROLLOUTS, json=DEFINITION | change)
        assert refused.status_code == 400 and refused.json()["detail"], change
    assert (await operator.post(f"{ROLLOUTS}/nothing/pause")).status_code == 404


async def test_the_audit_log_is_a_chain_with_a_signed_head(operator: httpx.AsyncClient) -> None:
    rollout = (await operator.post(ROLLOUTS, json=DEFINITION)).json()
    await operator.post(f"{ROLLOUTS}/{rollout['id']}/abort")
    page = msgspec.json.decode((await operator.get("/fleet/v1/audit")).content, type=AuditPage)
    head = msgspec.json.decode((await operator.get("/fleet/v1/audit/head")).content, type=Head)
    assert [entry.action for entry in page.entries] == ["rollout.create", "rollout.abort"]
    assert verify_log(page.entries, [head])[0] == 2
    about = await operator.get("/fleet/v1/audit", params={"subject": "fleet"})
    assert about.json()["entries"] == []


async def test_a_rollout_of_an_unsigned_version_does_not_start(tmp_path: Path) -> None:
    async with registry_site(tmp_path / "site") as site:
        await site.begin()
        await site.push(digits_bundle(tmp_path / "digits", 2))
        entry = (await site.client.get("/fleet/v1/registry/bundles/digits/versions/2")).json()
        for change, word in (
            ({"version": 3}, "list no digits version 3"),
            ({}, f"with the sha256 {entry['manifest_sha256']}"),
        ):
            rollout = (await site.client.post(ROLLOUTS, json=DEFINITION | change)).json()
            refused = await site.client.post(f"{ROLLOUTS}/{rollout['id']}/start")
            assert refused.status_code == 409 and word in refused.json()["detail"], refused.text
            assert (await site.client.get(f"{ROLLOUTS}/{rollout['id']}")).json()["state"] == "approved"
        right = {"manifest_sha256": entry["manifest_sha256"]}
        planned = (await site.client.post(f"{ROLLOUTS}/plan", json=DEFINITION | right)).json()
        assert len([each for each in entry["variants"] if each["certificate"]]) == 3
        assert "at most 0.16: " in planned["false_aborts"] and "each of its 3 contracts" in planned["false_aborts"]
        rollout = (await site.client.post(ROLLOUTS, json=DEFINITION | right)).json()
        assert (await site.client.post(f"{ROLLOUTS}/{rollout['id']}/start")).json()["state"] == "running"


async def test_evaluations_are_paged(gateway: Gateway, cam: httpx.AsyncClient, operator: httpx.AsyncClient) -> None:
    await report(cam, 1, 0, 1)
    rollout = (await operator.post(ROLLOUTS, json=DEFINITION | {"bundle": "others"})).json()
    looks = [Look(stage, look, 0.0, "hold", "time", "", ()) for stage in (0, 1) for look in (1, 2)]
    with gateway.store.database.begin() as connection:
        for look in looks:
            records.add_look(connection, rollout["id"], look)
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        params = {"limit": 3, **({"after": after} if after else {})}
        page = (await operator.get(f"{ROLLOUTS}/{rollout['id']}/looks", params=params)).json()
        found, after = found + page["looks"], page["after"]
    assert [(look["stage"], look["look"]) for look in found] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    refused = await operator.get(f"{ROLLOUTS}/{rollout['id']}/looks", params={"after": "a"})
    assert refused.status_code == 400 and refused.json()["detail"]


async def test_an_alarm_aborts_the_rollout_of_its_version_and_refuses_the_next(
    gateway: Gateway, cam: httpx.AsyncClient, operator: httpx.AsyncClient
) -> None:
    await report(cam, 1, 0, 1)
    rules = {"promote_unseen": True}
    definition = DEFINITION | {"stages": [{"share": 1.0, "soak_s": 600}], "rules": rules}
    rollout = (await operator.post(ROLLOUTS, json=definition)).json()
    one = f"{ROLLOUTS}/{rollout['id']}"
    await operator.post(f"{one}/start")
    await gateway.rollout_driver.drive()
    document = await desired(cam)
    await report(cam, 2, document.revision, 2, Update("digits", 2, UpdateState.COMMITTED, rollout=rollout["id"]))
    alarmed = pool_of(20, KEY._replace(version=2), alarmed_s=1.8e9)
    await gateway.store.write(lambda connection: contract_records.replace_pool(connection, alarmed))
    await gateway.rollout_driver.drive()
    found = (await operator.get(one)).json()
    assert found["state"] == "rolling_back" and "mean disagreement: 100 % over 20 audits; promised" in found["sentence"]
    assert (await desired(cam)).models[0].undone
    again = (await operator.post(ROLLOUTS, json=definition)).json()
    refused = await operator.post(f"{ROLLOUTS}/{again['id']}/start")
    assert refused.status_code == 409 and "contract" in refused.json()["detail"]


async def test_the_etag_of_each_rollout_is_described(operator: httpx.AsyncClient) -> None:
    paths = (await operator.get("/openapi.json")).json()["paths"]
    created = await operator.post(ROLLOUTS, json=DEFINITION)
    one = f"{ROLLOUTS}/{created.json()['id']}"
    read, started = await operator.get(one), await operator.post(f"{one}/start")
    described = ROLLOUTS + "/{rollout_id}"
    answers = {(ROLLOUTS, "post"): created, (described, "get"): read, (described + "/{command}", "post"): started}
    for (path, method), answer in answers.items():
        assert answer.headers["etag"]
        assert "ETag" in paths[path][method]["responses"][str(answer.status_code)]["headers"]
