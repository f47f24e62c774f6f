"""A gateway whose models run on a Ray cluster: real Ray, two machines, one of them killed under load."""

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from msgspec import structs
from support.gateway import DIGITS
from support.pictures import Load, ask, picture
from support.processes import TierProcess
from support.ray_cluster import RayNodes, ray_nodes

from bench.support.bundles import model, write_manifest
from firstline_core.errors import RemoteTimeoutError
from firstline_core.processing.steps import InputSpec, Softmax
from firstline_core.types import Array

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

# `support.impure_models.dynamically_quantised`, because this environment has no onnx.
_QUANTISED_BY_THE_BATCH = (
    "CAo66AEKIwoBeBIBcRIBcxIBeiIVRHluYW1pY1F1YW50aXplTGluZWFyCiEKAXEKB3dlaWdodHMKAXoSAWkiDU1hdE11bEludGVnZXIKFwoB"
    "aRIBZiIEQ2FzdCoJCgJ0bxgBoAECChIKAXMKBXNjYWxlEgF0IgNNdWwKDgoBZgoBdBIBeSIDTXVsEgVzbWFsbCodCAQIAxADQgd3ZWlnaHRz"
    "Sgx/AAAAfwAAAH8qKioqDxABQgVzY2FsZUoEBoPBPFoUCgF4Eg8KDQgBEgkKAxIBbgoCCARiFAoBeRIPCg0IARIJCgMSAW4KAggDQgQKABAR"
)


@contextmanager
def gateway(folder: Path, nodes: RayNodes, manifest: object = None, **ray: object) -> Iterator[TierProcess]:
    """A gateway as a process that has the manifests, and reaches the models on the cluster."""
    folder.mkdir()
    settings = {"address": nodes.address, "replicas_min": 2, "replicas_max": 2, "models_directory": str(DIGITS)} | ray
    models = folder / "models"
    models.mkdir()
    (models / "manifest.json").write_text(json.dumps(manifest) if manifest else (DIGITS / "manifest.json").read_text())
    (folder / "gateway.toml").write_text(
        '[auth]\nmode = "off"\n[api]\nopen_metrics = true\n[execution]\nengine = "ray"\n'
        f'[log]\nformat = "json"\n[models]\ndirectory = "{models}"\n[ray]\n'
        + "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    )
    config = folder / "gateway.toml"
    with TierProcess("firstline_gateway", "--config", config, log=folder / "log", environ=nodes.environ) as running:
        yield running
        assert running.stop() == 0


def client_of(running: TierProcess) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=running.url, timeout=60)


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with ray_nodes() as found:
        yield found


async def replicas(client: httpx.AsyncClient) -> float:
    text = (await client.get("/metrics")).text
    lines = (line for line in text.splitlines() if line.startswith("firstline_gateway_server_up{"))
    return sum(float(line.split()[-1]) for line in lines)


async def until_replicas(client: httpx.AsyncClient, count: int) -> None:
    async with asyncio.timeout(90):
        while await replicas(client) != count:  # noqa: ASYNC110 (they are other processes)
            await asyncio.sleep(0.1)


async def test_killed_machine_loses_no_request(tmp_path: Path, nodes: RayNodes) -> None:
    with gateway(tmp_path / "one", nodes) as running:
        async with client_of(running) as client:
            await until_replicas(client, 2)
            assert (await client.get("/v2/health/ready")).status_code == 200
            load = Load(client)
            await load.more(60)
            await asyncio.to_thread(nodes.kill_one)
            await load.more(200)
            await until_replicas(client, 1)
            await asyncio.to_thread(nodes.add_one)
            await until_replicas(client, 2)
            await load.more(60)
            await load.end()
            bad = await ask(client, b"no image")
            assert (bad.status_code, bad.json()["code"]) == (400, "invalid_tensor"), "its own fault, and nobody else's"
            assert (await ask(client, picture(1), timeout_s=1e-6)).status_code == 504
        assert "Raylet is terminated" in running.log.read_text(), "and stdout has the ready line alone"
        with gateway(tmp_path / "other", nodes) as other:
            async with client_of(other) as client:
                await until_replicas(client, 2)
                load = Load(client, clients=2)
                await load.more(20)
                await load.end()
            assert "deploying on the Ray cluster" in running.log.read_text()
            assert "deploying on the Ray cluster" not in other.log.read_text(), (
                "it found what it needs, and left it alone"
            )


async def test_other_bundle_on_the_cluster_is_an_error(tmp_path: Path, nodes: RayNodes) -> None:
    nodes.add_one()  # with room for one more
    manifest = json.loads((DIGITS / "manifest.json").read_text())
    manifest["full"]["inputs"][0]["preprocess"][1]["filter"] = "nearest"
    with gateway(tmp_path / "near", nodes, manifest=manifest, replicas_min=1) as running:
        async with client_of(running) as client:
            async with asyncio.timeout(120):
                while "has full model" not in (await ask(client, picture(0))).text:  # noqa: ASYNC110 (they are others)
                    await asyncio.sleep(0.2)
            reply = await ask(client, picture(0))
            assert (reply.status_code, reply.json()["code"]) == (503, "engine_unavailable")
            assert (await client.get("/v2/health/ready")).status_code == 400


async def test_model_with_batch_1_runs_row_by_row(tmp_path: Path, nodes: RayNodes) -> None:
    nodes.add_one()  # with room for one more
    files = tmp_path / "files"
    files.mkdir()
    (files / "m.onnx").write_bytes(base64.b64decode(_QUANTISED_BY_THE_BATCH))
    declared = model(files / "m.onnx", files, postprocess=(Softmax(),), batch=1)
    edge = structs.replace(declared, id="edge")
    write_manifest(files, [edge], ("a", "b", "c"), full=declared, inputs=(InputSpec("x", "FP32", (-1, 4)),))
    manifest = json.loads((files / "manifest.json").read_text())
    rows = np.random.default_rng(2).standard_normal((8, 4)) * np.resize([0.2, 5], 8)[:, None]
    with gateway(tmp_path / "near", nodes, manifest, models_directory=str(files), replicas_min=1) as running:
        async with client_of(running) as client:
            await until_replicas(client, 1)

            async def classify(part: Array) -> list[float]:
                input_tensor = {"name": "x", "datatype": "FP32", "shape": list(part.shape), "data": part.tolist()}
                reply = await client.post("/v2/models/small/infer", json={"inputs": [input_tensor]})
                return reply.json()["outputs"][0]["data"]

            alone = [value for row in rows for value in await classify(row[None])]
            assert await classify(rows) == pytest.approx(alone, abs=1e-6)
            at_once = await asyncio.gather(*[classify(row[None]) for row in rows])
            assert [value for each in at_once for value in each] == pytest.approx(alone, abs=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what Ray imports
async def test_batch_times_out_while_ray_hangs() -> None:
    from firstline_gateway.executors.ray.cluster import RayCluster

    cluster, over = RayCluster("127.0.0.1:1"), threading.Event()
    cluster._thread.submit(over.wait)
    try:
        async with asyncio.timeout(5):
            with pytest.raises(RemoteTimeoutError):
                await cluster.run("firstline-digits", [], [], 0.05)
    finally:
        over.set()


async def test_absent_cluster_is_an_error_and_not_ready(tmp_path: Path, nodes: RayNodes) -> None:
    with gateway(tmp_path / "near", nodes, address="127.0.0.1:1") as running:
        async with client_of(running) as client:
            assert (await client.get("/v2/health/live")).status_code == 200
            assert (await client.get("/v2/health/ready")).status_code == 400
            reply = await ask(client, picture(0))
            assert (reply.status_code, reply.json()["code"]) == (503, "engine_unavailable")
            assert "127.0.0.1:1 does not answer" in reply.json()["error"]
