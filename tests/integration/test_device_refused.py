"""A device whose gateway refuses it, or holds another bundle: what it says of that, and that it recovers by itself."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import msgspec
from support.agent import CHECKOUT, DIGITS, edge_settings
from support.gateway import serving
from support.keys import create_key
from support.logs import captured_lines

from firstline_core.telemetry.decisions import find
from firstline_core.types import InferResponse, Status, Tier
from firstline_edge.app import EdgeAgent
from firstline_edge.cli.explain import describe
from firstline_gateway.app import open_gateway
from firstline_gateway.settings.load import load as load_gateway_settings
from firstline_gateway.settings.settings import Store


def picture() -> bytes:
    with zipfile.ZipFile(CHECKOUT / "models" / "digits" / "heldout" / "images.zip") as archive:
        return archive.read(min(name for name in archive.namelist() if name.endswith(".png")))


async def ask(agent: EdgeAgent) -> InferResponse:
    return await agent.data_plane.infer_file("digits", picture(), route="cloud", timeout="20000000")


def story(agent: EdgeAgent, response: InferResponse) -> str:
    assert response.answer is not None
    agent.recorder.flush()
    return "\n".join(
        text for line in find(agent.state.decisions_path, response.answer.request_id) for text in describe(line)
    )


async def test_a_replaced_token_is_picked_up_without_a_restart(tmp_path: Path) -> None:
    device_file = tmp_path / "device"
    good = create_key(Store(), "device-1", "device")
    device_file.write_text("firstline_of_yesterday")
    overrides = {"models.directory": str(DIGITS.parent)}
    async with serving(open_gateway(load_gateway_settings(None, environ={}, overrides=overrides))) as url:
        link = {"kind": "http", "url": url, "token_file": str(device_file)}
        async with EdgeAgent(edge_settings(tmp_path / "state", links=[link])) as agent:
            refused = await ask(agent)
            assert refused.answer is not None and refused.answer.tier is Tier.EDGE
            assert "refuses this device's token" in story(agent, refused)
            http = agent.operations.status()["links"]["http"]
            assert (http["state"], http["address"]) == ("refused", url)
            assert "API key" in http["problem"]
            device_file.write_text(good)
            taken = await ask(agent)
            assert taken.answer is not None
            assert (taken.answer.tier, taken.answer.status) == (Tier.CLOUD, Status.FINAL)
            http = agent.operations.status()["links"]["http"]
            assert (http["state"], http["address"], http["problem"]) == ("up", url, "")


async def test_another_bundle_at_the_gateway_shows_on_the_device(tmp_path: Path) -> None:
    bundle = tmp_path / "models" / "digits"
    shutil.copytree(DIGITS, bundle)
    manifest = msgspec.json.decode((bundle / "manifest.json").read_bytes())
    (bundle / "manifest.json").write_bytes(msgspec.json.encode(manifest | {"version": manifest["version"] + 1}))
    overrides = {"auth.mode": "off", "models.directory": str(bundle.parent)}
    async with serving(open_gateway(load_gateway_settings(None, environ={}, overrides=overrides))) as url:
        settings = edge_settings(tmp_path / "state", links=[{"kind": "http", "url": url}])
        async with EdgeAgent(settings) as agent:
            with captured_lines() as lines:
                for _ in range(2):
                    response = await ask(agent)
            [model] = agent.operations.status()["models"]
            said = [line["error"] for line in lines if line["event"] == "model not served by gateway"]
            assert said == [model["problem"]]  # once
            assert model["problem"] in story(agent, response)
