"""The effects of an alarm on a certificate, and the state that survives a restart."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.edge import SURE, UNSURE, Scene, answer_of
from support.logs import captured_lines
from support.waiting import until

from firstline_core.bundle.manifest import MANIFEST_NAME
from firstline_core.bundle.store import Bundle
from firstline_core.clock import SimulatedClock
from firstline_core.errors import IntegrityError
from firstline_core.routing import audit, drift, policy
from firstline_core.routing.certificate import Histogram
from firstline_core.storage.files import DAMAGED
from firstline_core.types import PROBABILITIES, ContractAlarm, ContractNotice, Privacy, Reason, Status, Tier
from firstline_edge.audits import certificate_reports, records
from firstline_edge.audits.certificate_states import CertificateStates, ScoreHistogram, raised_threshold
from firstline_edge.audits.samples import Comparison, Sample
from firstline_edge.models.models import DeviceModel
from firstline_edge.settings.settings import AuditSection

CAREFUL = AuditSection(per_hour=1e9, bytes_per_hour=1e12, max_share=1.0, spacing_s=0.0, escalations_per_hour=4.0)

WORSE = [(0.85, 0), (0.97, 1), (0.96, 1), (0.99, 1), (0.98, 1), (0.97, 1), (0.85, 1), (0.96, 1)] * 50
"""One in eight disagrees, all of them at a low score."""

TESTED = {"": records.EventRecord(audit.begin(0.05))}

MakeScene = Callable[..., Scene]


@pytest.fixture
async def make_scene(tmp_path: Path) -> AsyncIterator[MakeScene]:
    scenes: list[Scene] = []

    def make(settings: AuditSection = CAREFUL, **arguments: Any) -> Scene:
        for scene in scenes:
            scene.samples.close()
        scenes.append(Scene(clock=SimulatedClock(), audit=settings, folder=tmp_path, **{"certified": 0.8} | arguments))
        return scenes[-1]

    yield make
    for scene in scenes:
        scene.samples.close()
        await scene.close()


@pytest.fixture
async def scene(make_scene: MakeScene) -> Scene:
    return make_scene()


def audited(scene: Scene, score: float, agree: float) -> None:
    """One audit ends that was drawn at the threshold in use."""
    monitored = scene.monitored
    sample = Sample(monitored.key, "m", "3", 0.0, score, agree, 1.0, kept=True)
    scene.certificates.audited(monitored, sample, threshold=monitored.threshold)


def feed(scene: Scene, *results: tuple[float, float]) -> int:
    """Results of audits, as (score, agree); returns after how many there was an alarm, 0 for none."""
    monitored = scene.monitored
    for number, (score, agree) in enumerate(results, 1):
        audited(scene, score, agree)
        if monitored.record.state.is_void:
            return number
    return 0


def elapse(scene: Scene, seconds: float) -> None:
    scene.clock._now_s += seconds  # type: ignore[attr-defined]


@asynccontextmanager
async def saving(scene: Scene) -> AsyncIterator[None]:
    """Keeps saving the records, as the agent does."""
    task = asyncio.create_task(scene.certificates.keep_saving())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def stored_bundle(folder: Path, certified: float) -> DeviceModel:
    """A loaded bundle whose manifest is written to the disk now."""
    found = Scene(certified=certified).held
    folder.mkdir(exist_ok=True)
    (folder / MANIFEST_NAME).touch()
    return replace(found, bundle=Bundle(folder, found.manifest))


async def restarted(scene: Scene, make_scene: MakeScene, **arguments: Any) -> Scene:
    await scene.certificates.close()
    return make_scene(**arguments)


async def test_graded_losses_are_tested_by_their_mean(make_scene: MakeScene) -> None:
    """Each answer differs a little; the certificate bounds the mean loss, here by 5 %."""
    scene = make_scene()
    assert feed(scene, *[(SURE, 0.97)] * 300) == 0
    answer = answer_of(await scene.infer(SURE))
    assert (answer.certified, answer.reason) == (True, Reason.CONFIDENT)
    monitored = scene.monitored
    assert (monitored.record.agreed, monitored.record.disagreed) == (0, 300)
    monitored.certificate = msgspec.structs.replace(monitored.certificate, graded=True)
    assert 10 < feed(scene, *[(SURE, 0.8), (0.85, 0.6)] * 300) < 200
    assert raised_threshold(scene.certificates.of(scene.held)) is not None
    assert monitored.record.state.cause.endswith("audits on this device show a mean loss above 5 %")


def test_a_comparison_keeps_the_loss(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    task, outputs = scene.held.manifest.task, {PROBABILITIES: np.eye(10, dtype=np.float32)[[3]]}
    monkeypatch.setattr(type(task), "loss", lambda *_: np.array([0.25], np.float32))
    compared = Comparison.of(scene.held, outputs, outputs)
    sample = scene.monitored.sample(0.0, SURE, compared, 1.0, kept=True)
    assert (compared.agree, sample.agree, sample.loss("")) == (False, 0.75, 0.25)


async def test_an_alarm_ends_certification_and_accepts_only_audited_scores(scene: Scene) -> None:
    assert 10 < feed(scene, *WORSE) < len(WORSE)
    monitored = scene.monitored
    assert monitored.record.state.tightened == 0.96 and not monitored.record.state.escalates_all
    edge_answer = answer_of(await scene.infer(0.97))
    assert (edge_answer.certified, edge_answer.reason, edge_answer.status) == (False, Reason.CONFIDENT, Status.FINAL)
    assert monitored.record.events[""].test == audit.begin(0.05)  # the new threshold has a test of its own


async def test_after_an_alarm_cached_answers_escalate_within_the_quota(scene: Scene) -> None:
    assert answer_of(await scene.infer(SURE)).certified  # in the cache from now on
    assert feed(scene, *[(SURE, 0)] * 20)
    assert scene.monitored.record.state.escalates_all
    denied = answer_of(await scene.infer(SURE))
    assert (denied.tier, denied.reason, denied.status) == (Tier.CACHE, Reason.BUDGET, Status.FINAL)
    assert not denied.certified
    ordinary = answer_of(await scene.infer(UNSURE))  # what the certificate itself escalates needs no quota
    assert (ordinary.tier, ordinary.certified) == (Tier.CLOUD, True)
    elapse(scene, 20 * 3600)  # however long it lasts, a quarter of an hour's allowance is saved up
    tiers = [answer_of(await scene.infer(value)).tier for value in (SURE, 0.96, 0.97)]
    assert tiers == [Tier.CLOUD, Tier.EDGE, Tier.EDGE]
    assert answer_of(await scene.infer(SURE)).tier is Tier.CACHE  # what the full model said is known, and free
    assert answer_of(await scene.infer(SURE)).certified


@pytest.mark.parametrize(
    ("before", "value"),
    [
        ({"min_threshold": 0.97}, 0.9),
        ({"chosen": policy.make_policy("value", least_value=0.01)}, 0.97),
        ({"chosen": policy.make_policy("cloud_only")}, SURE),
    ],
)
async def test_earlier_escalations_need_no_quota(make_scene: MakeScene, before: dict[str, Any], value: float) -> None:
    scene = make_scene(msgspec.structs.replace(CAREFUL, escalations_per_hour=0.0), **before)
    assert answer_of(await scene.infer(value)).tier is Tier.CLOUD
    assert feed(scene, *WORSE)
    assert scene.monitored.record.state.tightened == 0.96
    assert answer_of(await scene.infer(value + 0.001)).tier is Tier.CLOUD


async def test_on_alarm_escalate_keeps_nothing(make_scene: MakeScene) -> None:
    scene = make_scene(msgspec.structs.replace(CAREFUL, on_alarm="escalate"))
    assert feed(scene, *WORSE)
    assert scene.monitored.record.state.escalates_all


async def test_a_second_alarm_tightens_further_and_never_loosens(scene: Scene) -> None:
    feed(scene, *WORSE)
    monitored = scene.monitored
    first, cause = monitored.threshold, monitored.record.state.cause
    below = Sample(monitored.key, "m", "3", 0.0, 0.9, 1, 1.0, kept=True)
    for _ in range(30):
        audited(scene, 0.96, 0)
        for _ in range(30):
            scene.certificates.audited(monitored, below, threshold=0.8)  # drawn before the alarm
    assert monitored.threshold > first == 0.96
    assert monitored.record.state.cause == cause


PROMISED = {"missed a": 0.05, "invented b": 0.1}


def feed_events(scene: Scene, *results: tuple[float, dict[str, float]]) -> None:
    """Results of audits, as (score, losses of the events that can occur)."""
    monitored = scene.monitored
    for score, events in results:
        if monitored.record.state.is_void:
            return
        sample = monitored.sample(0.0, score, Comparison(max(events.values(), default=0.0), events), 1.0, kept=True)
        scene.certificates.audited(monitored, sample, threshold=monitored.threshold)


async def test_only_audits_in_which_an_event_can_occur_test_its_promise(make_scene: MakeScene) -> None:
    scene = make_scene(events=PROMISED)
    assert answer_of(await scene.infer(SURE)).certified
    feed_events(scene, *[(SURE, {})] * 500, (SURE, {"missed a": 1.0, "missed b": 1.0}), (SURE, {"invented b": 0.0}))
    described = certificate_reports.describe(scene.certificates, scene.held)
    assert described is not None and not described["alarm"]
    found = {name: (each["epsilon"], each["counted"], each["lost"]) for name, each in described["events"].items()}
    assert found == {"missed a": (0.05, 1, 1), "invented b": (0.1, 1, 0)}
    assert described["e_value"] == described["events"]["missed a"]["e_value"] > 1
    assert scene.certificates.level(scene.monitored) == scene.monitored.certificate.delta / 2


async def test_a_broken_event_alarms_by_name_however_rare_it_is(make_scene: MakeScene) -> None:
    scene = make_scene(events=PROMISED)
    found = 0
    while not scene.monitored.record.state.is_void:
        feed_events(scene, *[(SURE, {})] * 999, (SURE, {"missed a": 1.0}))
        found += 1
    assert found < 10
    record = scene.monitored.record
    cause = f"in {found} of {found} audits on this device in which it can occur"
    assert record.state.cause == f"missed a: {cause}"
    assert not answer_of(await scene.infer(SURE)).certified
    again = await restarted(scene, make_scene, events=PROMISED)
    assert again.monitored.record.state.cause == record.state.cause
    fresh = await restarted(again, make_scene, events=PROMISED | {"missed a": 0.06})
    assert not fresh.monitored.record.state.is_void


async def test_an_event_tightens_by_the_audits_in_which_it_can_occur(make_scene: MakeScene) -> None:
    scene = make_scene(events=PROMISED)
    low = [(0.9, {"missed a": 0.0})] * 4 + [(0.82, {"missed a": 1.0}), (0.82, {}), (0.95, {"invented b": 0.0})]
    feed_events(scene, *low * 100)
    assert scene.monitored.record.state.cause.startswith("missed a: ")
    digest = scene.monitored.certificate.edge_digest
    assert scene.certificates.alarm_of(scene.held) == ContractAlarm(digest, "missed a")
    assert scene.monitored.threshold == 0.9
    assert all(each.test == audit.begin(PROMISED[name]) for name, each in scene.monitored.record.events.items())
    rare = make_scene(events=PROMISED, certified=0.81)
    feed_events(rare, *[(0.95, {"missed a": 0.0}), (0.95, {"invented b": 1.0})] * 60)
    assert rare.monitored.record.state.cause.startswith("invented b: ")
    assert rare.monitored.threshold == math.inf  # its own audits support no score


async def test_the_gateways_alarm_names_the_event(make_scene: MakeScene) -> None:
    scene = make_scene(events=PROMISED)
    feed_events(scene, *[(0.9, {"missed a": 0.0})] * 60, *[(0.82, {"invented b": 1.0})] * 2)
    notice = ContractNotice(True, escalations_per_hour=None, event="missed a")
    scene.certificates.apply_notice(scene.held, notice)
    assert scene.monitored.record.state.cause.startswith("missed a: the audits of all devices")
    assert scene.monitored.threshold == 0.9
    assert scene.certificates.alarm_of(scene.held) is None  # it is not reported back


async def test_the_gateways_alarm_is_as_good_as_ones_own(scene: Scene) -> None:
    assert answer_of(await scene.infer(SURE)).certified
    scene.cloud.notice = ContractNotice(alarm=False, escalations_per_hour=7.0)
    await scene.infer(UNSURE)
    assert answer_of(await scene.infer(SURE)).certified
    scene.cloud.notice = ContractNotice(alarm=True, escalations_per_hour=None)
    await scene.infer(0.61)
    monitored = scene.monitored
    state = monitored.record.state
    assert state.is_void and state.escalates_all  # no audits of this device show a safe threshold
    assert scene.certificates.quota_per_hour(monitored) == CAREFUL.escalations_per_hour  # the gateway's was taken back
    assert not answer_of(await scene.infer(SURE)).certified
    elapse(scene, 60)
    await scene.infer(0.62)
    assert monitored.record.state == state


async def test_devices_of_a_fleet_alarm_later_by_themselves(make_scene: MakeScene) -> None:
    alone = feed(make_scene(), *[(SURE, 0)] * 50)
    scene = make_scene(msgspec.structs.replace(CAREFUL, fleet_devices=1000))
    scene.monitored.record.events[""].test = audit.begin(0.05)
    assert feed(scene, *[(SURE, 0)] * 50) > alone > 0


async def test_the_number_of_auditing_devices_never_falls(make_scene: MakeScene) -> None:
    scene = make_scene(msgspec.structs.replace(CAREFUL, fleet_devices=5))
    delta = scene.monitored.certificate.delta
    assert scene.certificates.level(scene.monitored) == delta / 5
    for devices, tested in ((3, 5), (40, 40), (7, 40), (1, 40)):
        scene.certificates.apply_notice(scene.held, ContractNotice(False, None, devices=devices))
        assert scene.certificates.level(scene.monitored) == delta / tested
    again = await restarted(scene, make_scene)  # with a setting of 1
    assert again.certificates.level(again.monitored) == delta / 40
    fresh = await restarted(again, make_scene, certified=0.82)
    assert fresh.certificates.level(fresh.monitored) == delta  # another promise, of which nothing was told yet


async def test_weak_evidence_stays_weak_when_the_fleet_shrinks(make_scene: MakeScene) -> None:
    scene = make_scene()
    enough = feed(scene, *[(SURE, 0)] * 50)
    again = await restarted(scene, make_scene, certified=0.82)
    again.certificates.apply_notice(again.held, ContractNotice(False, None, devices=1000))
    assert feed(again, *[(SURE, 0)] * enough) == 0
    again.certificates.apply_notice(again.held, ContractNotice(False, None, devices=1))
    assert feed(again, *[(SURE, 1)] * 20) == 0


async def test_a_quota_that_the_gateway_takes_back_is_this_devices_own_again(make_scene: MakeScene) -> None:
    scene = make_scene()
    certificates = scene.certificates
    certificates.apply_notice(scene.held, ContractNotice(alarm=False, escalations_per_hour=7.0))
    certificates.apply_notice(scene.held, None)  # an older gateway, with nothing to say
    assert certificates.quota_per_hour(scene.monitored) == 7.0
    again = await restarted(scene, make_scene)
    again.certificates.apply_notice(again.held, ContractNotice(alarm=False, escalations_per_hour=None))
    assert again.certificates.quota_per_hour(again.monitored) == CAREFUL.escalations_per_hour


async def test_the_devices_own_alarm_is_sent_with_each_request(make_scene: MakeScene) -> None:
    scene = make_scene()
    await scene.infer(UNSURE)
    feed(scene, *WORSE)
    certificate = scene.monitored.certificate
    await scene.infer(0.61)
    await scene.infer(0.62, privacy=Privacy.LOCAL_ONLY)
    assert [sent.alarm for sent in scene.cloud.requests] == [None, ContractAlarm(certificate.edge_digest)]
    again = await restarted(scene, make_scene)
    await again.infer(0.61)
    assert [sent.alarm for sent in again.cloud.requests] == [ContractAlarm(certificate.edge_digest)]
    fresh = await restarted(again, make_scene, certified=0.82)
    await fresh.infer(0.61)
    assert [sent.alarm for sent in fresh.cloud.requests] == [None]


async def test_an_alarm_and_the_evidence_survive_a_restart(make_scene: MakeScene) -> None:
    scene = make_scene()
    feed(scene, (0.85, 0), (0.97, 1))
    evidence = scene.monitored.record.events[""].test
    again = await restarted(scene, make_scene)
    assert again.monitored.record.events[""].test == evidence
    feed(again, *WORSE)
    once_more = await restarted(again, make_scene)
    assert once_more.monitored.record.state == again.monitored.record.state
    assert once_more.monitored.record.state.is_void
    edge_answer = answer_of(await once_more.infer(0.97))
    assert (edge_answer.reason, edge_answer.certified) == (Reason.CONFIDENT, False)


async def test_audits_in_progress_at_a_restart_are_lost(make_scene: MakeScene) -> None:
    scene = make_scene()
    scene.monitored.record.drawn = 3
    feed(scene, (SURE, 1))
    again = await restarted(scene, make_scene)
    record = again.monitored.record
    assert (record.drawn, record.agreed, record.unanswered) == (3, 1, 2)


async def test_another_certificate_starts_a_new_test(make_scene: MakeScene) -> None:
    scene = make_scene()
    feed(scene, *[(SURE, 0)] * 20)
    again = await restarted(scene, make_scene, certified=0.82)
    assert not again.monitored.record.state.is_void
    assert answer_of(await again.infer(SURE)).certified
    back = await restarted(again, make_scene)
    assert back.monitored.record.state.is_void  # a folder that comes back brings its alarm with it


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"format":2,"records":{}}', b'{"format":1,"records":{"k":{}}}', b"\xff"]
)
async def test_an_unreadable_record_certifies_nothing(make_scene: MakeScene, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "certificates.json"
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match=str(path)):
        records.read(path)
    scene = make_scene()
    assert "not certified until a newly certified bundle comes" in scene.certificates.problem
    assert path.with_name("certificates.json.damaged").read_bytes() == content
    answer = answer_of(await scene.infer(SURE))
    assert (answer.certified, answer.reason) == (False, Reason.CONFIDENT)  # kept as before, promised no more
    again = await restarted(scene, make_scene)
    assert not answer_of(await again.infer(SURE)).certified
    assert again.certificates.problem == ""
    assert again.monitored.threshold == 0.8
    again.certificates.apply_notice(again.held, ContractNotice(alarm=True, escalations_per_hour=None))
    assert again.monitored.record.state.escalates_all  # what audits show still tightens
    fresh = await restarted(again, make_scene, certified=0.82)
    assert answer_of(await fresh.infer(SURE)).certified


async def test_a_certificate_after_a_loss_of_records_is_valid(make_scene: MakeScene, tmp_path: Path) -> None:
    (tmp_path / "certificates.json").write_bytes(b"{")
    scene, newer = make_scene(), Scene(certified=0.82).held
    scene.certificates.watch(newer)
    assert (scene.certificates.of(scene.held).name, scene.certificates.of(newer).name) == ("unknown", "valid")


@pytest.mark.parametrize("lose", [lambda path: path.write_bytes(b"{"), Path.mkdir], ids=["damaged", "unreadable"])
async def test_a_bundle_from_before_a_loss_proves_nothing(
    lose: Callable[[Path], object], make_scene: MakeScene, tmp_path: Path
) -> None:
    def bundle(certified: float) -> DeviceModel:
        return stored_bundle(tmp_path / f"{certified}", certified)

    path = tmp_path / "certificates.json"
    absent, never_loaded = bundle(0.82), bundle(0.84)
    lose(path)
    scene = make_scene()
    set_aside_s = path.with_name("certificates.json.damaged").stat().st_ctime
    while (newer := bundle(0.86)).bundle.path.joinpath(MANIFEST_NAME).stat().st_ctime <= set_aside_s:
        pass  # until the clock of the disk has moved on
    for model in (absent, newer):
        scene.certificates.watch(model)
    assert [scene.certificates.of(model).name for model in (absent, newer)] == ["unknown", "valid"]
    again = await restarted(scene, make_scene)
    for model in (absent, newer, never_loaded):
        again.certificates.watch(model)
    assert [again.certificates.of(model).name for model in (absent, newer, never_loaded)] == [
        "unknown",
        "valid",
        "unknown",
    ]


async def test_the_loss_of_a_record_is_logged_once(scene: Scene, tmp_path: Path) -> None:
    model, path = stored_bundle(tmp_path / "bundle", 0.82), tmp_path / "lost.json"
    path.write_bytes(b"{")
    with captured_lines() as lines:
        CertificateStates(path, [model], scene.samples, CAREFUL, scene.clock)
    assert [line["event"] for line in lines].count("certificate is void") == 1


async def test_a_start_without_certificates_forgets_no_lost_record(make_scene: MakeScene, tmp_path: Path) -> None:
    path = tmp_path / "certificates.json"
    path.write_bytes(b"{")
    scene = make_scene(certified=None)
    async with saving(scene):
        for _ in range(20):
            await asyncio.sleep(0.005)
    await scene.certificates.close()
    assert not path.exists()
    assert (again := make_scene()).certificates.of(again.held).name == "unknown"


async def test_a_process_that_dies_unsaved_forgets_no_lost_record(make_scene: MakeScene, tmp_path: Path) -> None:
    (tmp_path / "certificates.json").write_bytes(b"{")
    for _ in range(2):  # none of them comes to write anything
        scene = make_scene()
        assert scene.certificates.problem
        assert not answer_of(await scene.infer(SURE)).certified
    assert not (tmp_path / "certificates.json").exists()
    async with saving(scene):
        await until((tmp_path / "certificates.json").exists)
    again = make_scene()
    assert (again.certificates.problem, again.monitored.record.state.is_void) == ("", True)


@pytest.mark.parametrize(("lacks", "problem"), [("room", "cannot be written"), ("threads", "can't start new thread")])
async def test_a_refused_write_is_retried_without_another_audit(
    make_scene: MakeScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str, problem: str
) -> None:
    async def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    scene, path = make_scene(), tmp_path / "certificates.json"
    clock = scene.clock
    async with saving(scene):
        with monkeypatch.context() as patched:
            if lacks == "threads":
                patched.setattr(asyncio, "to_thread", refuse)
            else:
                path.mkdir()  # in its place
            feed(scene, *[(SURE, 0)] * 20)
            await until(lambda: clock.sleepers)
            assert problem in scene.certificates.problem
        if path.exists():
            path.rmdir()
        await clock.advance(30)
        await until(path.exists)
        (found,) = records.read(path).values()
        assert found.state.is_void
    await scene.certificates.close()
    assert scene.certificates.problem == ""


async def test_scores_are_compared_with_the_certificates_and_survive_a_restart(make_scene: MakeScene) -> None:
    histogram = Histogram((0.7, 0.9), (0.3, 0.3, 0.4))
    scene = make_scene(histogram=histogram)
    for number in range(300):
        await scene.infer((0.6, 0.85, 0.95, 0.96)[number % 4] + number / 1e5)
    monitored = scene.monitored
    assert (monitored.stability_index() or 0) < 0.1
    for number in range(600):
        await scene.infer(0.95 + number / 1e5)
    index = monitored.stability_index()
    assert index is not None and index > 0.25
    again = await restarted(scene, make_scene, histogram=histogram)
    assert again.monitored.stability_index() == pytest.approx(index)


async def test_records_are_saved_or_logged_once(scene: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with saving(scene):
        feed(scene, (SURE, 1))
        await until((tmp_path / "certificates.json").exists)
    (found,) = records.read(tmp_path / "certificates.json").values()
    assert found.agreed == 1
    (tmp_path / "certificates.json").unlink()
    (tmp_path / "certificates.json").mkdir()  # in its place
    for _ in range(2):
        await scene.certificates.close()
    assert sum("audit records not stored" in line for line in caplog.messages) == 1


async def test_an_alarm_stays_with_the_certificate_whichever_version_carries_it(make_scene: MakeScene) -> None:
    certificate = make_scene().monitored.certificate
    old = records.new_record({}, "m", "3", certificate)
    assert not old.state.is_void
    old.state, old.drawn = records.CertificateState("broken_on_device", "broken", tightened=0.9), 7
    new = records.new_record({"3": old}, "m", "4", certificate)
    assert (new.version, new.state, new.drawn) == ("4", old.state, 0)
    assert new.state.is_void
    renewed = msgspec.structs.replace(certificate, n=certificate.n + 1)
    assert not records.new_record({"3": old}, "m", "4", renewed).state.is_void
    assert not records.new_record({"3": old}, "other", "4", certificate).state.is_void


@pytest.mark.parametrize("events", [{}, {"": records.EventRecord(replace(audit.begin(0.05), peak=0.5))}])
def test_a_record_without_a_valid_test_is_refused(tmp_path: Path, events: dict[str, records.EventRecord]) -> None:
    path = tmp_path / "certificates.json"
    stored = {"k": records.CertificateRecord(model="m", version="1", events=events)}
    records.RecordFile(path).write(records.encode(stored, ()))
    with pytest.raises(IntegrityError, match="cannot be read"):
        records.read(path)


def test_only_the_latest_records_are_kept() -> None:
    many = {f"{number}": records.CertificateRecord(model="m", version="1", events=TESTED) for number in range(100)}
    stored = msgspec.json.decode(records.encode(many, ()).splitlines()[0])["records"]
    assert list(stored) == [f"{number}" for number in range(36, 100)]


async def test_an_alarm_of_a_loaded_bundle_outlives_many_others(make_scene: MakeScene) -> None:
    scene = make_scene()
    assert feed(scene, *[(SURE, 0)] * 20)
    edge, certificate = scene.held.edge, scene.monitored.certificate
    assert edge is not None
    for number in range(70):
        other = msgspec.structs.replace(certificate, edge_digest=f"{number:064x}")
        model = replace(scene.held, edge=replace(edge, certificate=other))
        scene.certificates.watch(model)
        scene.certificates.unwatch(model)
    again = await restarted(scene, make_scene)
    assert again.monitored.record.state.name == "broken_on_device"


def test_another_promise_makes_another_key(make_scene: MakeScene) -> None:
    certificate = make_scene().monitored.certificate
    changes = [{name: 0.81} for name in ("threshold", "audit_epsilon")]
    changes += [{name: "0" * 64} for name in ("edge_digest", "full_digest", "score_digest")]
    others = [msgspec.structs.replace(certificate, **change) for change in changes]
    assert len({records.record_key("m", "3", each) for each in (certificate, *others)}) == 6


def test_damage_to_the_records_is_found_wherever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "audits" / "certificates.json"
    stored = {"k": records.CertificateRecord(model="m", version="1", events=TESTED, drawn=13, agreed=13)}
    records.RecordFile(path).write(records.encode(stored, ()))
    whole = path.read_bytes()
    for bit in range(0, 8 * (len(whole) - 1), 3):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(IntegrityError):
            records.read(path)
    path.write_bytes(whole)
    assert records.read(path) == stored
    path.rename(path.with_name(f"certificates.json{DAMAGED}"))
    with pytest.raises(IntegrityError, match="set aside"):
        records.read(path)


def test_recent_counts_forget_slowly_and_fill_the_bins() -> None:
    recent = ScoreHistogram((0.3, 0.6), memory=100)
    for score in [0.1] * 1000 + [0.3] * 100 + [0.9, math.nan]:
        recent.add(score)
    low, middle, high = recent.counts
    assert sum(recent.counts) == pytest.approx(100, abs=1)
    assert middle == pytest.approx(63, abs=2)  # 1 - 1 / e of the memory
    assert high == pytest.approx(0.98, abs=0.02)
    assert low == pytest.approx(36, abs=2)
    assert drift.bins_of([0.1, 0.3, 0.9, math.nan], (0.3, 0.6)).tolist() == [0, 1, 2, 0]


def test_restored_counts_continue_and_never_overflow() -> None:
    recent = ScoreHistogram((0.5,), memory=1, counts=(3.0, 1.0))
    assert recent.counts == [3.0, 1.0]
    for _ in range(5000):
        recent.add(0.7)
    assert recent.counts == [pytest.approx(0.0), pytest.approx(1.0, abs=0.01)]
    assert ScoreHistogram((0.5,), memory=1, counts=(3.0,)).counts == [0.0, 0.0]  # of other bins
