"""Several variants of one bundle: their ladder, the choice for a request, and unloading."""

import asyncio
import math
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.agent import adapting_settings
from support.logs import captured_lines
from support.sample_bundles import variant_bundle
from support.waiting import until

from firstline_core.bundle.manifest import MANIFEST_NAME, Manifest, encode_manifest
from firstline_core.errors import SheddingError
from firstline_core.hardware.readings import NOTHING_READ, Measured, Snapshot
from firstline_core.ids import new_request_id
from firstline_core.telemetry import decisions
from firstline_core.types import InferRequest, InferResponse, Privacy, Reason, Tensor, Tier
from firstline_edge.app import EdgeAgent
from firstline_edge.cli.explain import describe
from firstline_edge.models.models import BundleVariants
from firstline_edge.state import StatePaths

SURE, UNSURE = (9.0, 0.0), (0.1, 0.0)
GB = 1e9


class Device:
    """An agent with simulated sensors."""

    def __init__(self, agent: EdgeAgent) -> None:
        self.agent = agent
        self.at_s = agent.sampler.latest.at_s

    @property
    def variants(self) -> BundleVariants:
        return self.agent.models.find("small").variants

    @property
    def loaded(self) -> list[str]:
        return [variant.edge.loaded.model.id for variant in self.variants.loaded if variant.edge is not None]

    def feels(self, *, hottest_c: float = 40, left_bytes: float = 4 * GB, for_s: float = 0) -> None:
        """Sets the sensor readings and advances the clock."""
        assert self.agent.switcher is not None
        until_s = self.at_s + for_s
        while True:
            self.at_s += 5
            heat, left = Measured(hottest_c, "/soc"), Measured(left_bytes, "/meminfo")
            self.agent.switcher.update(
                Snapshot(at_s=self.at_s, temperature_c={"soc": heat}, memory_available_bytes=left)
            )
            if self.at_s >= until_s:
                return

    async def asks(self, row: tuple[float, float] = SURE, **fields: Any) -> InferResponse:
        return await self.agent.data_plane.infer(request(row, **fields))

    async def variant(self, row: tuple[float, float] = SURE, **fields: Any) -> str:
        """Which variant answered, by the digest that the answer names."""
        response = await self.asks(row, **fields)
        by_digest = {model.digest: model.id for model in self.manifest.edge}
        return by_digest[response.answer.model_digest]

    @property
    def manifest(self) -> Manifest:
        device_model = self.agent.models.find("small")
        return device_model.manifest

    def story(self, request_id: str) -> str:
        self.agent.recorder.flush()
        lines = decisions.find(StatePaths(self.agent.settings.state_dir).decisions_path, request_id)
        return "\n".join(sentence for line in lines for sentence in describe(line))


def request(row: tuple[float, float], **fields: Any) -> InferRequest:
    tensor = Tensor("x", np.array([row], np.float32))
    defaults = {"request_id": new_request_id(), "principal": "local"} | fields
    return InferRequest("small", (tensor,), **defaults)


@pytest.fixture
async def device(tmp_path: Path) -> AsyncIterator[Device]:
    variant_bundle(tmp_path / "bundle")
    async with EdgeAgent(adapting_settings(tmp_path)) as agent:
        # The one reading of the sensors themselves, of which there are none.
        await until(lambda: agent.sampler.latest is not NOTHING_READ)
        yield Device(agent)


async def test_the_ladder_is_ordered_by_kept_share_and_time(device: Device) -> None:
    rungs = device.variants.rungs
    assert [rung.variant for rung in rungs] == ["large", "medium", "small"] == device.loaded
    assert [rung.merit for rung in rungs] == [0.9, 0.8, 0.6]
    assert rungs[0].row_ms > rungs[1].row_ms > rungs[2].row_ms > 0
    sizes_bytes = [variant.artefact.size_bytes for variant in device.variants.current.manifest.edge]
    for rung, size_bytes in zip(rungs, sizes_bytes, strict=True):  # its file, what is parsed of it, and what is used
        assert 3 * size_bytes <= rung.memory_bytes < 3 * size_bytes + 100e6


async def test_without_adaptation_there_is_one_variant(tmp_path: Path) -> None:
    variant_bundle(tmp_path / "bundle")
    async with EdgeAgent(adapting_settings(tmp_path, adaptation__enabled=False)) as agent:
        device_model = agent.models.find("small")
        assert device_model.variants is None and device_model.loaded_variants == (device_model,)
        assert agent.switcher is None
        response = await agent.data_plane.infer(request(SURE))
        assert response.answer.model_digest == device_model.manifest.edge[0].digest
        assert device_model.edge.loaded.model.id == "large"


async def test_a_bundle_of_one_variant_has_no_ladder(tmp_path: Path) -> None:
    variant_bundle(tmp_path / "bundle", "small")
    async with EdgeAgent(adapting_settings(tmp_path)) as agent:
        device_model = agent.models.find("small")
        assert device_model.variants is None and device_model.edge is not None


async def test_the_best_and_the_cheapest_variants_are_held(tmp_path: Path) -> None:
    variant_bundle(tmp_path / "bundle")
    async with EdgeAgent(adapting_settings(tmp_path, adaptation__variants_limit=2)) as agent:
        assert Device(agent).loaded == ["large", "small"]


async def test_heat_uses_a_cheaper_variant_under_its_own_certificate(device: Device) -> None:
    assert await device.variant() == "large"
    device.feels(hottest_c=79)
    response = await device.asks((8.0, 0.0))
    answer = response.answer
    small = device.manifest.edge[2]
    assert (answer.model_digest, answer.certified, answer.tier) == (small.digest, True, Tier.EDGE)
    assert device.loaded == ["large", "medium", "small"], "heat needs no memory"
    story = device.story(answer.request_id)
    assert "variant small, not a better one (heat: 79.0 C" in story
    device.feels(hottest_c=50, for_s=300)
    assert await device.variant((7.0, 0.0)) == "large"


async def test_a_hot_device_splits_requests_between_two_variants(device: Device) -> None:
    device.feels(hottest_c=77.5)  # a half above where it should settle
    position = device.variants.position
    assert position.rung == 0 and 0.05 < position.next_share < 0.5
    with captured_lines() as lines:
        device.feels(hottest_c=77.5)
        share = device.variants.position.next_share
        answers = [await device.asks((9.0 + at / 100, 0.0)) for at in range(100)]
    digests = [response.answer.model_digest for response in answers if response.answer is not None]
    large, medium, _ = (variant.digest for variant in device.manifest.edge)
    assert set(digests) == {large, medium}
    assert digests.count(medium) == pytest.approx(100 * share, abs=1), "as many as the controller says, and evenly"
    assert all(response.answer is not None and response.answer.certified for response in answers)
    first = digests.index(medium)
    answer = answers[first].answer
    assert "variant medium, not a better one (heat: 77.5 C" in device.story(answer.request_id)
    assert not [line for line in lines if line["event"] == "variant switched"], "that it shares was told when it began"
    logged = list(decisions.lines(StatePaths(device.agent.settings.state_dir).decisions_path))
    (began,) = [line for line in logged if line["event"] == "switched"]
    assert (began["from"], began["to"], began["guard"]) == ("large", "large", "heat") and began["share_of_the_next"] > 0
    assert device.agent.operations.status()["models"][0]["variants"]["shared_out"] == round(share, 2)


async def test_an_alarm_concerns_one_variant_only(device: Device) -> None:
    certificates = device.agent.certificates
    large, medium, _ = (certificates.find(variant) for variant in device.variants.loaded)
    assert large.key != medium.key


async def test_a_short_deadline_takes_the_best_variant_in_time(device: Device) -> None:
    clock = device.agent._clock
    large = device.variants.loaded[0].edge
    large.pace.factor = 1000.0  # it has become slow: it would take hundreds of milliseconds
    response = await device.asks(SURE, deadline_s=clock.monotonic_s() + 0.1)
    story = device.story(response.answer.request_id)
    assert "variant medium, not a better one (deadline: large would take" in story
    assert await device.variant((6.0, 0.0), deadline_s=clock.monotonic_s() + 60) == "large"


@pytest.mark.parametrize(("threaded", "in_time"), [(1, "medium"), (2, "small")])
async def test_a_variant_that_need_not_wait_is_in_time(threaded: int, in_time: str, device: Device) -> None:
    """The better variants run in threads, which are all busy for longer than the request may take."""
    clock, edge, ends = device.agent._clock, device.variants.loaded[0].edge, threading.Event()
    for each in device.variants.loaded[:threaded]:
        each.edge.pace.off_loop = 1000  # as after a run that took unexpectedly long
    busy = [asyncio.create_task(edge.workers.run(ends.wait, 60.0, expected_s=60.0)) for _ in range(8)]
    try:
        await until(lambda: edge.workers.busy == 1)
        response = await device.asks(SURE, deadline_s=clock.monotonic_s() + 5)
        story = device.story(response.answer.request_id)
        assert f"variant {in_time}, not a better one (deadline: large would take" in story
    finally:
        ends.set()
        await asyncio.gather(*busy)


async def test_cache_entries_belong_to_one_variant(device: Device) -> None:
    first = await device.asks(SURE)
    again = await device.asks(SURE)
    device.feels(hottest_c=79)
    other = await device.asks(SURE)
    tiers = [response.answer.tier for response in (first, again, other) if response.answer is not None]
    assert tiers == [Tier.EDGE, Tier.CACHE, Tier.EDGE]


async def test_short_memory_unloads_better_variants_until_it_recovers(device: Device) -> None:
    device.feels(left_bytes=40e6)
    assert device.loaded == ["small"]
    assert device.variants.best_row_ms > device.variants.rungs[-1].row_ms, "an update must not be slower than large"
    assert await device.variant() == "small"
    device.feels(left_bytes=4 * GB, for_s=60)

    def back() -> bool:
        device.feels()
        return device.loaded == ["large", "medium", "small"]

    await until(back)
    assert await device.variant((5.0, 0.0)) == "large"
    assert device.agent.certificates.find(device.variants.current) is not None


async def test_short_memory_unloads_variants_during_heat(device: Device) -> None:
    device.feels(hottest_c=79.5)
    assert await device.variant() == "small" and device.loaded == ["large", "medium", "small"]
    device.feels(hottest_c=79.5, left_bytes=50e6)
    assert device.loaded == ["small"]


async def test_hovering_heat_is_reported_with_hysteresis(device: Device) -> None:
    with captured_lines() as lines:
        for _ in range(50):
            device.feels(hottest_c=77.6, for_s=20)
            device.feels(hottest_c=76.4, for_s=20)
    assert len([line for line in lines if line["event"] == "variant switched"]) < 5


async def test_a_request_keeps_its_variant(device: Device) -> None:
    """Even if the variant is unloaded while the request waits."""
    large = device.variants.loaded[0].edge
    large.pace.factor = 1000.0  # so that it runs in a thread
    tasks = [asyncio.create_task(device.variant((row, 0.0), deadline_s=math.inf)) for row in (9.0, 8.0, 7.0, 6.0, 5.0)]
    await asyncio.sleep(0)
    device.feels(left_bytes=40e6)
    assert device.loaded == ["small"]
    assert set(await asyncio.gather(*tasks)) <= {"large", "small"}
    assert await device.variant((4.0, 0.0)) == "small"


async def test_shedding_has_its_own_reason_and_status(device: Device) -> None:
    first = await device.asks(SURE)
    device.feels(left_bytes=20e6)
    assert await device.variant((8.0, 0.0)) == "small", "first a cheaper variant"
    device.feels(left_bytes=20e6, for_s=20)
    assert device.variants.position.shedding
    cached = await device.asks((8.0, 0.0))
    assert cached.answer.tier is Tier.CACHE, "what is known is still told"
    with pytest.raises(SheddingError, match=r"computes nothing at the moment \(memory: .*no link") as refused:
        await device.asks((3.0, 0.0))
    assert refused.value.retryable and refused.value.code == "shedding" and refused.value.retry_after_s
    with pytest.raises(SheddingError, match="bound to it"):
        await device.asks((2.0, 0.0), privacy=Privacy.LOCAL_ONLY)
    assert "shedding" in device.story(refused.value.request_id)
    assert first.answer is not None
    device.feels(for_s=40)
    assert not device.variants.position.shedding
    assert await device.variant((2.0, 0.0)) in {"small", "medium", "large"}


async def test_every_switch_is_logged_recorded_and_counted(device: Device) -> None:
    with captured_lines() as lines:
        device.feels(hottest_c=79)
    (switch,) = [line for line in lines if line["event"] == "variant switched"]
    assert (switch["from"], switch["to"], switch["guard"], switch["sheds"]) == ("large", "small", "heat", False)
    device.agent.recorder.flush()
    logged = list(decisions.lines(StatePaths(device.agent.settings.state_dir).decisions_path))
    assert [(line["from"], line["to"]) for line in logged if line["event"] == "switched"] == [("large", "small")]
    metrics = device.agent.operations.exposition()[0].decode()
    assert 'firstline_edge_variant_rung{model="small",version="1"} 2.0' in metrics
    assert 'firstline_edge_variant_switches_total{guard="heat"} 1.0' in metrics
    (model,) = device.agent.operations.status()["models"]
    assert model["edge"] == "small"
    assert model["variants"]["standing"] == "small" and model["variants"]["why"].startswith("heat: 79.0 C")
    assert [rung["loaded"] for rung in model["variants"]["rungs"]] == [True, True, True]


async def test_an_uncertified_variant_never_replaces_a_certified_one(tmp_path: Path) -> None:
    bundle = variant_bundle(tmp_path / "bundle")
    edge = (*bundle.manifest.edge[:2], msgspec.structs.replace(bundle.manifest.edge[2], certificate=None))
    manifest = msgspec.structs.replace(bundle.manifest, edge=edge)
    (tmp_path / "bundle" / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    async with EdgeAgent(adapting_settings(tmp_path)) as agent:
        assert Device(agent).loaded == ["large", "medium"]


async def test_a_low_score_is_the_reason_not_the_variant(device: Device) -> None:
    """Without a link, an uncertain row of any variant is answered at the edge."""
    device.feels(hottest_c=79)
    response = await device.asks(UNSURE)
    assert response.answer.reason is Reason.LINK_DOWN and not response.answer.certified
