"""A device whose gateway refuses it, or holds another bundle: what it says of that, and that it recovers by itself."""

from pathlib import Path

from support.agent import edge_settings
from support.digits import digits_bundle, scan
from support.gateway import serving_gateway
from support.keys import create_key
from support.logs import captured_lines

from firstline_core.telemetry.decisions import find
from firstline_core.types import InferResponse, Status, Tier
from firstline_edge.app import EdgeAgent
from firstline_edge.cli.explain import describe


async def ask(agent: EdgeAgent) -> InferResponse:
    return await agent.data_plane.infer_file("digits", scan(), route="cloud", timeout="20000000")


def story(agent: EdgeAgent, response: InferResponse) -> str:
    agent.recorder.flush()
    return "\n".join(
        text for line in find(agent.state.decisions_path, response.answer.request_id) for text in describe(line)
    )


async def test_a_replaced_token_is_picked_up_without_a_restart(tmp_path: Path) -> None:
    device_file = tmp_path / "device"
    device_file.write_text("firstline_of_yesterday")
    async with serving_gateway(tmp_path) as (gateway, url):
        good = create_key(gateway.settings.store, "device-1", "device")
        link = {"kind": "http", "url": url, "token_file": str(device_file)}
        async with EdgeAgent(edge_settings(tmp_path / "state", links=[link])) as agent:
            refused = await ask(agent)
            assert refused.answer.tier is Tier.EDGE
            assert "refuses this device's token" in story(agent, refused)
            http = agent.operations.status()["links"]["http"]
            assert (http["state"], http["address"]) == ("refused", url)
            assert "API key" in http["problem"]
            device_file.write_text(good)
            taken = await ask(agent)
            assert (taken.answer.tier, taken.answer.status) == (Tier.CLOUD, Status.FINAL)
            http = agent.operations.status()["links"]["http"]
            assert (http["state"], http["address"], http["problem"]) == ("up", url, "")


async def test_another_bundle_at_the_gateway_shows_on_the_device(tmp_path: Path) -> None:
    bundle = digits_bundle(tmp_path / "models" / "digits", 2).path
    async with serving_gateway(tmp_path, auth__mode="off", models__directory=str(bundle.parent)) as (_, url):
        settings = edge_settings(tmp_path / "state", links=[{"kind": "http", "url": url}])
        async with EdgeAgent(settings) as agent:
            with captured_lines() as lines:
                for _ in range(2):
                    response = await ask(agent)
            [model] = agent.operations.status()["models"]
            [error] = [line["error"] for line in lines if line["event"] == "model not served by gateway"]  # once
            assert model["problem"].startswith(f"{error} Corrections wait 60 more min")
            assert error in story(agent, response)
