"""What persons who signed in to a console may do, over a real gateway; and what the audit log says of them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio
from support.databases import sqlite_store
from support.gateway import serving_gateway
from support.keys import bearer, create_key
from support.pools import KEY, pool_of
from support.profiles import profile

from firstline_core.fleet.audit_log import Entry
from firstline_core.fleet.persons import PERSON_HEADER, SIGN_INS_PATH, Person, Role
from firstline_core.fleet.profiles import PROFILES_PATH, profile_path
from firstline_core.fleet.rest import WEBHOOKS_PATH
from firstline_core.fleet.rollout_documents import AUDIT_HEAD_PATH, AUDIT_PATH
from firstline_core.protocol.extensions import INDEX_PATH
from firstline_core.types import ContractAlarm, ModelKey
from firstline_gateway.app import Gateway
from firstline_gateway.contracts import records
from firstline_gateway.fleet import alarms

ROLLOUTS = "/fleet/v1/rollouts"
DEFINITION = {"bundle": "digits", "version": 2, "manifest_sha256": "0" * 64, "stages": [{"share": 1.0}]}


class Site:
    """A gateway with two devices, of which one has a tag."""

    def __init__(self, gateway: Gateway, client: httpx.AsyncClient, keys: dict[str, dict[str, str]]) -> None:
        self.gateway = gateway
        self._client = client
        self._keys = keys

    async def ask(
        self, who: Person | None, method: str, path: str, body: Any = None, key: str = "console"
    ) -> httpx.Response:
        """Sends a request on behalf of a person."""
        headers = dict(self._keys[key])
        if who is not None:
            headers[PERSON_HEADER] = msgspec.json.encode(who).decode()
        return await self._client.request(method, path, json=body, headers=headers)

    async def entries(self) -> list[Entry]:
        reply = await self.ask(None, "GET", AUDIT_PATH)
        return msgspec.convert(reply.json()["entries"], list[Entry])


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    store = sqlite_store(tmp_path)
    keys = {name: bearer(create_key(store, name, "operator")) for name in ("console", "ops")}
    keys |= {name: bearer(create_key(store, name, "device")) for name in ("cam-1", "cam-2")}
    keys["reader"] = bearer(create_key(store, "reader", "application"))
    async with serving_gateway(tmp_path) as (gateway, url), httpx.AsyncClient(base_url=url) as client:
        found = Site(gateway, client, keys)
        for name in ("cam-1", "cam-2"):
            assert (await found.ask(None, "GET", "/fleet/v1/twin", key=name)).status_code == 200
        await found.ask(None, "PATCH", "/fleet/v1/devices/cam-1", {"tags": {"site": "kiel"}})
        yield found


def person(role: Role, devices: str = "", name: str = "") -> Person:
    return Person(name or f"{role}@example.org", role, devices)


async def test_roles_decide_who_changes_and_who_approves(site: Site) -> None:
    viewer, operator, approver = map(person, Role)
    tags = {"tags": {"line": "l1"}}
    assert (await site.ask(viewer, "GET", "/fleet/v1/devices")).status_code == 200
    assert (await site.ask(viewer, "POST", f"{ROLLOUTS}/plan", DEFINITION)).status_code == 200
    refused = await site.ask(viewer, "PATCH", "/fleet/v1/devices/cam-1", tags)
    assert refused.status_code == 403 and "ask for the role operator" in refused.text
    assert (await site.ask(operator, "POST", f"{WEBHOOKS_PATH}/ops/test")).status_code == 404
    assert (await site.ask(operator, "PATCH", "/fleet/v1/devices/cam-1", tags)).status_code == 200
    rollout = (await site.ask(operator, "POST", ROLLOUTS, DEFINITION | {"approval": True})).json()
    assert rollout["created_by"] == "operator@example.org via application:console"
    approve = f"{ROLLOUTS}/{rollout['id']}/approve"
    assert (await site.ask(operator, "POST", approve)).status_code == 403
    assert (await site.ask(operator, "DELETE", "/firstline/v1/contracts/digits/versions/1")).status_code == 403
    assert (await site.ask(approver, "POST", approve)).status_code == 200
    found = [(entry.actor, entry.action) for entry in await site.entries() if "example.org" in entry.actor]
    assert found == [
        ("viewer@example.org via application:console", "person.denied"),
        ("operator@example.org via application:console", "device.tag"),
        ("operator@example.org via application:console", "rollout.create"),
        ("operator@example.org via application:console", "person.denied"),
        ("operator@example.org via application:console", "person.denied"),
        ("approver@example.org via application:console", "rollout.approve"),
    ]


async def test_a_person_does_not_approve_the_own_rollout_with_any_key(site: Site) -> None:
    anna = person(Role.APPROVER)
    rollout = (await site.ask(anna, "POST", ROLLOUTS, DEFINITION | {"approval": True})).json()
    refused = await site.ask(anna, "POST", f"{ROLLOUTS}/{rollout['id']}/approve", key="ops")
    assert refused.status_code == 403 and "a second person" in refused.text


async def test_a_selector_limits_devices_and_rollouts(site: Site) -> None:
    kiel = person(Role.APPROVER, "site=kiel")
    listed = (await site.ask(kiel, "GET", "/fleet/v1/devices")).json()["devices"]
    assert [one["name"] for one in listed] == ["cam-1"]
    assert (await site.ask(kiel, "GET", "/fleet/v1/devices?selector=!site")).json()["devices"] == []
    assert (await site.ask(kiel, "GET", "/fleet/v1/overview")).json()["devices"] == {"online": 1}
    for method, path, body in (
        ("GET", "/fleet/v1/devices/cam-2", None),
        ("PATCH", "/fleet/v1/devices/cam-2", {"tags": {"site": "kiel"}}),
        ("POST", "/firstline/v1/devices/cam-2/revoke", None),
        ("GET", "/fleet/v1/devices/cam-2/profiles", None),
        ("GET", AUDIT_PATH, None),
        ("GET", f"{AUDIT_PATH}?subject=device:cam-2", None),
        ("GET", f"{AUDIT_HEAD_PATH}?subject=device:cam-1", None),
        ("GET", "/firstline/v1/devices", None),
        ("GET", "/firstline/v1/devices%0A", None),  # Starlette's patterns take a line break at the end
        ("POST", "/firstline/v1/devices", {"devices": ["cam-3"]}),
        ("PUT", "/fleet/v1/brake", {"escalations_per_hour": 0, "reason": "no"}),
        ("POST", ROLLOUTS, DEFINITION),
        ("POST", ROLLOUTS, DEFINITION | {"selector": "site"}),
        ("POST", f"{ROLLOUTS}/plan", DEFINITION),
        ("POST", f"{WEBHOOKS_PATH}/ops/test", None),
        ("GET", "/fleet/v1/profiles/digits/versions/1/machines/cam-2", None),
    ):
        assert (await site.ask(kiel, method, path, body)).status_code == 403, path
    assert (await site.ask(kiel, "GET", "/fleet/v1/devices/cam-1")).status_code == 200
    assert (await site.ask(kiel, "GET", f"{AUDIT_PATH}?subject=device:cam-1")).status_code == 200
    own = DEFINITION | {"selector": "line=l1,site=kiel"}
    assert (await site.ask(kiel, "POST", f"{ROLLOUTS}/plan", own)).status_code == 200
    created = await site.ask(kiel, "POST", ROLLOUTS, own)
    assert created.status_code == 201
    other = (await site.ask(None, "POST", ROLLOUTS, DEFINITION)).json()
    assert (await site.ask(kiel, "POST", f"{ROLLOUTS}/{other['id']}/abort")).status_code == 403
    for rest in ("", "/looks", "/devices"):
        assert (await site.ask(kiel, "GET", f"{ROLLOUTS}/{other['id']}{rest}")).status_code == 403
        assert (await site.ask(kiel, "GET", f"{ROLLOUTS}/{created.json()['id']}{rest}")).status_code == 200
    audit_log = await site.ask(kiel, "GET", f"{AUDIT_PATH}?subject=rollout:{created.json()['id']}")
    assert [one["action"] for one in audit_log.json()["entries"]] == ["rollout.create"]
    assert (await site.ask(kiel, "GET", f"{AUDIT_PATH}?subject=rollout:{other['id']}")).status_code == 403
    assert (await site.ask(kiel, "GET", f"{AUDIT_PATH}?subject=rollout:other")).status_code == 404
    listed = (await site.ask(kiel, "GET", ROLLOUTS)).json()["rollouts"]
    assert [one["id"] for one in listed] == [created.json()["id"]]
    page = (await site.ask(kiel, "GET", f"{ROLLOUTS}?limit=1")).json()  # `other` is newer
    assert [one["id"] for one in page["rollouts"]] == [created.json()["id"]]
    assert (await site.ask(kiel, "POST", f"{ROLLOUTS}/{created.json()['id']}/abort")).status_code == 200


async def test_a_start_aborts_no_unseen_rollout(site: Site) -> None:
    kiel = person(Role.OPERATOR, "site=kiel")
    whole = (await site.ask(None, "POST", ROLLOUTS, DEFINITION)).json()
    assert (await site.ask(None, "POST", f"{ROLLOUTS}/{whole['id']}/start")).status_code == 200
    own = (await site.ask(kiel, "POST", ROLLOUTS, DEFINITION | {"selector": "site=kiel"})).json()
    refused = await site.ask(kiel, "POST", f"{ROLLOUTS}/{own['id']}/start")
    assert refused.status_code == 403 and "abort a running rollout" in refused.text
    assert (await site.ask(None, "GET", f"{ROLLOUTS}/{whole['id']}")).json()["state"] == "running"
    assert (await site.ask(None, "POST", f"{ROLLOUTS}/{whole['id']}/abort")).status_code == 200
    assert (await site.ask(kiel, "POST", f"{ROLLOUTS}/{own['id']}/start")).status_code == 200
    newer = (await site.ask(kiel, "POST", ROLLOUTS, DEFINITION | {"selector": "site=kiel", "version": 3})).json()
    assert (await site.ask(kiel, "POST", f"{ROLLOUTS}/{newer['id']}/start")).status_code == 200


async def test_viewers_read_the_index_of_models(site: Site) -> None:
    for who in (person(Role.VIEWER), person(Role.VIEWER, "site=kiel")):
        assert (await site.ask(who, "POST", INDEX_PATH)).status_code == 200


@pytest.mark.parametrize("path", ["/v2/models/digits/infer", "/firstline/v1/models/digits/infer"])
async def test_inference_acts_for_no_person(path: str, site: Site) -> None:
    refused = await site.ask(person(Role.APPROVER), "POST", path, {"inputs": []})
    assert refused.status_code == 403 and PERSON_HEADER in refused.text


async def test_names_of_other_devices_are_left_out(site: Site) -> None:
    names = ["cam-1", "cam-2"]
    for name in names:
        measured = profile(1.0, machine=name)
        await site.ask(None, "PUT", profile_path("digits", 1, name), msgspec.to_builtins(measured))
        with site.gateway.store.database.begin() as connection:
            records.add_audit(connection, name, name, [(pool_of(1), True)], service_s=0.0)
            alarm = ContractAlarm(KEY.edge_digest)
            alarms.take_request(connection, name, ModelKey("digits", 3), alarm, now_s=1.0, service_s=0.0)
    for who, seen in ((None, names), (person(Role.VIEWER, "site=kiel"), ["cam-1"])):
        profiles = (await site.ask(who, "GET", PROFILES_PATH)).json()["profiles"]
        assert [one["machine"] for one in profiles] == seen
        for path in ("", "/digits"):
            found = (await site.ask(who, "GET", f"/firstline/v1/contracts{path}")).json()
            assert [one["device"] for one in found["device_alarms"]] == seen
        (contract,) = found["contracts"]
        assert [one["device"] for one in contract["contributions"]] == seen and contract["devices"] == 2


async def test_cursors_name_no_other_device(site: Site) -> None:
    for version in (1, 2):
        for name in ("cam-1", "cam-2", "cam-3"):
            measured = profile(1.0, version=version, machine=name)
            await site.ask(None, "PUT", profile_path("digits", version, name), msgspec.to_builtins(measured))
    pages, after = [], ""
    while after is not None and len(pages) < 9:
        path = f"{PROFILES_PATH}?limit=2&after={after}"
        page = (await site.ask(person(Role.VIEWER, "site=kiel"), "GET", path)).json()
        after = page["after"]
        pages.append(([(one["version"], one["machine"]) for one in page["profiles"]], after))
    assert pages == [([(1, "cam-1")], "digits/1/cam-1"), ([(2, "cam-1")], "digits/2/cam-1"), ([], None)]


async def test_denied_reads_are_noted_once_and_denied_changes_always(site: Site) -> None:
    kiel = person(Role.OPERATOR, "site=kiel")
    for _ in range(3):
        assert (await site.ask(kiel, "GET", "/fleet/v1/devices/cam-2")).status_code == 403
        assert (await site.ask(kiel, "POST", ROLLOUTS, DEFINITION)).status_code == 403
    denied = [msgspec.json.decode(one.details) for one in await site.entries() if one.action == "person.denied"]
    assert [one["method"] for one in denied] == ["GET", "POST", "POST", "POST"]


async def test_only_a_key_that_delegates_names_persons(site: Site) -> None:
    anna = person(Role.VIEWER)
    assert (await site.ask(anna, "GET", "/fleet/v1/devices", key="reader")).status_code == 403
    for text in ("anna", "{}", '{"name": "a b", "role": "viewer"}', '{"name": "a", "role": "king"}'):
        headers = {**site._keys["console"], PERSON_HEADER: text}
        assert (await site._client.get("/fleet/v1/devices", headers=headers)).status_code == 400
    headers = site._keys["console"] | {PERSON_HEADER: '{"name": "a", "role": "viewer", "devices": "a b"}'}
    assert (await site._client.get("/fleet/v1/devices", headers=headers)).status_code == 400


async def test_sign_ins_and_exports_are_entries(site: Site) -> None:
    for refused in ("", "wrong password"):
        attempt = {"person": "anna", "method": "password", "address": "192.0.2.1", "refused": refused}
        assert (await site.ask(None, "POST", SIGN_INS_PATH, attempt)).status_code == 204
    assert (
        await site.ask(None, "POST", SIGN_INS_PATH, {"person": "a", "method": "oidc"}, key="reader")
    ).status_code == 403
    formula = {"person": "=HYPERLINK()", "method": "password", "refused": "wrong password"}
    assert (await site.ask(None, "POST", SIGN_INS_PATH, formula)).status_code == 204
    assert (await site.entries())[-1].actor == "application:console"
    assert "=HYPERLINK()" in (await site.entries())[-1].details
    head = (await site.ask(None, "POST", "/fleet/v1/audit/exports?since_s=5")).json()
    *_, entered, refused_entry, _, export = await site.entries()
    assert (entered.action, entered.actor) == ("person.sign_in", "anna via application:console")
    assert refused_entry.action == "person.refused" and "wrong password" in refused_entry.details
    assert export.action == "audit.export" and (head["first"], head["number"]) == (1, export.number)
