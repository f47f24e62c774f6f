"""A gateway whose models run on others: second gateways as processes, one of them killed under load."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec
import numpy as np
import pytest
import uvloop
from support.behind import GatewaysBehind, gateways_behind
from support.databases import sqlite_store
from support.gateway import DIGITS, serving_gateway
from support.images import grey, image_threads
from support.keys import create_key
from support.pictures import Load, ask, expected, picture, probabilities
from support.processes import TierProcess
from support.tls_site import tls_site
from support.waiting import until

from bench.support.bundles import write_manifest
from firstline_core.bundle.store import open_bundle
from firstline_core.processing.steps import InputSpec, ModelInput


@pytest.fixture
def site(tmp_path: Path) -> GatewaysBehind:
    return gateways_behind(tmp_path)


@asynccontextmanager
async def near(site: GatewaysBehind, *urls: str, **overrides: object) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway in this process that has the manifest alone, and a client of it."""
    folder = site.folder
    models = folder / "manifests"
    models.mkdir(exist_ok=True)
    (models / "manifest.json").write_bytes((DIGITS / "manifest.json").read_bytes())
    (folder / "token").write_text(site.token)
    defaults: dict[str, object] = {
        "auth__mode": "off",
        "models__directory": str(models),
        "execution__engine": "oip",
        "oip__endpoints": list(urls),
        "oip__token_file": str(folder / "token"),
    }
    async with (
        serving_gateway(folder, **(defaults | overrides)) as (_, url),
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        yield client


async def batches_of(one: TierProcess, site: GatewaysBehind) -> float:
    """That a gateway behind has run."""
    async with httpx.AsyncClient(base_url=one.url, headers={"Authorization": f"Bearer {site.token}"}) as client:
        text = (await client.get("/metrics")).text
    (line,) = (line for line in text.splitlines() if line.startswith("firstline_gateway_batch_rows_count "))
    return float(line.split()[1])


@pytest.mark.timeout(300)  # three starts of a process, on a machine that may be busy
async def test_killed_server_loses_no_request(site: GatewaysBehind) -> None:
    with site.gateway("one") as one, site.gateway("other") as other:
        async with near(site, one.url, other.url) as client:
            assert (await client.get("/v2/health/ready")).status_code == 200
            load_ = Load(client)
            await load_.more(40)
            assert min(await batches_of(one, site), await batches_of(other, site)) > 5, "both have their part"
            other.kill()
            await load_.more(60)
            await asyncio.to_thread(other.start)
            await until(lambda: batches_of(other, site), 60)
            await asyncio.to_thread(one.stop)
            await load_.more(60)
            await load_.end()


async def test_absent_servers_are_an_error_with_retry_after(site: GatewaysBehind) -> None:
    async with near(site, "http://127.0.0.1:1") as client:
        assert (await client.get("/v2/health/ready")).status_code == 400
        assert (await client.get("/v2/health/live")).status_code == 200
        assert (await client.get("/v2/models/digits/ready")).status_code == 400
        reply = await ask(client, picture(0))
        assert (reply.status_code, reply.json()["code"]) == (503, "engine_unavailable")
        assert "http://127.0.0.1:1 is away" in reply.json()["error"]
        assert int(reply.headers["Retry-After"]) >= 1
        (model,) = (await client.post("/v2/repository/index")).json()
        assert (model["state"], "is away" in model["reason"]) == ("UNAVAILABLE", True)


async def test_other_bundle_behind_is_an_error(site: GatewaysBehind) -> None:
    bundle = site.folder / "bundle"
    shutil.copytree(DIGITS, bundle, ignore=shutil.ignore_patterns("edge*"))
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["full"]["inputs"][0]["preprocess"][1]["filter"] = "nearest"
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    with site.gateway("one", bundle=bundle) as one:
        async with near(site, one.url) as client:
            reply = await ask(client, picture(0))
            assert (reply.status_code, reply.json()["code"]) == (503, "engine_unavailable")
            assert "has full model" in reply.json()["error"]
            assert (await client.get("/v2/health/ready")).status_code == 400


async def test_plain_v2_server_gets_preprocessed_tensors(site: GatewaysBehind) -> None:
    """The server behind knows the model alone; decoding and the rest are done here."""
    there = site.folder / "there"
    there.mkdir()
    shutil.copy(DIGITS / "full.onnx", there)
    manifest = open_bundle(DIGITS).manifest
    assert manifest.full is not None
    plain = msgspec.structs.replace(manifest.full, inputs=(ModelInput("image"),))
    write_manifest(
        there, [], manifest.labels, name="digits", full=plain, inputs=(InputSpec("image", "FP32", (-1, 8, 8, 1)),)
    )
    here = site.folder / "manifests"
    with site.gateway("one", bundle=there) as one:
        async with near(site, one.url) as first:
            assert (await first.get("/v2/health/ready")).status_code == 400, "another digest, and it says so"
        unfinished = msgspec.structs.replace(manifest.full, postprocess=())  # it answers with probabilities
        write_manifest(here, [], manifest.labels, name="digits", full=unfinished)
        shutil.copytree(here, site.folder / "other")
        overrides = {"models__directory": str(site.folder / "other"), "oip__processing": "here"}
        async with near(site, one.url, **overrides) as client:
            reply = await ask(client, picture(3), picture(4))
            np.testing.assert_allclose(probabilities(reply), np.concatenate(expected([3, 4])), atol=1e-5)
            bad = await ask(client, b"no image")
            assert (bad.status_code, bad.json()["code"]) == (400, "invalid_tensor")
            assert (await ask(client, picture(3), timeout_s=1e-6)).status_code == 504
            before = image_threads()
            small, large = [probabilities(await ask(client, grey(side=side))) for side in (8, 800)]
            assert len(image_threads() - before) == 1
            np.testing.assert_allclose(small, large, atol=1e-5)


def test_https_server_needs_a_trusted_authority(site: GatewaysBehind) -> None:
    uvloop.run(over_https(site))  # on which a gateway's process runs, with transports of its own


async def over_https(site: GatewaysBehind) -> None:
    async with tls_site(site.folder / "secured") as far:
        gateway_ca = str(far.folder / "identity" / "authorities.pem")
        token = create_key(sqlite_store(far.folder), "near", "application")
        there = GatewaysBehind(site.folder, token)
        async with near(there, far.url, oip__ca_file=gateway_ca) as client:
            assert (await client.get("/v2/health/ready")).status_code == 200
            replies = await asyncio.gather(*(ask(client, picture(number)) for number in range(20)))
            for reply, right in zip(replies, expected(list(range(20))), strict=True):
                np.testing.assert_allclose(probabilities(reply), right, atol=1e-5)
        async with near(there, far.url) as client:  # by the usual authorities, who do not know it
            reply = await ask(client, picture(0))
            assert (reply.status_code, reply.json()["code"]) == (503, "engine_unavailable")
            assert "certificate" in reply.json()["error"]
        elsewhere = far.url.replace("127.0.0.1", "localhost")  # reached, but its certificate does not name it
        async with near(there, elsewhere, oip__ca_file=gateway_ca) as client:
            reply = await ask(client, picture(0))
            assert (reply.status_code, reply.json()["code"]) == (503, "engine_unavailable")
            assert "certificate" in reply.json()["error"]
