"""A gateway with a webhook: enrolments, and what devices report, reach the receiver; the gateway shows its webhooks."""

import json
import re
from functools import partial
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace
from support.agent import edge_settings
from support.broker import Broker
from support.commands import firstline
from support.gateway import client_of, http_link, mqtt_link, serving_gateway, wait_for_gauge
from support.identities import csr, invite
from support.images import noise
from support.keys import bearer, create_key, create_keys
from support.proxy import FINE, ChaosProxy, Network
from support.waiting import until
from support.webhook_receiver import receiver, secret_file

from firstline_core.errors import StoreUnavailableError
from firstline_core.fleet.persons import PERSON_HEADER
from firstline_core.fleet.telemetry import ModelCounts, Telemetry
from firstline_core.protocol.enrolment import ENROL_PATH, parse_join_token
from firstline_core.types import ContractAlarm, Privacy, Status
from firstline_edge.app import EdgeAgent
from firstline_edge.outbox.database import Receiver
from firstline_gateway.audit_log import EntryFilter
from firstline_gateway.commands import status
from firstline_gateway.identity import ca
from firstline_gateway.settings.settings import StoreSection


async def test_an_enrolment_reaches_its_receiver(tmp_path: Path) -> None:
    with receiver() as found:
        webhook = {"url": found.url, "events": ["enrolments"], "secret_file": secret_file(tmp_path)}
        async with (
            serving_gateway(tmp_path, webhooks={"ops": webhook}) as (gateway, url),
            client_of(gateway, url, "ops", "operator") as operator,
        ):
            shown = (await operator.get("/firstline/v1/webhooks")).json()["webhooks"]
            assert shown == [{"name": "ops", "problem": "", "delivered": False}]
            (token,) = await invite(operator, "cam")
            body = {"secret": parse_join_token(token).secret, "csr": csr(ca.new_key())}
            assert (await operator.post(ENROL_PATH, json=body)).status_code == 200
            await until(lambda: found.ids)
            (message,) = found.messages
            assert (message["type"], message["data"]["subject"]) == ("device.enrol", "device:cam")

            async def is_shown() -> bool:
                shown = (await operator.get("/firstline/v1/webhooks")).json()["webhooks"]
                return shown == [{"name": "ops", "problem": "", "delivered": True}]

            await until(is_shown)
    for problem, delivered, words in (("p", True, "p"), ("", True, "up"), ("", False, "nothing delivered yet")):
        webhook = {"name": "ops", "problem": problem, "delivered": delivered}
        lines = status._lines({"live": True, "ready": True, "webhooks": [webhook]}, has_token=True)
        assert any(line.startswith(f"webhook: ops: {words}") for line in lines)


async def test_a_person_tests_a_webhook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused_entry(*_: object) -> None:
        raise StoreUnavailableError("The store is full.", retry_after_s=1.0)

    with receiver() as found:
        webhook = {"url": found.url, "events": ["alarms"], "secret_file": secret_file(tmp_path)}
        async with serving_gateway(tmp_path, webhooks={"ops": webhook}) as (gateway, url):
            key = create_key(gateway.settings.store, "ops", "operator")
            assert "nothing sent yet" in (await firstline(url, key, "webhook", "list")).stdout
            done = await firstline(url, key, "webhook", "test", "ops")
            assert re.fullmatch(r"ops accepted the test message with status 200 in \d+ ms\.\n", done.stdout)
            found.status = 403
            done = await firstline(url, key, "webhook", "test", "ops", code=1)
            assert "ops did not accept the test message: it answered with status 403, after" in done.stdout
            assert "Compare its signing key with webhooks.ops.secret_file here" in done.stdout
            shown = json.loads((await firstline(url, key, "webhook", "test", "ops", "-o", "json", code=1)).stdout)
            assert (shown["status"], shown["message_id"]) == (403, found.refused[-1])
            assert (
                "has no webhook 'oops' in its settings; it has: ops; did you mean 'ops'?"
                in (await firstline(url, key, "webhook", "test", "oops", code=1)).output
            )
            reader = create_key(gateway.settings.store, "shop", "application")
            assert "fleet" in (await firstline(url, reader, "webhook", "test", "ops", code=1)).output
            person = {PERSON_HEADER: json.dumps({"name": "anna@example.org", "role": "operator"})}
            async with httpx.AsyncClient(base_url=url, headers=bearer(key) | person) as client:
                assert (await client.post("/firstline/v1/webhooks/ops/test")).is_success
                monkeypatch.setattr(gateway.audit_log, "note", refused_entry)
                tested = await client.post("/firstline/v1/webhooks/ops/test")
                assert (tested.status_code, tested.json()["status"]) == (200, 403)  # the answer is not lost
            entries = (await gateway.audit_log.page(EntryFilter(action="webhook."), 10)).entries
    assert {(each.action, each.subject) for each in entries} == {("webhook.test", "webhook:ops")}
    assert [(each.actor, json.loads(each.details)["status"]) for each in entries] == [
        ("application:ops", 200),
        ("application:ops", 403),
        ("application:ops", 403),
        ("anna@example.org via application:ops", 403),
    ]
    assert found.types == ["webhook.test"] and "t0ken" not in json.dumps(shown)


async def test_the_end_of_each_promise_reaches_a_receiver_that_wants_it(broker: Broker | None, tmp_path: Path) -> None:
    """The link is cut while the device promises corrections; the receiver refuses the first message."""
    with receiver() as found:
        webhook = {"url": found.url, "events": ["answers"], "secret_file": secret_file(tmp_path)}
        async with serving_gateway(tmp_path, broker=broker, webhooks={"shop": webhook}) as (gateway, url):
            if broker is not None:
                await wait_for_gauge(gateway, "firstline_gateway_fleet_mqtt_connected")
            async with ChaosProxy(broker.port if broker is not None else int(url.rpartition(":")[2])) as proxy:
                near = f"http://127.0.0.1:{proxy.port}"
                link = http_link(gateway.settings.store, near, "device-1", tmp_path)
                if broker is not None:
                    link = mqtt_link(broker) | {"port": proxy.port}
                settings = edge_settings(
                    tmp_path / "state", links=[link], fleet__enabled=True, fleet__poll_s=0.1, policy__min_threshold=2.0
                )
                async with EdgeAgent(settings) as agent:
                    assert agent.fleet is not None
                    await until(lambda: (agent.operations.status()["fleet"]["revision"] or 0) > 0)
                    await proxy.become(Network(refused=True))
                    proxy.reset()
                    ask = agent.data_plane.infer_file
                    promised = [(await ask("digits", noise(side=28, seed=seed))).answer for seed in range(3)]
                    await ask("digits", noise(side=28, seed=9), privacy=Privacy.LOCAL_ONLY.value)
                    assert {answer.status for answer in promised} == {Status.PROVISIONAL}
                    await proxy.become(FINE)
                    await until(lambda: len(found.messages) >= len(promised))
                    changed = {answer.request_id: await _changed(agent, answer.request_id) for answer in promised}
    assert set(found.types) == {"answer.final"} and len(found.ids) == len(promised)
    assert {each["data"]["request_id"]: each["data"]["changed"] for each in found.messages} == changed
    assert {(each["data"]["device"], each["data"]["model"]) for each in found.messages} == {("device-1", "digits")}


async def _changed(agent: EdgeAgent, request_id: str) -> bool | None:
    final = await agent.outbox.answer(request_id, "local")
    assert final.answer is not None and final.answer.status is Status.FINAL
    return final.answer.changed


async def test_devices_report_no_promise_if_no_webhook_wants_it(tmp_path: Path) -> None:
    async with serving_gateway(tmp_path) as (gateway, url):
        link = http_link(gateway.settings.store, url, "device-1", tmp_path)
        settings = edge_settings(tmp_path / "state", links=[link], fleet__enabled=True, policy__min_threshold=2.0)
        async with EdgeAgent(settings) as agent:
            answer = (await agent.data_plane.infer_file("digits", noise(side=28), wait="first")).answer
            assert answer.status is Status.PROVISIONAL

            async def is_final() -> bool:
                return (await agent.outbox.answer(answer.request_id, "local")).answer.status is Status.FINAL

            await until(is_final)
            assert await agent.outbox.unannounced(Receiver.FLEET, 9) == []


async def test_replicas_and_a_restarted_gateway_know_a_devices_alarm(
    store_settings: StoreSection, tmp_path: Path
) -> None:
    digest = "a" * 64
    image = {"name": "image", "datatype": "UINT8", "shape": [1, 28, 28, 1], "data": [0] * 784}
    request = {"inputs": [image], "parameters": {"alarm_edge_digest": digest}}
    created = create_keys(store_settings, ["cam"], "device") | create_keys(store_settings, ["ops"], "operator")
    device, operator = bearer(created["cam"]), bearer(created["ops"])

    async def shown(url: str) -> list[tuple[str, str, str | None]]:
        found = (await client.get(f"{url}/firstline/v1/contracts", headers=operator)).json()["device_alarms"]
        return [(each["device"], each["edge_digest"], each["ended"]) for each in found]

    with receiver() as found:
        webhook = {"url": found.url, "events": ["alarms"], "secret_file": secret_file(tmp_path)}
        serve = partial(serving_gateway, tmp_path, store__url=store_settings.url, webhooks={"ops": webhook})
        async with httpx.AsyncClient(timeout=20) as client:
            async with serve() as (_, one), serve() as (second, other):
                for url in (one, other, one):
                    sent = await client.post(f"{url}/v2/models/digits/infer", json=request, headers=device)
                    assert sent.status_code == 200, sent.text
                counts = (ModelCounts("digits", 1, alarm=True, device_alarm=ContractAlarm(digest)),)
                await second.fleet.take_telemetry("cam", Telemetry("s", 1, models=counts))
                assert await shown(one) == await shown(other) == [("cam", digest, None)]
                await until(lambda: found.messages)
            async with serve() as (restarted, url):
                assert await shown(url) == [("cam", digest, None)]
                gauge = 'firstline_gateway_contract_device_alarms{model="digits",version="1"} 1.0'
                assert gauge in restarted.metrics.render()[0].decode()
                await client.post(f"{url}/v2/models/digits/infer", json=request, headers=device)
                await restarted.fleet.take_telemetry("door", Telemetry("s", 1, models=counts))
                await until(lambda: len(found.messages) >= 2)
    assert [each["data"]["subject"] for each in found.messages] == ["device:cam", "device:door"]


async def test_an_alarm_that_a_device_raises_reaches_its_receiver_once(tmp_path: Path) -> None:
    with receiver() as found:
        webhook = {"url": found.url, "events": ["alarms"], "secret_file": secret_file(tmp_path)}
        async with serving_gateway(tmp_path, webhooks={"ops": webhook}) as (gateway, _):
            for sequence, alarm in enumerate((None, ContractAlarm("a" * 64), ContractAlarm("a" * 64)), start=1):
                counted = ModelCounts("digits", 1, audited=9, disagreed=4, device_alarm=alarm)
                counts = (counted, replace(counted, version=99), ModelCounts("words", 1))
                await gateway.fleet.take_telemetry("cam", Telemetry("s", sequence, models=counts))
            await gateway.fleet.take_telemetry("cam", Telemetry("another", 1, models=counts))
            await gateway.fleet.take_telemetry("door", Telemetry("s", 1, models=counts))
            await until(lambda: len(found.messages) >= 2)
    assert found.types == 2 * ["contract.device_alarm"]
    assert [each["data"]["subject"] for each in found.messages] == ["device:cam", "device:door"]
    details = found.messages[0]["data"]["details"]
    assert details == {"model": "digits", "version": 1, "event": "", "audits": 9, "disagreements": 4}
