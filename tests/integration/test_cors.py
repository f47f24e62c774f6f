"""Web pages of listed origins call both tiers from a browser; pages of other origins cannot."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from support.agent import edge_settings, serving_agent
from support.gateway import serving
from support.images import noise
from support.sample_bundles import detector_bundle
from support.small_models import small_gateway

PAGE, OTHER = "https://app.example", "https://evil.example"
INFER = "/firstline/v1/models/m/infer"


@pytest.fixture(params=["agent", "gateway"])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    folder = tmp_path / "models" / "m"
    folder.mkdir(parents=True)
    detector_bundle(folder, name="m")
    async with AsyncExitStack() as opened:
        if request.param == "gateway":
            gateway = small_gateway(tmp_path, api__cors_origins=[PAGE])
            url = await opened.enter_async_context(serving(gateway))
        else:
            models = [str(tmp_path / "models")]
            settings = edge_settings(tmp_path / "state", models__directories=models, api__cors_origins=[PAGE])
            _, url = await opened.enter_async_context(serving_agent(settings))
        yield await opened.enter_async_context(httpx.AsyncClient(base_url=url, trust_env=False))


async def test_listed_pages_may_send_files_and_read_answers(client: httpx.AsyncClient) -> None:
    for path in (INFER, "/v2/models/m/infer", "/v2/models/m"):
        headers = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "prefer"}
        preflight = await client.options(path, headers=headers)
        assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (204, PAGE), path
    found = await client.post(INFER, content=noise(), headers={"Origin": PAGE})
    assert (found.status_code, found.headers["access-control-allow-origin"]) == (200, PAGE), found.text
    refused = await client.post(INFER, content=b"no image", headers={"Origin": PAGE})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (400, PAGE)


async def test_other_pages_get_nothing_that_they_can_read(client: httpx.AsyncClient) -> None:
    headers = {"Origin": OTHER, "Access-Control-Request-Method": "POST"}
    preflight = await client.options(INFER, headers=headers)
    assert preflight.status_code == 403 and "api.cors_origins" in preflight.json()["error"]
    found = await client.post(INFER, content=noise(), headers={"Origin": OTHER})
    assert "access-control-allow-origin" not in found.headers
