"""A gateway that runs a model itself and has another one run it too, which stops, goes on and dies."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.behind import GatewaysBehind, gateways_behind
from support.commands import gateway_status
from support.gateway import serving_gateway
from support.images import by_name
from support.laborious import laborious
from support.processes import TierProcess

from bench.support.bundles import model, write_manifest
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.store import open_bundle
from firstline_core.processing.steps import InputSpec
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import Tensor

ROUNDS = 40  # several milliseconds on one core


@pytest.fixture
def site(tmp_path: Path) -> GatewaysBehind:
    return gateways_behind(tmp_path)


def laborious_bundle(folder: Path) -> Path:
    folder.mkdir()
    full = model(laborious(folder / "full.onnx", 4, rounds=ROUNDS, width=1024), folder)
    write_manifest(folder, [], ["a", "b", "c", "d"], name="m", full=full, inputs=(InputSpec("x", "FP32", (-1, 4)),))
    return folder


@asynccontextmanager
async def near(site: GatewaysBehind, far: TierProcess, bundle: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway in this process with two executors."""
    (site.folder / "token").write_text(site.token)
    executors = {
        "here": {"engine": "local", "sessions": 1},
        "far": {"engine": "oip", "endpoints": [far.url], "sessions": 1},
    }
    async with (
        serving_gateway(
            site.folder,
            auth__mode="off",
            execution__max_batch_rows=1,  # otherwise one executor takes all waiting rows in one batch
            models__directory=str(bundle),
            oip__token_file=str(site.folder / "token"),
            executors=executors,
        ) as (_, url),
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        yield client


async def executors_of(client: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    listed = (await client.get("/firstline/v1/executors")).json()["executors"]
    return {each["name"]: each for each in listed}


async def answered(client: httpx.AsyncClient, name: str) -> int:
    return int((await executors_of(client))[name]["batches"].get("answered", 0))


class Asking:
    """Clients that send requests without a pause until they are stopped; every answer has to be right."""

    def __init__(self, client: httpx.AsyncClient, right: dict[int, list[float]], clients: int = 4) -> None:
        self._client = client
        self._right = right
        self._ended = False
        self.count = 0
        self._tasks = [asyncio.create_task(self._go(first)) for first in range(clients)]

    async def _go(self, number: int) -> None:
        while not self._ended:
            number = (number + 1) % len(self._right)
            tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [number / 10, 0, 1, 2]}
            reply = await self._client.post("/v2/models/m/infer", json={"inputs": [tensor]})
            assert reply.status_code == 200, reply.text
            np.testing.assert_allclose(reply.json()["outputs"][0]["data"], self._right[number], atol=1e-4)
            self.count += 1

    async def until(self, come: Callable[[], Any]) -> None:
        """Waits for what is to come, while all goes well."""
        async with asyncio.timeout(60):
            while not await come():
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.05)

    async def more(self, count: int) -> None:
        target = self.count + count

        async def come() -> bool:
            return self.count >= target

        await self.until(come)

    async def end(self) -> None:
        self._ended = True
        await asyncio.gather(*self._tasks)


def what_it_says(bundle: Path) -> dict[int, list[float]]:
    found = open_bundle(bundle)
    assert found.manifest.full is not None
    loaded = load_model(found, found.manifest.full, RuntimeOptions())
    rows = {number: np.array([[number / 10, 0, 1, 2]], np.float32) for number in range(20)}
    right = {
        number: loaded.predict(by_name(Tensor("x", row))).outputs["probabilities"][0].tolist()
        for number, row in rows.items()
    }
    loaded.close()
    return right


@pytest.mark.timeout(300)  # the start of a process, on a machine that may be busy
async def test_work_moves_between_executors(site: GatewaysBehind) -> None:
    bundle = laborious_bundle(site.folder / "bundle")
    with site.gateway("far", bundle) as far:
        async with near(site, far, bundle) as client:
            asking = Asking(client, what_it_says(bundle))

            async def both_have_their_part() -> bool:
                found = await executors_of(client)
                return all(each["batches"].get("answered", 0) > 20 for each in found.values())

            async def far_has_more_than(count: int) -> bool:
                return await answered(client, "far") > count

            await asking.until(both_have_their_part)

            far.process.send_signal(signal.SIGSTOP)
            await asking.more(20)  # with what was under way there: run again here
            before = await answered(client, "far")
            await asking.more(20)
            assert await answered(client, "far") == before
            far.process.send_signal(signal.SIGCONT)
            await asking.until(lambda: far_has_more_than(before + 15))

            far.kill()
            await asking.more(30)

            async def far_is_away() -> bool:
                return bool((await executors_of(client))["far"]["problem"])

            await asking.until(far_is_away)
            text = (await client.get("/metrics")).text
            assert 'firstline_gateway_executor_up{executor="far"} 0.0' in text
            assert 'firstline_gateway_executor_up{executor="here"} 1.0' in text
            await asking.end()
            status = await gateway_status(str(client.base_url))
            assert "executor: here: up (" in status
            assert re.search(r"executor: far: (.+ is away|It failed)", status)
