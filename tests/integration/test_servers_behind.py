"""A gateway whose models run on others: second gateways as processes, one of them killed under load."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec
import numpy as np
import pytest
import uvloop
from support import tls_site
from support.behind import Behind, Site, site_in
from support.databases import sqlite_store, sqlite_store_in
from support.gateway import DIGITS, serving
from support.keys import create_key
from support.pictures import Load, ask, expected, picture, said

from bench.support.bundles import write_manifest
from firstline_core.bundle.store import open_bundle
from firstline_core.processing.steps import InputSpec
from firstline_gateway.app import open_gateway
from firstline_gateway.settings.load import load


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return site_in(tmp_path)


@asynccontextmanager
async def near(site: Site, *urls: str, **overrides: object) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway in this process that has the manifest alone, and a client of it."""
    folder = site.folder
    models = folder / "manifests"
    models.mkdir(exist_ok=True)
    (models / "manifest.json").write_bytes((DIGITS / "manifest.json").read_bytes())
    (folder / "token").write_text(site.token)
    known: dict[str, object] = {
        "auth.mode": "off",
        "models.directory": str(models),
        "store.url": sqlite_store_in(folder / "near.db").url,
        "execution.engine": "oip",
        "oip.endpoints": list(urls),
        "oip.token_file": str(folder / "token"),
    }
    gateway = open_gateway(
        load(None, environ={}, overrides=known | {key.replace("__", "."): v for key, v in overrides.items()})
    )
    async with serving(gateway) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        yield client


async def batches_of(one: Behind, site: Site) -> float:
    """That a gateway behind has run."""
    async with httpx.AsyncClient(base_url=one.url, headers={"Authorization": f"Bearer {site.token}"}) as client:
        text = (await client.get("/metrics")).text
    (line,) = (line for line in text.splitlines() if line.startswith("firstline_gateway_batch_rows_count "))
    return float(line.split()[1])


@pytest.mark.timeout(300)  # three starts of a process, on a machine that may be busy
async def test_one_of_two_is_killed_under_load_and_comes_back_and_nothing_is_lost(site: Site) -> None:
    with site.behind("one") as one, site.behind("other") as other:
        async with near(site, one.url, other.url) as client:
            assert (await client.get("/v2/health/ready")).status_code == 200
            load_ = Load(client)
            await load_.more(40)
            assert min(await batches_of(one, site), await batches_of(other, site)) > 5, "both have their part"
            other.end(signal.SIGKILL)
            await load_.more(60)
            await asyncio.to_thread(other.start)
            async with asyncio.timeout(30):
                while not await batches_of(other, site):  # noqa: ASYNC110 (it is another process)
                    await asyncio.sleep(0.05)
            await asyncio.to_thread(one.end, signal.SIGTERM)
            await load_.more(60)
            await load_.end()


async def test_nobody_behind_is_a_sentence_with_a_time_and_not_ready(site: Site) -> None:
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


async def test_what_is_behind_must_be_the_same_bundle(site: Site) -> None:
    bundle = site.folder / "bundle"
    shutil.copytree(DIGITS, bundle, ignore=shutil.ignore_patterns("edge*"))
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["full"]["preprocess"][1]["filter"] = "nearest"
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    with site.behind("one", bundle=bundle) as one:
        async with near(site, one.url) as client:
            reply = await ask(client, picture(0))
            assert (reply.status_code, reply.json()["code"]) == (503, "engine_unavailable")
            assert "has full model" in reply.json()["error"]
            assert (await client.get("/v2/health/ready")).status_code == 400


async def test_any_server_of_v2_gets_what_the_model_takes(site: Site) -> None:
    """The server behind knows the model alone; decoding and the rest are done here."""
    there = site.folder / "there"
    there.mkdir()
    shutil.copy(DIGITS / "full.onnx", there)
    manifest = open_bundle(DIGITS).manifest
    assert manifest.full is not None
    plain = msgspec.structs.replace(manifest.full, preprocess=())
    write_manifest(
        there, [], manifest.labels, name="digits", full=plain, input=InputSpec("image", "FP32", (-1, 8, 8, 1))
    )
    here = site.folder / "manifests"
    with site.behind("one", bundle=there) as one:
        async with near(site, one.url) as first:
            assert (await first.get("/v2/health/ready")).status_code == 400, "another digest, and it says so"
        unfinished = msgspec.structs.replace(manifest.full, postprocess=())  # it answers with probabilities
        write_manifest(here, [], manifest.labels, name="digits", full=unfinished)
        shutil.copytree(here, site.folder / "other")
        overrides = {"models__directory": str(site.folder / "other"), "oip__processing": "here"}
        async with near(site, one.url, **overrides) as client:
            reply = await ask(client, picture(3), picture(4))
            np.testing.assert_allclose(said(reply), np.concatenate(expected([3, 4])), atol=1e-5)
            bad = await ask(client, b"no image")
            assert (bad.status_code, bad.json()["code"]) == (400, "invalid_tensor")
            assert (await ask(client, picture(3), timeout_s=1e-6)).status_code == 504


def test_a_server_over_https_is_asked_where_its_authority_is_believed(site: Site) -> None:
    uvloop.run(over_https(site))  # on which a gateway's process runs, with transports of its own


async def over_https(site: Site) -> None:
    async with tls_site.site(site.folder / "secured") as far:
        gateway_ca = str(far.folder / "identity" / "authorities.pem")
        token = create_key(sqlite_store(far.folder), "near", "application")
        there = Site(site.folder, token)
        async with near(there, far.url, oip__ca_file=gateway_ca) as client:
            assert (await client.get("/v2/health/ready")).status_code == 200
            replies = await asyncio.gather(*(ask(client, picture(number)) for number in range(20)))
            for reply, right in zip(replies, expected(list(range(20))), strict=True):
                np.testing.assert_allclose(said(reply), right, atol=1e-5)
        async with near(there, far.url) as client:  # by the usual authorities, who do not know it
            reply = await ask(client, picture(0))
            assert (reply.status_code, reply.json()["code"]) == (503, "engine_unavailable")
            assert "certificate" in reply.json()["error"]
        elsewhere = far.url.replace("127.0.0.1", "localhost")  # reached, but its certificate does not name it
        async with near(there, elsewhere, oip__ca_file=gateway_ca) as client:
            reply = await ask(client, picture(0))
            assert (reply.status_code, reply.json()["code"]) == (503, "engine_unavailable")
            assert "certificate" in reply.json()["error"]
