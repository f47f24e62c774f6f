"""Devices audit a real gateway over both transports; operators see what they found."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from msgspec.structs import replace
from support.audits import certified_digits, note_of, request_from
from support.broker import Broker
from support.commands import gateway_status
from support.databases import sqlite_store
from support.gateway import serving_gateway
from support.inference import infer
from support.keys import bearer, create_key
from support.mqtt_device import device_at

from firstline_core.fleet.rest import ContractState, ContractStates
from firstline_core.ids import new_request_id
from firstline_core.protocol import oip
from firstline_core.types import ContractNotice, InferRequest, InferResponse
from firstline_gateway.app import Gateway
from firstline_gateway.models.repository import ServedModel

CONTRACTS = "/firstline/v1/contracts"


class Line:
    """A gateway's folder with a certified bundle, and the keys of its callers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = sqlite_store(folder)
        self._headers: dict[tuple[str, str], dict[str, str]] = {}
        certified_digits(folder / "models")

    def headers(self, name: str, kind: str) -> dict[str, str]:
        if (name, kind) not in self._headers:
            self._headers[name, kind] = bearer(create_key(self.store, name, kind))
        return self._headers[name, kind]

    @asynccontextmanager
    async def serving(self, **overrides: Any) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
        defaults = {"models__directory": str(self.folder / "models"), "contracts__escalations_per_hour": 800}
        async with (
            serving_gateway(self.folder, **(defaults | overrides)) as (gateway, url),
            httpx.AsyncClient(base_url=url) as client,
        ):
            yield gateway, client


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(tmp_path)


def served_by(gateway: Gateway) -> ServedModel:
    return gateway.repository.resolve("digits", "")


async def ask(client: httpx.AsyncClient, request: InferRequest, headers: dict[str, str]) -> InferResponse:
    return await infer(client, replace(request, binary_output=True), **headers)


def notice(response: InferResponse) -> ContractNotice | None:
    return response.answer.contract


async def right_and_wrong(line: Line, client: httpx.AsyncClient) -> tuple[int, int]:
    """The class that the full model gives to the picture, and another."""
    response = await ask(client, request_from(""), line.headers("shop", "application"))
    right = int(np.argmax(response.output("probabilities")[0]))
    return right, (right + 1) % 10


async def test_alarm_by_audits_is_shown_and_ended(line: Line) -> None:
    operator = line.headers("anna", "operator")
    async with line.serving() as (gateway, client):
        right, wrong = await right_and_wrong(line, client)
        served = served_by(gateway)
        plain = await ask(client, request_from(""), line.headers("cam0", "device"))
        assert notice(plain) == ContractNotice(alarm=False, escalations_per_hour=None)
        for number in range(8):
            device = line.headers(f"cam{number}", "device")
            answered = notice(await ask(client, request_from("", note_of(served), right), device))
            assert answered == ContractNotice(alarm=False, escalations_per_hour=None, devices=number + 1)
        for number in range(8):
            device = line.headers(f"cam{number}", "device")
            await ask(client, request_from("", note_of(served), wrong), device)
        await asyncio.wrap_future(gateway.contracts.refresh())
        answered = notice(await ask(client, request_from(""), line.headers("cam0", "device")))
        assert answered == ContractNotice(alarm=True, escalations_per_hour=100.0, devices=8)
        assert notice(await ask(client, request_from(""), line.headers("shop", "application"))) is None

        (contract,) = (await client.get(CONTRACTS, headers=operator)).json()["contracts"]
        assert (contract["bundle"], contract["version"], contract["variant"]) == ("digits", "1", "edge-onnx")
        assert (contract["audits"], contract["disagreements"], contract["devices"]) == (16, 8, 8)
        assert contract["risk"] == 0.5
        assert (
            contract["promise"] == "At most 5 % of edge answers of digits 1 (edge-onnx) disagree with the full model."
        )
        assert contract["e_value_peak"] >= 20
        assert contract["alarmed_since"] is not None
        assert contract["escalations_per_hour"] == 100
        one_bundle = (await client.get(f"{CONTRACTS}/digits", headers=operator)).json()
        (detail,) = one_bundle["contracts"]
        assert one_bundle.keys() == set(ContractStates.__struct_fields__)
        assert detail.keys() == set(ContractState.__struct_fields__)
        assert len(detail["contributions"]) == 8
        assert (
            'firstline_gateway_contract_alarm{model="digits",version="1"} 1.0'
            in (await client.get("/metrics", headers=operator)).text
        )

    async with line.serving() as (_, client):  # another process of the same gateway
        assert notice(await ask(client, request_from(""), line.headers("cam3", "device"))) == answered
        shown = await gateway_status(str(client.base_url), operator["Authorization"].removeprefix("Bearer "))
        assert "contract: digits version 1 edge-onnx: BROKEN since " in shown
        assert "mean disagreement: 50 % over 16 audits; promised 5 %; 8 devices" in shown
        ended = await client.delete(f"{CONTRACTS}/digits/versions/1", headers=operator)
        assert ended.json() == {"ended": 1}
        audit = await client.get("/fleet/v1/audit?subject=bundle:digits/1", headers=operator)
        entries = [(entry["action"], entry["actor"]) for entry in audit.json()["entries"]]
        assert entries == [("contract.alarm", "rule:contract"), ("contract.end", "application:anna")]
        answered = notice(await ask(client, request_from(""), line.headers("cam3", "device")))
        assert answered == ContractNotice(alarm=False, escalations_per_hour=None, devices=8)
        assert (await client.delete(f"{CONTRACTS}/digits/versions/1", headers=operator)).status_code == 404


async def test_contracts_of_unknown_models_are_404(line: Line) -> None:
    async with line.serving() as (_, client):
        reply = await client.get(f"{CONTRACTS}/cats", headers=line.headers("anna", "operator"))
        assert (reply.status_code, reply.json()["code"]) == (404, "unknown_model")
        for version in ("0", "one", "9" * 5000):
            path = f"{CONTRACTS}/digits/versions/{version}"
            assert (await client.delete(path, headers=line.headers("anna", "operator"))).status_code == 404
        found = (await client.get(f"{CONTRACTS}/digits", headers=line.headers("anna", "operator"))).json()
        assert (found["bundle"], found["contracts"], found["device_alarms"]) == ("digits", [], [])
        assert [one["state"] for one in found["unaudited"]] == ["not_audited", "not_audited"]


async def test_only_valid_audit_notes_of_devices_count(line: Line) -> None:
    async with line.serving() as (gateway, client):
        note = note_of(served_by(gateway))
        for _ in range(20):
            await ask(client, request_from("", note, edge_outputs={}), line.headers("shop", "application"))
            await ask(client, request_from("", note, edge_outputs={}), line.headers("anna", "operator"))
        await asyncio.wrap_future(gateway.contracts.refresh())
        assert gateway.contracts.pools() == []
        forged = json.loads(oip.encode_request(request_from("", note), binary=False).body)
        for change in ({"audit_epsilon": None}, {"audit_propensity": 1.5}):
            body = json.dumps(forged | {"parameters": forged["parameters"] | change})
            reply = await client.post("/v2/models/digits/infer", content=body, headers=line.headers("cam0", "device"))
            assert (reply.status_code, reply.json()["code"]) == (400, "invalid_request")
            assert next(iter(change)) in reply.json()["error"]
        image, outputs = forged["inputs"]
        for name, kind, inputs, code, error in (
            ("shop", "application", [image, outputs], "invalid_request", "only devices audit"),
            ("cam0", "device", [outputs], "invalid_tensor", "no input of the model"),
            ("cam0", "device", [image], "invalid_tensor", "'edge/probabilities'; this one has: none"),
            (
                "cam0",
                "device",
                [image, outputs | {"name": "edge/boxes"}],
                "invalid_tensor",
                "this one has: 'edge/boxes'",
            ),
            ("cam0", "device", [image, outputs | {"datatype": "FP64"}], "invalid_tensor", "is float64"),
        ):
            body = json.dumps(forged | {"inputs": inputs})
            reply = await client.post("/v2/models/digits/infer", content=body, headers=line.headers(name, kind))
            assert (reply.status_code, reply.json()["code"]) == (400, code)
            assert error in reply.json()["error"]
        await asyncio.wrap_future(gateway.contracts.refresh())
        assert gateway.contracts.pools() == []


@pytest.mark.mosquitto
async def test_devices_audit_over_mqtt_too(line: Line, mosquitto: Broker) -> None:
    async with line.serving(broker=mosquitto) as (gateway, client):
        for number in range(8):
            line.headers(f"cam{number}", "device")  # makes its key
        _, wrong = await right_and_wrong(line, client)
        audit = request_from("", note_of(served_by(gateway)), wrong)
        answers = [
            await ask_over_mqtt(mosquitto, f"cam{number}", replace(audit, request_id=new_request_id()))
            for number in range(8)
        ]
        assert notice(answers[0]) == ContractNotice(alarm=False, escalations_per_hour=None)
        await asyncio.wrap_future(gateway.contracts.refresh())
        # One device, whichever way it asks.
        http = await ask(client, replace(audit, request_id=new_request_id()), line.headers("cam0", "device"))
        mqtt = await ask_over_mqtt(mosquitto, "cam0", request_from(""))
        assert notice(http) == notice(mqtt) == ContractNotice(alarm=True, escalations_per_hour=100.0, devices=8)
        await asyncio.wrap_future(gateway.contracts.refresh())
        (pool,) = gateway.contracts.pools()
        assert (pool.state.audits, gateway.contracts.devices(pool.key)) == (9, 8)


async def ask_over_mqtt(broker: Broker, name: str, request: InferRequest) -> InferResponse:
    async with device_at(broker, name) as device:
        return await device.infer(request)
