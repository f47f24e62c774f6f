"""A certified detector in the field: a blind one alarms by its event, and audits renew the promise about it."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.agent import edge_settings
from support.audits import EVERY_ANSWER, settled
from support.event_certificates import about_events
from support.gateway import client_of, http_link, serving_gateway
from support.images import encode
from support.sample_bundles import detector_bundle
from support.waiting import until
from typer.testing import CliRunner

from bench.support.bundles import with_certificate, write_manifest
from firstline.cli.app import app
from firstline_core.bundle.manifest import certificate_problem, valid_certificate
from firstline_core.bundle.store import open_bundle
from firstline_core.ids import new_request_id
from firstline_core.processing.steps import BoxRows, Suppress
from firstline_core.types import InferRequest, InferResponse, Tensor
from firstline_edge.app import EdgeAgent
from firstline_edge.cli import audit_list
from firstline_edge.cli.parser import parse

PROMISED = {"missed dog": 0.05, "invented dog": 0.05}


def blind_detector(folder: Path) -> Path:
    """The full model finds a dog in bright images. The edge model is as sure of its answers, and never finds one."""
    full = detector_bundle(folder).manifest.full
    found = detector_bundle(folder, BoxRows(), Suppress(0.9), full=full).manifest
    fields: dict[str, Any] = {"task": found.task, "full": found.full, "policy": found.policy}
    write_manifest(folder, [with_certificate(found.edge[0], found, 0.4, **about_events(PROMISED))], (), **fields)
    return folder


def image(brightness: int, width: int = 80) -> bytes:
    return encode(np.full((80, width, 3), brightness, np.uint8))


class Camera:
    """An agent that asks its own data plane, one request at a time."""

    def __init__(self, agent: EdgeAgent, width: int = 80) -> None:
        self.agent = agent
        self.width = width

    async def ask(self, brightness: int) -> InferResponse:
        images = np.array([image(brightness, self.width)], object)
        infer_request = InferRequest("small", (Tensor("image", images),), new_request_id())
        before = self.contract["audits"]["drawn"]
        response = await self.agent.data_plane.infer(infer_request)
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
        return described["contract"]


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
            **EVERY_ANSWER,
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
                await asyncio.wrap_future(settled(gateway.contracts))  # so that the next answer tells of an alarm
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
            states = (await client.get("/firstline/v1/contracts/small")).json()
        (shown,) = states["contracts"]
        assert (shown["event"], shown["epsilon"], shown["audits"]) == ("missed dog", 0.05, seen)
        assert shown["finding"] == f"missed dog: 100 % of {seen} audits in which it can occur; promised 5 %"
        assert [each["event"] for each in states["device_alarms"]] == ["missed dog"] * alone


@pytest.mark.usefixtures("few_checked_rows")
async def test_audits_renew_a_promise_about_an_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The edge model misses dogs in frames of medium brightness, where its scores are 0.51 to 0.69."""
    bundle, renewed = tmp_path / "bundle", tmp_path / "renewed"
    bundle.mkdir()
    full = detector_bundle(bundle).manifest.full
    found = detector_bundle(bundle, BoxRows(), Suppress(0.5), full=full).manifest
    certified = with_certificate(found.edge[0], found, 0.4, **about_events({"missed dog": 0.1}))
    write_manifest(bundle, [certified], (), task=found.task, full=found.full, policy=found.policy)
    async with serving_gateway(tmp_path, models__directory=str(bundle), contracts__delta=1e-300) as (gateway, url):
        settings = edge_settings(
            tmp_path / "state",
            models__directories=[str(bundle)],
            links=[http_link(gateway.settings.store, url, "yard", tmp_path)],
            audit__fleet_devices=10_000,
            **EVERY_ANSWER,
        )
        async with EdgeAgent(settings) as agent:
            camera = Camera(agent, width=160)
            missed = iter(range(80, 130, 5))
            for brightness in range(200, 250):
                await camera.ask(brightness)
                if brightness % 5 == 0:
                    await camera.ask(next(missed))
            for brightness in range(10, 30):
                await camera.ask(brightness)
            event = camera.contract["events"]["missed dog"]
            assert (event["counted"], event["lost"], camera.contract["alarm"]) == (60, 10, False)
    config = tmp_path / "agent.toml"
    config.write_text(f'[agent]\nstate_dir = "{tmp_path / "state"}"\n')
    assert audit_list.command(parse(["audit", "list", "--config", str(config)])) == 0
    table = capsys.readouterr().out
    assert table.splitlines()[0] == "score,agree,weight,kept,certificate,missed dog"

    def certify(rows: str, *arguments: object, code: int = 0) -> str:
        line = ["certify", str(bundle), "--scores", "-", *map(str, arguments)]
        result = CliRunner().invoke(app, line, input=rows)
        assert result.exit_code == code, result.output
        return result.output

    assert "Certified on 80 rows" in certify(table, "--out", renewed)
    manifest = open_bundle(renewed).manifest
    certificate = valid_certificate(manifest, manifest.edge[0])
    promise = certificate.events["missed dog"]
    assert (certificate.contract, promise.epsilon, promise.delta, promise.n) == ("events", 0.1, 0.1, 60)
    assert 0.64 < certificate.threshold < 0.78  # above most of the missed dogs
    few = certify("".join(table.splitlines(keepends=True)[:13]), "--require", code=1)
    assert "Not proved: at most 10 % of the edge answers miss 'dog'" in few
    assert "12 observations; at least 10 more would be needed" in few
    strict = certify(table, "--promise", "missed dog 1% at 90%")
    assert "60 observations; at least 170 more would be needed" in strict
    assert "say nothing about 'missed cat'" in certify(table, "--promise", "missed cat 5% at 90%", code=2)


def test_a_certificate_about_an_unknown_event_is_void(tmp_path: Path) -> None:
    found = detector_bundle(tmp_path).manifest
    edge = with_certificate(found.edge[0], found, 0.4, **about_events({"missed horse": 0.05}))
    assert "no event 'missed horse'" in certificate_problem(replace(found, edge=(edge,)), edge)
