"""Audits: which edge answers are drawn, what is sent, and what is counted."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.edge import SURE, UNSURE, Scene, answer_of, request
from support.waiting import until

from firstline_core.clock import SimulatedClock
from firstline_core.errors import LinkDownError
from firstline_core.routing import audit, policy
from firstline_core.routing.certificate import GroupCertificate, Histogram
from firstline_core.tasks.classification import Classification
from firstline_core.types import PROBABILITIES, ContractNotice, Privacy, Reason, Route, Tensor, Tier, Wait
from firstline_edge.audits.audit_sender import Audit
from firstline_edge.audits.auditor import AuditRate
from firstline_edge.audits.records import CertificateState
from firstline_edge.audits.samples import read
from firstline_edge.requests.context import Row, content_digests, result_key
from firstline_edge.settings.settings import AuditSection

ALL = AuditSection(per_hour=1e9, bytes_per_hour=1e12, max_share=1.0, spacing_s=0.0)
BY_CLASS = {"yes": GroupCertificate(0.8, 300, 0.8, 0.04), "no": GroupCertificate(0.9, 300, 0.8, 0.04)}
BINS = Histogram((0.7, 0.9), (0.2, 0.3, 0.5))

MakeScene = Callable[..., Scene]


@pytest.fixture
async def make_scene(tmp_path: Path) -> AsyncIterator[MakeScene]:
    scenes: list[tuple[Scene, asyncio.Task[None]]] = []

    def make(audit: AuditSection = ALL, **arguments: Any) -> Scene:
        clock = SimulatedClock()
        scene = Scene(clock=clock, audit=audit, folder=tmp_path, **{"certified": 0.8, "histogram": BINS} | arguments)
        clock._now_s += 600  # the budget fills
        assert scene.auditor is not None
        scenes.append((scene, asyncio.create_task(scene.sender.run())))
        return scene

    yield make
    for scene, task in scenes:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        scene.samples.close()
        await scene.close()


@pytest.fixture
async def scene(make_scene: MakeScene) -> Scene:
    return make_scene()


async def ended(scene: Scene, count: int) -> list[str]:
    await until(lambda: len(scene.ended_audits) >= count)
    return [each.outcome for each in scene.ended_audits]


async def test_an_accepted_answer_is_audited_under_its_own_id(scene: Scene) -> None:
    response = await scene.infer(SURE)
    assert answer_of(response).certified
    assert scene.cloud.requests == []  # not before the answer
    assert await ended(scene, 1) == ["disagreed"]
    (sent,) = scene.cloud.requests
    certificate = scene.held.edge and scene.held.edge.certificate
    assert sent.request_id != answer_of(response).request_id
    assert sent.audit.propensity == 1.0
    assert sent.edge_outputs.keys() == {PROBABILITIES}
    assert sent.edge_outputs[PROBABILITIES].tobytes() == response.output(PROBABILITIES).tobytes()
    assert (sent.audit.epsilon, sent.audit.threshold) == (0.05, 0.8)
    assert sent.audit.edge_digest == certificate.edge_digest
    assert sent.full_model_digest == scene.cloud.digest


async def test_cache_hits_are_audited_and_travel_each_time(scene: Scene) -> None:
    scene.cloud.agrees = lambda _: True
    for number in range(3):
        assert answer_of(await scene.infer(SURE)).tier is (Tier.CACHE if number else Tier.EDGE)
    assert await ended(scene, 3) == ["agreed"] * 3
    assert len(scene.cloud.requests) == 3


async def test_only_accepted_rows_of_a_batch_are_audited_one_by_one(scene: Scene) -> None:
    await scene.infer(SURE, UNSURE, 0.99)
    await ended(scene, 2)
    audited = [request.audit is not None for request in scene.cloud.requests]
    assert sorted(zip(scene.sent_rows, audited, strict=True)) == [([UNSURE], False), ([SURE], True), ([0.99], True)]
    assert [each.record["row"] for each in scene.ended_audits] == [0, 2]


PRIVATE = {"privacy": Privacy.LOCAL_ONLY}


@pytest.mark.parametrize(
    "wish",
    [{"route": Route.EDGE}, PRIVATE, PRIVATE | {"route": Route.EDGE}, PRIVATE | {"wait": Wait.FIRST}],
)
async def test_private_answers_are_never_audited_or_counted(scene: Scene, wish: dict[str, Any]) -> None:
    for _ in range(5):
        await scene.infer(SURE, **wish)
    monitored = scene.monitored
    assert (monitored.record.drawn, scene.cloud.requests, sum(monitored.scores.counts)) == (0, [], 0)
    assert list(read(scene.samples_path)) == []


@pytest.mark.parametrize(
    "arguments", [{"certified": None}, {"chosen": policy.make_policy("threshold", threshold=0.7)}, {"linked": False}]
)
async def test_without_contract_or_gateway_nothing_is_audited(make_scene: MakeScene, arguments: dict[str, Any]) -> None:
    scene = make_scene(**arguments)
    for _ in range(5):
        await scene.infer(SURE)
    monitored = scene.certificates.find(scene.held)
    assert monitored is None or monitored.record.drawn == 0
    assert [request for request in scene.cloud.requests if request.audit] == scene.ended_audits == []


@pytest.mark.parametrize(
    "careful", [{"min_threshold": 0.97}, {"chosen": policy.make_policy("value", least_value=0.04)}]
)
async def test_a_stricter_device_audits_all_covered_answers(make_scene: MakeScene, careful: dict[str, Any]) -> None:
    scene = make_scene(**careful)
    values = (0.85, 0.99, UNSURE, 0.85)  # the full model is asked about the first, and gave the last before
    tiers = [answer_of(await scene.infer(value)).tier for value in values]
    assert tiers == [Tier.CLOUD, Tier.EDGE, Tier.CLOUD, Tier.CACHE]
    assert await ended(scene, 3) == ["disagreed"] * 3
    notes = [request.audit for request in scene.cloud.requests if request.audit is not None]
    assert [note.threshold for note in notes] == [0.8] * 3
    outputs = [request.edge_outputs[PROBABILITIES] for request in scene.cloud.requests if request.audit is not None]
    assert [array.argmax() for array in outputs] == [0] * 3
    sampled = [(round(sample.score, 3), sample.kept) for sample in read(scene.samples_path)]
    assert sorted(sampled) == [(UNSURE, False), (0.85, True), (0.85, True), (0.99, True)]  # each drawn once


async def test_an_alarm_that_an_audit_brings_back_begins_a_test_without_it(scene: Scene) -> None:
    monitored = scene.monitored
    scene.cloud.agrees = lambda value: value > 0.9
    for _ in range(60):  # enough to say from where on answers are good
        await scene.infer(SURE)
        await ended(scene, len(scene.ended_audits) + 1)
    await scene.infer(0.85)
    await ended(scene, 61)
    scene.cloud.notice = ContractNotice(alarm=True, escalations_per_hour=None)
    scene.cloud.agrees = lambda _: False
    scene.cloud.gate = asyncio.Event()
    await scene.infer(SURE)
    await scene.infer(SURE)  # under way at the alarm
    scene.cloud.gate.set()
    assert (await ended(scene, 63))[-2:] == ["disagreed"] * 2
    assert monitored.record.state.is_void and monitored.record.state.tightened == pytest.approx(0.85)
    assert monitored.record.events[""].test == audit.begin(0.05)


async def test_an_audit_is_tested_at_the_level_of_its_own_notice(make_scene: MakeScene) -> None:
    alone, fleet = make_scene(), make_scene()
    while not alone.monitored.record.state.is_void:
        await alone.infer(SURE)
        await ended(alone, len(alone.ended_audits) + 1)
    for number in range(1, len(alone.ended_audits) + 1):
        if number == len(alone.ended_audits):
            fleet.cloud.notice = ContractNotice(alarm=False, devices=1000)
        await fleet.infer(SURE)
        await ended(fleet, number)
    assert fleet.monitored.record.events[""].test.audits == len(alone.ended_audits)
    assert not fleet.monitored.record.state.is_void


async def test_a_notice_about_an_uncertified_bundle_changes_nothing(make_scene: MakeScene) -> None:
    scene = make_scene(certified=None)
    scene.cloud.notice = ContractNotice(alarm=True, devices=2)
    assert answer_of(await scene.infer(UNSURE)).tier is Tier.CLOUD


async def test_an_audit_caches_the_full_models_output(scene: Scene) -> None:
    response = await scene.infer(SURE)
    await ended(scene, 1)
    (audited,) = scene.cloud.requests
    (content,) = content_digests(audited.arrays, audited.arrays)
    cached = scene.cache.get(result_key(content, scene.cloud.digest))
    assert cached.outputs["probabilities"][0, 1] == pytest.approx(0.99)
    assert (await scene.infer(SURE)).output("probabilities").tolist() == response.output("probabilities").tolist()


async def test_lost_audits_are_counted_and_not_tried_again(scene: Scene) -> None:
    scene.cloud.error = LinkDownError("gone")
    await scene.infer(SURE)
    assert await ended(scene, 1) == ["lost"]
    scene.cloud.available = False
    await scene.infer(SURE)
    assert await ended(scene, 2) == ["lost", "lost"]
    assert len(scene.cloud.requests) == 1
    monitored = scene.monitored
    assert (monitored.record.drawn, monitored.record.unanswered, monitored.record.events[""].test.audits) == (2, 2, 0)
    assert list(read(scene.samples_path)) == []


async def test_another_models_answer_is_no_verdict(scene: Scene) -> None:
    scene.cloud.digest = ""
    await scene.infer(SURE)
    assert await ended(scene, 1) == ["lost"]


async def test_escalations_go_first(scene: Scene) -> None:
    scene.cloud.gate = asyncio.Event()
    live = [asyncio.create_task(scene.infer(UNSURE + number / 1000)) for number in range(4)]
    await until(lambda: len(scene.cloud.requests) == 4)
    await scene.infer(SURE)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(scene.cloud.requests) == 4
    scene.cloud.gate.set()
    await asyncio.gather(*live)
    await ended(scene, 1)
    assert len(scene.cloud.requests) == 5


async def test_an_answer_that_was_drawn_is_not_given_back_later_than_others(scene: Scene) -> None:
    scene.cloud.gate = asyncio.Event()  # the audit hangs
    for _ in range(100):
        assert answer_of(await scene.infer(SURE)).reason is Reason.CONFIDENT
    monitored = scene.monitored
    assert monitored.record.drawn == 64  # the queue is full, and none is drawn any more
    assert scene.ended_audits == []


async def test_waiting_audits_are_bounded_by_their_bytes(scene: Scene) -> None:
    scene.cloud.gate = asyncio.Event()
    large = Tensor("x", np.zeros((1, 3 << 20), np.float32))  # 12 MiB, where 16 MiB may wait
    drawn = Audit(
        model=scene.held,
        monitored=None,
        request_id="r",
        row=Row(0, b"", b""),
        edge={PROBABILITIES: np.array([[0.9, 0.1]], np.float32)},
        sent=msgspec.structs.replace(request(SURE), inputs=(large,)),
        propensity=1.0,
        threshold=0.8,
        covered=True,
    )
    room = list[bool]()
    for _ in range(3):
        scene.sender.add(drawn)
        await until(lambda: bool(scene.cloud.requests))
        room.append(scene.sender.has_room())
    assert room == [True, True, False], "the first is under way"
    scene.cloud.gate.set()
    await ended(scene, 3)
    assert scene.sender.has_room()


async def test_an_answer_of_the_edge_alone_is_no_sample(scene: Scene) -> None:
    scene.cloud.error = LinkDownError("gone")
    assert answer_of(await scene.infer(UNSURE)).tier is Tier.EDGE
    assert scene.monitored.record.drawn == 0
    assert list(read(scene.samples_path)) == []


async def test_audits_after_an_alarm_continue_without_a_note(scene: Scene) -> None:
    monitored = scene.monitored
    monitored.record.state = CertificateState("broken_on_device", tightened=0.9)
    scene.cloud.agrees = lambda _: True
    await scene.infer(SURE)
    assert await ended(scene, 1) == ["agreed"]
    assert [request.audit for request in scene.cloud.requests] == [None]
    scene.budgets.ample = False
    await scene.infer(SURE)
    assert (monitored.record.drawn, monitored.record.events[""].test.audits) == (1, 1)


async def test_escalated_answers_are_sampled_without_a_request(scene: Scene) -> None:
    scene.cloud.agrees = lambda value: value == UNSURE
    await scene.infer(UNSURE)
    await scene.infer(UNSURE)  # what the full model said is known by now
    await scene.infer(SURE)
    await ended(scene, 1)
    found = [
        (round(sample.score, 3), sample.agree, sample.propensity, sample.kept) for sample in read(scene.samples_path)
    ]
    assert found == [(UNSURE, 1, 1.0, False), (UNSURE, 1, 1.0, False), (SURE, 0, 1.0, True)]


async def test_a_failing_loss_counts_as_1(make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise KeyError("boxes")

    monkeypatch.setattr(Classification, "loss", fails)
    monkeypatch.setattr(Classification, "occurrences", fails)
    scene = make_scene()
    for tier in (Tier.CLOUD, Tier.CACHE):
        answer = answer_of(await scene.infer(UNSURE))
        assert (answer.tier, answer.reason) == (tier, Reason.UNCERTAIN)
    await scene.infer(SURE)
    assert await ended(scene, 1) == ["disagreed"]
    assert [sample.agree for sample in read(scene.samples_path)] == [0, 0, 0]


async def test_denied_and_granted_escalations_are_sampled_alike(make_scene: MakeScene) -> None:
    everything = msgspec.structs.replace(ALL, escalations_per_hour=1.0)
    scene = make_scene(everything)
    monitored = scene.monitored
    monitored.record.state = CertificateState("broken_on_device", tightened=0.97)
    monitored.quota = 1.0
    scene.cloud.agrees = lambda _: True
    reasons = [answer_of(await scene.infer(value)).reason for value in (0.9, 0.91, 0.99)]
    assert reasons == [Reason.UNCERTAIN, Reason.BUDGET, Reason.CONFIDENT]
    await ended(scene, 2)
    sampled = [(round(sample.score, 3), sample.kept, sample.propensity) for sample in read(scene.samples_path)]
    assert sampled == [(0.9, False, 1.0), (0.91, False, 1.0), (0.99, True, 1.0)]
    assert [request.audit for request in scene.cloud.requests] == [None] * 3
    assert (monitored.record.agreed, monitored.record.events[""].test.audits) == (2, 1)
    scene.budgets.ample = False
    await scene.infer(0.92)
    assert monitored.record.drawn == 2


async def test_answers_are_audited_from_the_threshold_of_their_class(make_scene: MakeScene) -> None:
    scene = make_scene(groups=BY_CLASS)
    for value in (0.85, 0.15, 0.05):  # yes, and no below and above its threshold
        await scene.infer(value)
    await ended(scene, 2)
    assert scene.monitored.record.drawn == 2
    audited = [rows for rows, sent in zip(scene.sent_rows, scene.cloud.requests, strict=True) if sent.audit is not None]
    assert sorted(audited) == [[0.05], [0.85]]


async def test_escalations_below_a_class_threshold_need_no_quota(make_scene: MakeScene) -> None:
    scene = make_scene(msgspec.structs.replace(ALL, escalations_per_hour=1.0), groups=BY_CLASS)
    scene.monitored.record.state = CertificateState("broken_on_device", tightened=0.97)
    scene.monitored.quota = 0.0
    reasons = [answer_of(await scene.infer(value)).reason for value in (0.85, 0.15)]
    assert reasons == [Reason.BUDGET, Reason.UNCERTAIN]


async def test_the_auditor_keeps_the_budget_of_audits(make_scene: MakeScene) -> None:
    scene = make_scene(AuditSection(per_hour=20, bytes_per_hour=1e9, max_share=1.0, spacing_s=0.0))
    scene.cloud.agrees = lambda _: True
    for _ in range(120):  # within an hour
        scene.clock._now_s += 30
        await scene.infer(SURE)
        await asyncio.sleep(0)
    assert 10 < scene.monitored.record.drawn <= 21


def test_a_budget_of_audits_holds_over_a_day_of_requests() -> None:
    clock, drawn_at_s = SimulatedClock(), list[float]()
    rate = AuditRate(AuditSection(per_hour=20, bytes_per_hour=1e9, max_share=1.0, spacing_s=0.0), clock)
    clock._now_s += 600  # the budget fills
    for _ in range(24 * 120):
        clock._now_s += 30
        if rate.probabilities_of_next("gate", 1)[0]:
            rate.charge("gate", 1)
            drawn_at_s.append(clock.monotonic_s())
    assert len(drawn_at_s) > 0.6 * 20 * 24
    assert max(sum(at <= other < at + 3600 for other in drawn_at_s) for at in drawn_at_s) <= 21


async def test_audits_keep_their_spacing(make_scene: MakeScene) -> None:
    scene = make_scene(msgspec.structs.replace(ALL, spacing_s=10.0))
    scene.cloud.agrees = lambda _: True
    clock, drawn_at_s = scene.clock, []
    for _ in range(100):
        clock._now_s += 1
        before = len(scene.ended_audits)
        await scene.infer(SURE, SURE, SURE)
        await asyncio.sleep(0)
        drawn_at_s += [clock.monotonic_s()] * (len(scene.ended_audits) - before)
    assert len(drawn_at_s) in (9, 10)  # a pause is up to an eighth longer
    assert min(after - before for before, after in itertools.pairwise(drawn_at_s)) >= 10
    scene.auditor.adopt(ALL, ("disagreement",))
    clock._now_s += 20
    await scene.infer(SURE, SURE, SURE)
    assert len(await ended(scene, len(drawn_at_s) + 3)) == len(drawn_at_s) + 3


async def test_audits_of_each_source_keep_their_spacing(make_scene: MakeScene) -> None:
    scene = make_scene(msgspec.structs.replace(ALL, spacing_s=10.0))
    scene.cloud.agrees = lambda _: True
    clock, drawn_at_s = scene.clock, {"gate": list[float](), "yard": list[float]()}
    for _ in range(50):
        clock._now_s += 1
        for source, drawn in drawn_at_s.items():
            before = len(scene.ended_audits)
            await scene.infer(SURE, source=source)
            await asyncio.sleep(0)
            drawn.extend([clock.monotonic_s()] * (len(scene.ended_audits) - before))
    assert {len(drawn) for drawn in drawn_at_s.values()} <= {4, 5}
    for drawn in drawn_at_s.values():
        assert min(after - before for before, after in itertools.pairwise(drawn)) >= 10
    assert {request.source for request in scene.cloud.requests} == {"gate", "yard"}


BURSTS = ((30.0, 2.0), (30.0, 0.1))
"""Seconds, and answers per second: of 21 answers, 20 are from a burst."""


def rate_at(clock: SimulatedClock, **settings: Any) -> AuditRate:
    """Returns the rate of audits with a full budget."""
    rate = AuditRate(msgspec.structs.replace(ALL, **settings), clock)
    clock._now_s += 600
    return rate


def drawn_in_bursts(seed: int, cycles: int, **settings: Any) -> Iterator[tuple[int, float]]:
    """Yields the phase of each audit of one source whose bursts and quiet times alternate, and its propensity."""
    clock, rng = SimulatedClock(), random.Random(seed)
    rate = rate_at(clock, **settings)
    for _ in range(cycles):
        for phase, (lasts_s, per_s) in enumerate(BURSTS):
            for _ in range(round(lasts_s * per_s)):
                clock._now_s += 1 / per_s
                draw, propensity = rate.probabilities_of_next("gate", 1)
                if rng.random() < draw:
                    rate.charge("gate", 1)
                    yield phase, propensity


@pytest.fixture(scope="module")
def bursts() -> list[list[tuple[int, float]]]:
    return [list(drawn_in_bursts(seed, 60, spacing_s=10.0, max_share=0.1)) for seed in range(30)]


@pytest.mark.parametrize(
    ("risks", "share_of_alarms"), [((0.0, 0.953), (0.0, 0.05)), ((0.12, 0.953), (0.95, 1.0))], ids=["holds", "broken"]
)
def test_audits_of_bursts_alarm_only_if_the_promise_is_broken(
    bursts: list[list[tuple[int, float]]], risks: tuple[float, float], share_of_alarms: tuple[float, float]
) -> None:
    """The answers of bursts and of quiet times differ in risk: 4.54 % of all are wrong, or 16 %."""
    rng, alarms = random.Random(2), list[bool]()
    for drawn in bursts:
        for _ in range(10):
            state = audit.begin(0.05)
            for phase, _ in drawn:
                loss = float(rng.random() < risks[phase])
                state = audit.update(state, loss)
            alarms.append(audit.alarm(state, 0.05))
    assert share_of_alarms[0] <= sum(alarms) / len(alarms) <= share_of_alarms[1]


@pytest.mark.parametrize("per_hour", [1e9, 200.0])
def test_bursts_and_quiet_times_are_audited_in_proportion_to_their_answers(per_hour: float) -> None:
    cycles, runs, weights = 40, 60, [0.0, 0.0]
    for seed in range(runs):
        for phase, propensity in drawn_in_bursts(seed, cycles, spacing_s=10.0, max_share=0.1, per_hour=per_hour):
            weights[phase] += 1 / propensity
    answers = [cycles * runs * lasts_s * per_s for lasts_s, per_s in BURSTS]
    assert weights == pytest.approx(answers, rel=0.1)
    assert weights[1] / sum(weights) == pytest.approx(1 / 21, rel=0.1)


def test_rare_bursts_are_audited_in_proportion_to_their_answers() -> None:
    """Every three hours a minute has 120 answers, as if they were 18 % of all; the first burst is not expected."""
    audits = [0, 0]
    for seed in range(4):
        clock, rng = SimulatedClock(), random.Random(seed)
        rate = AuditRate(msgspec.structs.replace(ALL, spacing_s=60.0), clock)
        for cycle in range(60):
            for phase, (answers, every_s) in enumerate(((120, 0.5), (537, 20.0))):
                for _ in range(answers):
                    clock._now_s += every_s
                    draw, _ = rate.probabilities_of_next("gate", 1)
                    if rng.random() < draw:
                        rate.charge("gate", 1)
                        audits[phase] += cycle > 0
    assert sum(audits) > 800
    assert audits[0] / sum(audits) == pytest.approx(120 / 657, rel=0.2)


@pytest.mark.parametrize("max_share", [1.0, 0.02])
def test_a_busy_source_does_not_count_less_than_its_traffic(max_share: float) -> None:
    """Nine of ten answers are from one source. With the same pauses, both would have as many audits."""
    clock, rng = SimulatedClock(), random.Random(1)
    rate = rate_at(clock, spacing_s=10.0, max_share=max_share)
    audits, weights = {"busy": 0, "quiet": 0}, {"busy": 0.0, "quiet": 0.0}
    for number in range(80_000):
        source = "quiet" if number % 10 == 0 else "busy"
        clock._now_s += 0.1
        draw, propensity = rate.probabilities_of_next(source, 1)
        if rng.random() < draw:
            assert 0 < propensity <= draw
            rate.charge(source, 1)
            audits[source] += 1
            weights[source] += 1 / propensity
    assert audits["busy"] / sum(audits.values()) == pytest.approx(0.9, abs=0.03)
    assert weights["busy"] / sum(weights.values()) == pytest.approx(0.9, abs=0.03)
    assert sum(weights.values()) == pytest.approx(80_000, rel=0.1)


def test_burst_of_one_source_leaves_audits_to_the_others() -> None:
    clock = SimulatedClock()
    rate = rate_at(clock, spacing_s=10.0, max_share=0.05)
    for _ in range(20_000):
        clock._now_s += 5 / 20_000
        rate.probabilities_of_next("busy", 1)
    assert rate.probabilities_of_next("quiet", 1)[1] == pytest.approx(0.05 / 100)
    later = list[float]()
    for _ in range(3):
        clock._now_s += 86_400
        later.append(rate.probabilities_of_next("quiet", 1)[1])
    assert later[-1] == 0.05


@pytest.mark.parametrize("spacing_s", [0.0, 1.0])
def test_a_new_spacing_forgets_the_pauses_of_the_old_one(spacing_s: float) -> None:
    clock = SimulatedClock()
    settings = msgspec.structs.replace(ALL, spacing_s=10.0, max_share=0.1)
    rate = rate_at(clock, spacing_s=10.0, max_share=0.1)
    rate.probabilities_of_next("gate", 1)
    rate.charge("gate", 1)
    for _ in range(1000):
        assert rate.probabilities_of_next("gate", 1)[0] == 0
    rate.adopt(settings)
    assert rate.probabilities_of_next("gate", 1)[0] == 0
    rate.adopt(msgspec.structs.replace(settings, spacing_s=spacing_s))
    assert rate.probabilities_of_next("gate", 1) == (0.1, 0.1)


def test_the_remembered_sources_are_bounded() -> None:
    clock = SimulatedClock()
    rate = rate_at(clock, spacing_s=10.0)
    drawn = 0
    for number in range(2000):
        if rate.probabilities_of_next(f"lane {number}", 1)[0]:
            drawn += 1
            rate.charge(f"lane {number}", 1)
    assert drawn == 1024
    clock._now_s += 12  # silent sources are forgotten
    assert rate.probabilities_of_next("another", 1)[0] == 1


async def test_an_audit_of_events_names_them(make_scene: MakeScene) -> None:
    promised = {"missed no": 0.05, "invented yes": 0.1}
    scene = make_scene(events=promised)
    await scene.infer(SURE)
    assert await ended(scene, 1) == ["disagreed"]
    (sent,) = scene.cloud.requests
    assert (sent.audit.events, sent.audit.epsilon) == (promised, 0.1)
    (sample,) = read(scene.samples_path)
    (record,) = [each.record for each in scene.ended_audits]
    assert sample.events == record["events"]
    assert set(sample.events) <= set(promised) and any(sample.events.values())


@pytest.mark.parametrize("bundles", [("own",), ("",), ("other", "own")])
async def test_a_rollout_audits_an_uncertified_bundle(make_scene: MakeScene, bundles: tuple[str, ...]) -> None:
    scene = make_scene(certified=None)
    await scene.infer(SURE)
    assert scene.ended_audits == [] and scene.cloud.requests == []
    scene.auditor.audit_for_rollouts([scene.held.manifest.name if name == "own" else name for name in bundles])
    response = await scene.infer(SURE)
    assert await ended(scene, 1) == ["disagreed"]
    (sent,) = scene.cloud.requests
    assert sent.audit is None and sent.request_id != answer_of(response).request_id  # it tests no promise
    assert (scene.ended_audits[0].model, scene.ended_audits[0].version) == (
        scene.held.manifest.name,
        scene.held.version,
    )
    await scene.infer(UNSURE)  # escalated
    await scene.infer(UNSURE, route=Route.EDGE)
    scene.budgets.ample = False
    await scene.infer(SURE)
    scene.budgets.ample = True
    scene.auditor.audit_for_rollouts(())
    await scene.infer(SURE)
    assert len(scene.ended_audits) == 1
    assert scene.sent_rows == [[SURE], [UNSURE]]


async def test_audits_for_a_rollout_respect_privacy_and_the_budget(make_scene: MakeScene) -> None:
    scene = make_scene(certified=None)
    scene.auditor.audit_for_rollouts((scene.held.manifest.name,))
    await scene.infer(SURE, privacy=Privacy.LOCAL_ONLY)
    for off in ("per_hour", "bytes_per_hour"):
        scene.auditor.adopt(AuditSection(**{off: 0}), ())
        assert scene.auditor.rate.switched_off_by == f"audit.{off}"
        await scene.infer(SURE)
    scene.auditor.adopt(ALL, ())
    assert scene.auditor.rate.switched_off_by == ""
    scene.auditor.audit_for_rollouts(("other",))
    await scene.infer(SURE)
    await asyncio.sleep(0)
    assert scene.ended_audits == [] and scene.cloud.requests == []
