"""Both tiers as processes, over HTTP and over MQTT: every way in which one request can go."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from support.digits import predictions
from support.images import noise
from support.line import forked_site

from firstline.demo.site import Device, LinkKind, Site
from firstline_core.errors import LinkDownError, RequestError
from firstline_core.types import InferResponse, Reason, Status, Tier

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = "digits"
LIMIT_BYTES = 4_000
SETTINGS = f"[policy]\nlimit_bytes = {LIMIT_BYTES}\n"


@dataclass(frozen=True)
class Scans:
    """Held-out scans by what the bundle's policy does with them, with each model's own answers."""

    sure: list[bytes]
    unsure: list[bytes]
    edge: dict[bytes, np.ndarray]
    full: dict[bytes, np.ndarray]


@pytest.fixture(scope="module")
def scans() -> Scans:
    found = predictions(150)
    return Scans(
        sure=[content for content, sure in zip(found.contents, found.sure, strict=True) if sure],
        unsure=[content for content, sure in zip(found.contents, found.sure, strict=True) if not sure],
        edge=dict(zip(found.contents, found.edge, strict=True)),
        full=dict(zip(found.contents, found.full, strict=True)),
    )


@pytest.fixture(scope="module", params=["http", pytest.param("mqtt", marks=pytest.mark.mosquitto)])
def transport(request: pytest.FixtureRequest) -> LinkKind:
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, transport: LinkKind) -> Path:
    return tmp_path_factory.mktemp(transport)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared_site(folder: Path, transport: LinkKind) -> AsyncIterator[Site]:
    async with forked_site(folder, mosquitto=transport == "mqtt") as running:
        yield running


@pytest.fixture
def running(shared_site: Site, folder: Path) -> Iterator[Site]:
    """One gateway for all tests; its device knows of none of them but its own."""
    yield shared_site
    for state in folder.glob("state-*"):
        shutil.rmtree(state)


@pytest_asyncio.fixture(loop_scope="module")
async def device(running: Site, transport: LinkKind) -> AsyncIterator[Device]:
    async with running.device(transport, SETTINGS) as device:
        yield device


async def asked(device: Device, *contents: bytes, **wishes: object) -> InferResponse:
    return await device.client.infer(MODEL, {"image": list(contents)}, **wishes)


def check(response: InferResponse, tier: Tier, reason: Reason, status: Status = Status.FINAL) -> None:
    assert (response.answer.tier, response.answer.reason, response.answer.status) == (tier, reason, status)


def rows_of(response: InferResponse) -> np.ndarray:
    return response.output("probabilities")


def heavy_scan() -> bytes:
    scan = noise(side=100)
    assert len(scan) > LIMIT_BYTES
    return scan


async def test_online_requests_are_answered_by_the_right_tier(device: Device, scans: Scans) -> None:
    sure, unsure = scans.sure[0], scans.unsure[0]

    confident = await asked(device, sure)
    check(confident, Tier.EDGE, Reason.CONFIDENT)
    np.testing.assert_allclose(rows_of(confident)[0], scans.edge[sure], atol=1e-5)

    escalated = await asked(device, unsure)
    check(escalated, Tier.CLOUD, Reason.UNCERTAIN)
    assert escalated.answer.certified
    assert escalated.answer.confidence is not None
    np.testing.assert_allclose(rows_of(escalated)[0], scans.full[unsure], atol=1e-5)

    for content, first in ((sure, confident), (unsure, escalated)):
        again = await asked(device, content)
        assert again.answer.tier is Tier.CACHE
        np.testing.assert_array_equal(rows_of(again), rows_of(first))

    heavy = await asked(device, heavy_scan())
    check(heavy, Tier.CLOUD, Reason.HEAVY)
    with pytest.raises(RequestError, match="local_only"):
        await asked(device, heavy_scan(), privacy="local_only")

    requested = await asked(device, scans.sure[1], route="cloud")
    check(requested, Tier.CLOUD, Reason.REQUESTED)
    np.testing.assert_allclose(rows_of(requested)[0], scans.full[scans.sure[1]], atol=1e-5)


async def test_local_only_never_crosses_the_link(device: Device) -> None:
    carried_bytes = device.wire.bytes_sent
    for seed in range(5):
        scan = noise(seed, side=60)
        assert len(scan) < LIMIT_BYTES
        answered = await asked(device, scan, privacy="local_only")
        check(answered, Tier.EDGE, Reason.LOCAL_ONLY)
        assert not answered.answer.certified
    # Probes and keep-alives pass, but not even one of the scans.
    assert device.wire.bytes_sent - carried_bytes < len(scan)


async def test_only_uncertain_rows_of_a_batch_are_sent(device: Device, scans: Scans) -> None:
    batch = [scans.unsure[0], scans.sure[0], scans.sure[1], scans.unsure[1], scans.sure[2]]
    mixed = await asked(device, *batch)
    check(mixed, Tier.CLOUD, Reason.UNCERTAIN)
    assert [row.tier for row in mixed.answer.rows] == [Tier.CLOUD, Tier.EDGE, Tier.EDGE, Tier.CLOUD, Tier.EDGE]
    expected = [scans.full[content] if content in scans.unsure else scans.edge[content] for content in batch]
    np.testing.assert_allclose(rows_of(mixed), expected, atol=1e-5)


async def test_offline_answers_are_corrected_after_reconnection(device: Device, scans: Scans) -> None:
    await device.wire.cut()
    check(await asked(device, scans.sure[0]), Tier.EDGE, Reason.CONFIDENT)
    # As many as are delivered at once: how the others are spread is not for seconds of a real clock.
    provisional = [await asked(device, content) for content in scans.unsure[:4]]
    for content, response in zip(scans.unsure, provisional, strict=False):
        check(response, Tier.EDGE, Reason.LINK_DOWN, Status.PROVISIONAL)
        assert response.answer.durable
        np.testing.assert_allclose(rows_of(response)[0], scans.edge[content], atol=1e-5)
    with pytest.raises(LinkDownError) as refused:
        await asked(device, heavy_scan())
    assert refused.value.retry_after_s is not None
    check(await asked(device, scans.unsure[6], privacy="local_only"), Tier.EDGE, Reason.LOCAL_ONLY)

    await device.wire.restore()
    for content, response in zip(scans.unsure, provisional, strict=False):
        final = await device.client.wait_for_final(response.answer.request_id)
        assert final.answer.status is Status.FINAL
        assert final.answer.certified
        np.testing.assert_allclose(rows_of(final)[0], scans.full[content], atol=1e-5)


async def test_kill_loses_no_correction(running: Site, transport: LinkKind, scans: Scans) -> None:
    promised: dict[str, bytes] = {}
    async with running.device(transport, SETTINGS) as device:
        await device.wire.cut()

        async def promise(content: bytes) -> None:
            response = await asked(device, content)
            if response.answer.durable:
                promised[response.answer.request_id] = content

        # As many as are delivered at once, as above.
        pending = [asyncio.create_task(promise(content)) for content in scans.unsure[:4]]
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        device.process.kill()
        device.process.wait()
        await asyncio.gather(*pending, return_exceptions=True)
    assert promised

    async with running.device(transport, SETTINGS) as device:
        for request_id, content in promised.items():
            final = await device.client.wait_for_final(request_id)
            assert final.answer.status is Status.FINAL
            np.testing.assert_allclose(rows_of(final)[0], scans.full[content], atol=1e-5)
