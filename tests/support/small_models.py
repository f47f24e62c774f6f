"""Small models in a folder that changes, on both tiers in this process."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from support.agent import edge_settings, serving_agent
from support.broker import Broker
from support.gateway import gateway_settings, serving
from support.sample_models import linear_model

from bench.support.bundles import model, write_manifest
from firstline_core.processing.steps import InputSpec
from firstline_gateway.app import Gateway, open_gateway

NUMBERS = InputSpec("image", "FP32", (-1, 4))
ROW = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}


def put(folder: Path, name: str = "small", version: int = 1, seed: int = 0) -> Path:
    """A bundle of four numbers to three classes, which is its own edge model."""
    folder.mkdir(parents=True, exist_ok=True)
    file = linear_model(folder / "full.onnx", pixels=4, classes=3, softmax=True, seed=seed)
    full = model(file, folder)
    write_manifest(
        folder,
        [model(file, folder, id="edge")],
        ("a", "b", "c"),
        name=name,
        version=version,
        full=full,
        inputs=(NUMBERS,),
    )
    return folder


def small_gateway(folder: Path, *, broker: Broker | None = None, **overrides: object) -> Gateway:
    (folder / "models").mkdir(exist_ok=True)
    defaults = {"auth__mode": "off", "models__directory": str(folder / "models"), "execution__sessions": 2}
    return open_gateway(gateway_settings(folder, broker=broker, **(defaults | overrides)))


class Asking:
    """Asks a tier over REST."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def post(self, path: str, body: object = None) -> tuple[int, Any]:
        reply = await self.client.post(path, content=b"" if body is None else json.dumps(body))
        return reply.status_code, reply.json()

    async def index(self) -> dict[tuple[str, str], tuple[str, str]]:
        _, found = await self.post("/v2/repository/index")
        return {(each["name"], each["version"]): (each["state"], each["reason"]) for each in found}

    async def probabilities(self, name: str = "small") -> list[float]:
        status, reply = await self.post(f"/v2/models/{name}/infer", ROW)
        assert status == 200, reply
        return reply["outputs"][0]["data"]


@asynccontextmanager
async def small_tier(tier: str, folder: Path) -> AsyncIterator[Asking]:
    """Either tier with the model `small`; its models lie in `folder`/models."""
    put(folder / "models" / "small")
    async with httpx.AsyncClient(timeout=20) as client:
        if tier == "gateway":
            async with serving(small_gateway(folder)) as url:
                client.base_url = httpx.URL(url)
                yield Asking(client)
        else:
            settings = edge_settings(folder / "state", models__directories=[str(folder / "models")])
            async with serving_agent(settings) as (_, url):
                client.base_url = httpx.URL(url)
                yield Asking(client)
