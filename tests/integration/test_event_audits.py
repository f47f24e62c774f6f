"""A certified detector that has become blind: its own device and the gateway find the event, not the empty frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.agent import edge_settings
from support.gateway import client_of, http_link, serving_gateway
from support.images import encode
from support.sample_bundles import detector_bundle
from support.waiting import until

from bench.support.bundles import about_events, with_certificate, write_manifest
from firstline_core.bundle.manifest import certificate_problem
from firstline_core.ids import new_request_id
from firstline_core.processing.steps import BoxRows, Suppress
from firstline_core.types import InferRequest, InferResponse, Tensor
from firstline_edge.app import EdgeAgent

AUDITING = {"audit__per_hour": 1e7, "audit__bytes_per_hour": 1e12, "audit__max_share": 1.0, "audit__spacing_s": 0.0}
PROMISED = {"missed dog": 0.05, "invented dog": 0.05}


def blind_detector(folder: Path) -> Path:
    """The full model finds a dog in bright images. The edge model is as sure of its answers, and never finds one."""
    full = detector_bundle(folder).manifest.full
    found = detector_bundle(folder, BoxRows(), Suppress(0.9), full=full).manifest
    fields: dict[str, Any] = {"task": found.task, "full": found.full, "policy": found.policy}
    write_manifest(folder, [with_certificate(found.edge[0], found, 0.4, **about_events(PROMISED))], (), **fields)
    return folder


def image(brightness: int) -> bytes:
    return encode(np.full((80, 80, 3), brightness, np.uint8))


class Camera:
    """An agent that asks its own data plane, one request at a time."""

    def __init__(self, agent: EdgeAgent) -> None:
        self.agent = agent

    async def ask(self, brightness: int) -> InferResponse:
        images = np.array([image(brightness)], object)
        asked = InferRequest("small", (Tensor("image", images),), new_request_id())
        before = self.contract["audits"]["drawn"]
        response = await self.agent.data_plane.infer(asked)
        await until(lambda: self.settled)
        assert self.contract["alarm"] or self.contract["audits"]["drawn"] == before + 1
        return response

    @property
    def settled(self) -> bool:
        audits = self.contract["audits"]
        return bool(audits["drawn"] == audits["agreed"] + audits["disagreed"] + audits["lost"])

    @property
    def contract(self) -> dict[str, Any]:
        (described,) = self.agent.operations.status()["models"]
        found: dict[str, Any] = described["contract"]
        return found


@pytest.mark.parametrize("alone", [True, False])
async def test_a_blind_detector_alarms_by_its_missed_objects(tmp_path: Path, alone: bool) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    blind_detector(bundle)
    delta = 1e-300 if alone else 0.05
    async with serving_gateway(tmp_path, models__directory=str(bundle), contracts__delta=delta) as (gateway, url):
        settings = edge_settings(
            tmp_path / "state",
            models__directories=[str(bundle)],
            links=[http_link(gateway.settings.store, url, "yard", tmp_path)],
            audit__fleet_devices=1 if alone else 10_000,
            **AUDITING,
        )
        async with EdgeAgent(settings) as agent:
            camera = Camera(agent)
            for brightness in range(20, 50):  # frames without an object for either model
                answer = (await camera.ask(brightness)).answer
                assert answer is not None and answer.certified
            assert camera.contract["audits"]["agreed"] == 30
            assert [each["counted"] for each in camera.contract["events"].values()] == [0, 0]
            assert gateway.contracts.pools() == []
            brightness, seen = 255, 0
            while not camera.contract["alarm"]:
                await camera.ask(brightness - seen)
                seen += 1
                assert seen < 20
            cause = camera.contract["cause"]
            assert cause.startswith("missed dog: ")
            assert ("on this device" in cause) is alone
            await until(lambda: [pool.state.audits for pool in gateway.contracts.pools()] == [seen])
            (pool,) = gateway.contracts.pools()
            assert (pool.key.event, pool.disagreements, pool.alarmed_s is None) == ("missed dog", seen, alone)
            answer = (await camera.ask(60)).answer
            assert answer is not None and answer.certified == (answer.tier == "cloud")
        async with client_of(gateway, url, "anna", "operator") as client:
            (shown,) = (await client.get("/firstline/v1/contracts/small")).json()["contracts"]
        assert (shown["event"], shown["epsilon"], shown["audits"]) == ("missed dog", 0.05, seen)


def test_a_certificate_about_an_unknown_event_is_void(tmp_path: Path) -> None:
    found = detector_bundle(tmp_path).manifest
    edge = with_certificate(found.edge[0], found, 0.4, **about_events({"missed horse": 0.05}))
    assert "no event 'missed horse'" in certificate_problem(replace(found, edge=(edge,)), edge)
