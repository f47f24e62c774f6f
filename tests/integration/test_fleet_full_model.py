"""A fleet moves between full models: a real gateway serves both, and the move itself escalates nothing."""

import asyncio
import dataclasses
import hashlib
import itertools
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import onnx
import pytest
import pytest_asyncio
from msgspec.structs import replace
from support.agent import edge_settings
from support.commands import firstline
from support.desired import desire
from support.digits import digits_bundle, scans
from support.gateway import http_link, serving
from support.keys import bearer, create_key
from support.registry_site import RegistrySite, registry_site
from support.waiting import until

from firstline_core.bundle.manifest import encode_manifest
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.clock import SimulatedClock, SystemClock
from firstline_core.errors import ConflictError, NotReadyError
from firstline_core.fleet.twin import Desired, DesiredModel
from firstline_core.storage.artefact import Artefact
from firstline_core.types import Array, ModelKey, Reason, Status, Tier
from firstline_edge.app import EdgeAgent
from firstline_edge.fleet.updates.installation import manifest_sha256
from firstline_gateway.app import open_gateway
from firstline_gateway.models.repository import ServedModel
from firstline_gateway.rollouts.commands import Command
from firstline_gateway.rollouts.full_models import FullModels
from firstline_gateway.rollouts.judgement.verdict import Limit, Rules
from firstline_gateway.rollouts.rollout import Definition, Stage

DEVICES = ("device-1", "device-2", "device-3")
OLD, NEW = ModelKey("digits", 1), ModelKey("digits", 2)
UNSEEN = Rules(limits={name: Limit(1e9) for name in ("crashes", "errors", "latency", "escalations", "disagreement")})
BY = "application:ops"


def another_full_model(folder: Path) -> Bundle:
    """The digits whose full model is surer of all that it says, and so is another one; its first choices stay.

    What was certified is how often the first choices differ, so that the certificates hold for it too.
    """
    bundle = digits_bundle(folder, NEW.version)
    model = onnx.load(folder / "full.onnx")
    (dual,) = (each for each in model.graph.initializer if each.name == "dual")
    dual.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(dual) * np.float32(1.05), "dual"))
    content = model.SerializeToString()
    (folder / "full.onnx").write_bytes(content)
    before = bundle.manifest
    assert before.full is not None
    artefact = Artefact("full.onnx", hashlib.sha256(content).hexdigest(), len(content))
    manifest = replace(before, full=replace(before.full, artefact=artefact), golden=None)
    edge = [
        replace(each, certificate=each.certificate and replace(each.certificate, full_digest=manifest.full_digest))
        for each in manifest.edge
    ]
    (folder / "manifest.json").write_bytes(encode_manifest(replace(manifest, edge=tuple(edge))))
    return open_bundle(folder)


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[RegistrySite]:
    folders = {"models.directory": str(tmp_path / "models"), "registry.full_models": str(tmp_path / "shelf")}
    (tmp_path / "models").mkdir()
    async with registry_site(tmp_path / "site", **folders) as found:
        await found.begin()
        for bundle in (digits_bundle(tmp_path / "old", OLD.version), another_full_model(tmp_path / "new")):
            await found.push(bundle)
        yield found


@pytest_asyncio.fixture
async def agents(site: RegistrySite, tmp_path: Path) -> AsyncIterator[dict[str, EdgeAgent]]:
    """Devices that were set up with the old bundle; without caches, so that each request is decided again."""
    async with AsyncExitStack() as opened:
        found = {}
        for name in DEVICES:
            settings = edge_settings(
                tmp_path / name,
                agent__device_id=name,
                models__directories=[str(tmp_path / "old")],
                links=[http_link(site.gateway.settings.store, site.url, name, tmp_path)],
                cache__memory_limit_bytes=0,
                cache__disk_limit_bytes=0,
                audit__per_hour=0,
                hedge__enabled=False,
                policy__default_timeout_ms=60_000,
                fleet__enabled=True,
                fleet__poll_s=0.1,
                fleet__root_file=str(site.keyring.anchor),
                fleet__download_jitter_s=0,
                fleet__trial_s=0.2,
            )
            found[name] = await opened.enter_async_context(EdgeAgent(settings))
        yield found


class Answered(NamedTuple):
    """One answer of one device."""

    device: str
    scan: int
    version: int
    digest: str
    tier: Tier
    probabilities: Array


class Traffic:
    """Asks every device about the same real digits, over and over."""

    def __init__(self, agents: dict[str, EdgeAgent]) -> None:
        self._agents = agents
        self._scans = scans(50)
        self._over = asyncio.Event()
        self.answers: list[Answered] = []

    async def ask(self, device: str, scan: int) -> Answered:
        response = await self._agents[device].data_plane.infer_file("digits", self._scans[scan])
        # Four tiers share one event loop here: where it is behind, the gateway leaves requests unread, as it should.
        while (answer := response.answer) is not None and any(each.outcome == "queue_full" for each in answer.attempts):
            await asyncio.sleep(0.1)  # the caller retries after the stated time
            response = await self._agents[device].data_plane.infer_file("digits", self._scans[scan])
        assert answer.status is Status.FINAL, answer
        assert answer.reason in (Reason.CONFIDENT, Reason.UNCERTAIN), answer.attempts
        (output,) = response.outputs
        return Answered(device, scan, int(response.version), answer.model_digest, answer.tier, output.array[0])

    async def once(self) -> list[Answered]:
        """Every device about every scan."""
        return [await self.ask(device, scan) for device in self._agents for scan in range(len(self._scans))]

    async def go(self) -> None:
        """Until `end`."""
        for number in itertools.cycle(range(len(self._scans))):
            for device in self._agents:
                self.answers.append(await self.ask(device, number))
                await asyncio.sleep(0)
            if self._over.is_set():
                return

    def end(self) -> None:
        self._over.set()


def escalated(answers: list[Answered]) -> list[Answered]:
    return [each for each in answers if each.tier is Tier.CLOUD]


def keeper_of(site: RegistrySite) -> FullModels:
    return site.gateway.full_models


def definition(bundle: Path) -> Definition:
    stages = Stage(1 / 3, soak_s=3600.0), Stage(1.0, soak_s=3600.0)
    sha256 = manifest_sha256(bundle)
    return Definition("digits", NEW.version, sha256, stages, UNSEEN, held_back=0.0)


async def test_both_full_models_answer_until_the_rollout_ends(
    site: RegistrySite, agents: dict[str, EdgeAgent], tmp_path: Path
) -> None:
    keeper, repository = keeper_of(site), site.gateway.repository
    full = {version: open_bundle(tmp_path / name).manifest.full_digest for name, version in (("old", 1), ("new", 2))}
    assert full[1] != full[2] and len(set(full.values())) == 2

    async def served() -> bool:
        await keeper.update()
        return OLD in repository.models

    await until(served, 60)  # what devices run is fetched, as they say that they run it
    assert set(repository.models) == {OLD}
    before = await Traffic(agents).once()
    share_before = len(escalated(before)) / len(before)
    assert 0.05 < share_before < 0.6 and {each.digest for each in escalated(before)} == {full[1]}

    # While one device of three has moved, and on the way there.
    rollouts, driver = site.gateway.rollouts, site.gateway.rollout_driver
    traffic = Traffic(agents)
    asking = asyncio.create_task(traffic.go())
    rollout = (await rollouts.create(definition(tmp_path / "new"), BY)).id
    await rollouts.command(rollout, Command.START, BY)
    assert set(repository.models) == {OLD, NEW}  # before any device was told

    async def moved(count: int) -> bool:
        await driver.drive()
        found = await rollouts.get(rollout)
        return found.devices.get("done") == count and found.phase == "observing"

    await until(lambda: moved(1), 60)
    half = await Traffic(agents).once()
    assert {each.version for each in half} == {1, 2}
    await rollouts.command(rollout, Command.PROMOTE, BY)
    await until(lambda: moved(3), 60)
    await rollouts.command(rollout, Command.PROMOTE, BY)
    traffic.end()
    await asking
    after = await Traffic(agents).once()
    assert {each.version for each in after} == {2}

    # Each escalation was answered by the full model that its bundle was certified against.
    everything = [*before, *half, *after, *traffic.answers]
    for each in escalated(everything):
        assert each.digest == full[each.version], each
    answers = {(each.scan, each.version): each.probabilities for each in escalated(everything)}
    both = [scan for scan, version in answers if version == 1 and (scan, 2) in answers]
    assert both
    for scan in both:
        old, new = answers[scan, 1], answers[scan, 2]
        assert old.argmax() == new.argmax() and not np.array_equal(old, new)

    # And nothing was escalated that would not have been without the move.
    for phase in (half, after):
        assert len(escalated(phase)) / len(phase) - share_before < 0.01
    would = {each.scan: each.tier is Tier.CLOUD for each in before}
    more = [each for each in escalated(traffic.answers) if not would[each.scan]]
    assert len(more) < 0.01 * len(traffic.answers), more

    # What no device needs any more goes, and comes back when one does.
    await keeper.update()
    assert set(repository.models) == {OLD, NEW}  # for a week
    keeper.clock = Later(8 * 86_400.0)
    await keeper.update()
    assert set(repository.models) == {NEW} and not (tmp_path / "shelf" / "digits@1").exists()
    back = DesiredModel("digits", 1, manifest_sha256(tmp_path / "old"), "again")

    def change(_: str, desired: Desired) -> Desired:
        return replace(desired, models=(back,))

    await desire(site.gateway, [DEVICES[0]], change)
    await keeper.update()
    assert set(repository.models) == {OLD, NEW}


async def test_fetched_models_are_served_after_a_restart(site: RegistrySite, tmp_path: Path) -> None:
    keeper = keeper_of(site)
    await keeper.prepare(definition(tmp_path / "new"))
    assert set(site.gateway.repository.models) == {NEW}
    names = sorted(path.name for path in (tmp_path / "shelf" / "digits@2").iterdir())
    assert names == ["full.onnx", "manifest.json"]  # nothing that devices alone need
    async with registry_site(
        tmp_path / "site2",
        **{"models.directory": str(tmp_path / "models"), "registry.full_models": str(tmp_path / "shelf")},
    ) as again:
        assert set(again.gateway.repository.models) == {NEW}
        shutil.copytree(tmp_path / "old", tmp_path / "models" / "digits")
        await again.gateway.plane.load("digits")
        assert set(again.gateway.repository.models) == {OLD, NEW}


async def test_model_without_room_stays_fetched_while_it_is_needed(
    site: RegistrySite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = keeper_of(site)

    async def refuse(_: ServedModel) -> None:
        raise NotReadyError("There is no room for it.")

    async def prepare_without_room() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(keeper.orders, "add", refuse)
            with pytest.raises(NotReadyError, match="no room"):
                await keeper.prepare(definition(tmp_path / "new"))
        await keeper.update()
        assert keeper.fetched.has(NEW)

    await prepare_without_room()
    keeper.clock = Later(8 * 86_400.0)
    await keeper.update()
    assert not keeper.fetched.has(NEW)
    await prepare_without_room()
    again = dataclasses.replace(keeper, retire_after_s=0.0)
    await again.update()  # as after a restart
    assert not keeper.fetched.has(NEW)
    await keeper.prepare(definition(tmp_path / "new"))
    assert set(site.gateway.repository.models) == {NEW}


async def test_model_that_loads_for_long_stays_fetched(
    site: RegistrySite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = keeper_of(site)
    add, began, may_end = keeper.orders.add, asyncio.Event(), asyncio.Event()

    async def add_slowly(served: ServedModel) -> None:
        began.set()
        await may_end.wait()
        await add(served)

    monkeypatch.setattr(keeper.orders, "add", add_slowly)
    preparing = asyncio.create_task(keeper.prepare(definition(tmp_path / "new")))
    await began.wait()
    keeper.clock = Later(8 * 86_400.0)
    await keeper.update()
    assert keeper.fetched.has(NEW)
    may_end.set()
    await preparing
    assert set(site.gateway.repository.models) == {NEW}


async def test_replica_without_the_model_answers_503_until_it_is_fetched(site: RegistrySite, tmp_path: Path) -> None:
    await keeper_of(site).prepare(definition(tmp_path / "new"))
    before = site.gateway.settings
    shelf = replace(before.registry, full_models=str(tmp_path / "other shelf"))
    replica = open_gateway(replace(before, registry=shelf))
    key = create_key(before.store, "asks", "application")
    body = {"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": ["x"]}]}
    async with serving(replica) as url, httpx.AsyncClient(base_url=url, headers=bearer(key), timeout=30) as client:

        async def infer(version: int) -> httpx.Response:
            return await client.post(f"/v2/models/digits/versions/{version}/infer", json=body)

        async def told_to_wait() -> bool:  # from its first look at the registry on
            return (await infer(2)).status_code in (503, 400)

        await until(told_to_wait, 60)
        assert (await infer(7)).status_code == 404  # it has no signature

        async def served() -> bool:
            reply = await infer(2)
            assert reply.status_code == 400 or "is being fetched" in reply.json()["error"], reply.text
            return reply.status_code == 400  # "x" is not an image, so the model is there

        await until(served, 60)
        assert set(replica.repository.models) == {NEW}


async def test_rollout_needs_the_signed_full_model(site: RegistrySite, tmp_path: Path) -> None:
    other = digits_bundle(tmp_path / "models" / "digits", NEW.version)  # the old full model as version 2
    await site.gateway.plane.load("digits")
    rollout = await site.gateway.rollouts.create(definition(tmp_path / "new"), BY)
    with pytest.raises(ConflictError, match="signed: it would refuse devices"):
        await site.gateway.rollouts.command(rollout.id, Command.START, BY)
    assert (await site.gateway.rollouts.get(rollout.id)).state == "approved"
    refused = await firstline(site.url, site.operator, "rollout", "create", "digits", "2", code=1)
    assert "it would refuse devices" in refused.output, refused.output
    waiting = (await site.gateway.rollouts.page("", 1, "digits")).rollouts[0].id
    assert f"`firstline rollout start {waiting}` starts it" in refused.output
    assert site.gateway.repository.models[NEW].digest == other.manifest.full_digest


async def test_start_returns_503_while_the_full_model_loads(site: RegistrySite, tmp_path: Path) -> None:
    keeper, clock, go_on = keeper_of(site), SimulatedClock(), threading.Event()
    read, reads = keeper.read, list[Path]()

    def slow(path: Path) -> ServedModel:
        reads.append(path)
        assert go_on.wait(60)
        return read(path)

    keeper.read, keeper.clock = slow, clock
    rollout = (await site.client.post("/fleet/v1/rollouts", json=_json(definition(tmp_path / "new")))).json()

    async def waits() -> bool:
        return len(reads) == 1 and clock.sleepers == 1

    for retry in (False, True):
        starting = asyncio.create_task(site.client.post(f"/fleet/v1/rollouts/{rollout['id']}/start"))
        await until(waits, 60)
        await clock.advance(19)
        assert not starting.done()
        if retry:
            go_on.set()
            break
        await clock.advance(1)
        refused = await starting
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "20"), refused.text
        assert "start the rollout again" in refused.json()["detail"]
        assert (await site.gateway.rollouts.get(rollout["id"])).state == "approved"
    started = await starting
    assert started.status_code == 200, started.text
    assert set(site.gateway.repository.models) == {NEW}
    assert len(reads) == 1  # both starts waited for one fetch


async def test_an_unloaded_model_is_not_loaded_again(site: RegistrySite, tmp_path: Path) -> None:
    keeper = keeper_of(site)
    await keeper.prepare(definition(tmp_path / "new"))
    model = DesiredModel("digits", NEW.version, manifest_sha256(tmp_path / "new"))
    await site.gateway.fleet.desired("cam")
    await desire(site.gateway, ["cam"], lambda _, desired: replace(desired, models=(model,)))
    await site.gateway.plane.unload("digits")
    await keeper.update()
    assert not site.gateway.repository.models
    with pytest.raises(ConflictError, match="An operator unloaded digits"):
        await keeper.prepare(definition(tmp_path / "new"))
    await site.gateway.plane.load("digits")
    assert set(site.gateway.repository.models) == {NEW}


async def test_altered_files_are_not_served(site: RegistrySite, tmp_path: Path) -> None:
    sha256 = open_bundle(tmp_path / "new").manifest.full
    digest = sha256.artefact.sha256
    path = tmp_path / "site" / "blobs" / digest[:2] / digest
    path.write_bytes(b"x" * path.stat().st_size)
    rollout = (await site.client.post("/fleet/v1/rollouts", json=_json(definition(tmp_path / "new")))).json()
    refused = await site.client.post(f"/fleet/v1/rollouts/{rollout['id']}/start")
    assert refused.status_code >= 400 and "other bytes" in refused.json()["detail"], refused.text
    assert not site.gateway.repository.models and not list((tmp_path / "shelf").glob("[!.]*"))


def _json(definition: Definition) -> dict[str, object]:
    return {"bundle": definition.bundle, "version": definition.version, "manifest_sha256": definition.manifest_sha256}


class Later(SystemClock):
    """The monotonic clock of a gateway that has run for longer."""

    def __init__(self, ahead_s: float) -> None:
        self._ahead_s = ahead_s

    def monotonic_s(self) -> float:  # type: ignore[override]
        return SystemClock.monotonic_s() + self._ahead_s
