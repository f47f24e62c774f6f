"""A device that gets a new version of a bundle before its gateway does."""

from pathlib import Path

import httpx
from support.agent import edge_settings, serving_agent
from support.gateway import serving
from support.small_models import ROW, Asking, put, small_gateway
from support.waiting import until


async def test_a_device_upgraded_first_keeps_its_promises(tmp_path: Path) -> None:
    put(tmp_path / "models" / "small")
    gateway = small_gateway(tmp_path)
    async with serving(gateway) as gateway_url, httpx.AsyncClient(timeout=20) as client:
        put(tmp_path / "device", version=2, seed=1)
        settings = edge_settings(
            tmp_path / "state",
            models__directories=[str(tmp_path / "device")],
            links=[{"kind": "http", "url": gateway_url}],
            policy__min_threshold=1.1,
        )
        async with serving_agent(settings) as (agent, url):
            reply = (await client.post(f"{url}/v2/models/small/infer", json=ROW)).json()
            answer = reply["parameters"]
            assert (answer["status"], answer["reason"], answer["durable"]) == ("provisional", "cloud_error", True)
            (model,) = (await client.get(f"{url}/firstline/v1/status")).json()["models"]
            assert "has no version '2' on this gateway" in model["problem"]
            assert "Corrections wait 60 more min" in model["problem"]

            put(tmp_path / "models" / "small-2", version=2, seed=1)
            client.base_url = httpx.URL(gateway_url)
            assert (await Asking(client).post("/v2/repository/models/small/load"))[0] == 200
            await until(lambda: agent.outbox.depth == 0)
            corrected = (await client.get(f"{url}/firstline/v1/answers/{answer['request_id']}")).json()
            assert (corrected["status"], corrected["tier"]) == ("final", "cloud")
            (model,) = (await client.get(f"{url}/firstline/v1/status")).json()["models"]
            assert model["problem"] is None
