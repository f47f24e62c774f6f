"""One pool of audits, and which notes it takes."""

import random
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
from support.audits import EPSILON, EVENTS, THRESHOLD, certified_detector, certified_digits, note_of

from firstline_core.fleet.rest import AuditResult
from firstline_core.routing import audit
from firstline_core.runtime.select import RuntimeOptions
from firstline_gateway.contracts.pool import AuditPool, PoolKey, new_pool, promises_of, with_audit, with_recent
from firstline_gateway.models.folder import ModelsFolder
from firstline_gateway.models.repository import ServedModel

KEY = PoolKey("digits", 1, "0" * 64, THRESHOLD, EPSILON)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    repository = ModelsFolder(certified_digits(tmp_path_factory.mktemp("bundles"))).load(RuntimeOptions())
    (found,) = repository
    yield found
    found.loaded.close()


def after(served: ServedModel, losses: list[float], **note: object) -> AuditPool:
    pool = new_pool(KEY, 10.0)
    for position, loss in enumerate(losses):
        pool = with_audit(pool, note_of(served, **note), loss, now_s=11.0 + position, delta=0.05)
    return pool


def test_a_pool_is_the_test_of_all_audits_in_their_order(served: ServedModel) -> None:
    losses = [0.0, 1.0, 0.0, 1.0, 0.0]
    state = audit.begin(EPSILON)
    for loss in losses:
        state = audit.update(state, loss)
    pool = after(served, losses, propensity=0.5)
    assert pool.state == state
    assert (pool.disagreements, pool.risk, pool.first_s, pool.last_s) == (2, 0.4, 10.0, 15.0)


def test_the_propensity_of_a_device_does_not_weigh_its_audits(served: ServedModel) -> None:
    pool = with_audit(new_pool(KEY, 0), note_of(served, propensity=0.8), 1.0, now_s=0, delta=0.05)
    often, seldom = (with_audit(pool, note_of(served, propensity=p), 0.0, now_s=0, delta=0.05) for p in (0.8, 0.1))
    assert often == seldom and often.risk == 0.5


def test_each_audit_of_a_scene_counts_with_the_same_chance() -> None:
    """Scenes that one, two and four devices share, at different times of a minute; at most one audit of each counts."""
    rng, pool, minutes = random.Random(3), new_pool(KEY, 0), 2000
    scenes = {"gate": [("a", 0.0)], "yard": [("b", 0.0), ("c", 9.0)], "hall": [(name, 4.0) for name in "defg"]}
    counted = dict.fromkeys((device for devices in scenes.values() for device, _ in devices), 0)
    for minute in range(minutes):
        of_scene = dict.fromkeys(scenes, 0)
        for source, devices in scenes.items():
            for device, second in devices:
                pool, counts = with_recent(
                    pool, device, source, 10.0, service_s=60.0 * minute + second, draw=rng.random()
                )
                counted[device] += counts
                of_scene[source] += counts
        assert max(of_scene.values()) <= 1
    assert list(counted.values()) == pytest.approx([minutes / 4] * 7, rel=0.15)


def test_many_audits_of_one_device_leave_the_chance_of_the_others() -> None:
    pool = new_pool(KEY, 0)
    for number in range(1000):
        pool, _ = with_recent(pool, "liar", f"scene {number % 3}", 10.0, service_s=number / 100, draw=0.0)
    assert len(pool.recent) == 3
    assert with_recent(pool, "cam", "gate", 10.0, service_s=10.0, draw=0.999)[1]


def test_devices_of_a_scene_share_its_chance_to_count() -> None:
    """Once two devices have shared the scene, either counts with one half: the second if the first did not."""

    def after(pool: AuditPool, device: str, service_s: float, draw: float) -> tuple[AuditPool, bool]:
        return with_recent(pool, device, "gate", 10.0, service_s=service_s, draw=draw)

    pool, alone = after(new_pool(KEY, 0), "a", 0.0, 0.999)
    pool, second = after(pool, "b", 1.0, 0.0)
    assert (alone, second) == (True, False)
    first_counts, counts = after(pool, "a", 20.0, 0.499)
    assert counts and not after(first_counts, "b", 21.0, 0.0)[1]
    neither, counts = after(pool, "a", 20.0, 0.5)
    assert not counts and after(neither, "b", 21.0, 0.999)[1]
    assert [each.propensity for each in neither.recent] == [0.5]
    assert not after(neither, "a", 29.9, 0.0)[1]


def test_without_a_spacing_every_audit_counts() -> None:
    pool = new_pool(KEY, 0)
    assert with_recent(pool, "cam", "gate", 0.0, service_s=1.0, draw=0.999) == (pool, True)


def test_one_promise_has_all_of_delta() -> None:
    assert new_pool(KEY, 0).level(0.05) == 0.05
    assert new_pool(KEY, 0, promises=2).level(0.05) == 0.025


def test_a_pool_remembers_a_bounded_number_of_audits() -> None:
    """16 of each device, and 256 of all: further audits do not count until some are forgotten."""
    pool, counted = new_pool(KEY, 0), dict.fromkeys(range(17), 0)
    for device in counted:
        for number in range(20):
            pool, counts = with_recent(pool, f"{device}", f"{device} {number}", 10.0, service_s=1.0, draw=0.0)
            counted[device] += counts
    assert counted == dict.fromkeys(range(16), 16) | {16: 0}
    assert len(pool.recent) == 256
    assert not with_recent(pool, "16", "gate", 10.0, service_s=10.9, draw=0.0)[1]
    assert with_recent(pool, "16", "gate", 10.0, service_s=11.0, draw=0.0)[1]


def test_a_broken_contract_alarms_once_and_for_good(served: ServedModel) -> None:
    broken = after(served, [1.0] * 10)
    assert 11.0 <= broken.alarmed_s < 21.0
    quiet = with_audit(broken, note_of(served), 0.0, now_s=99.0, delta=0.05)
    assert quiet.alarmed_s == broken.alarmed_s
    assert after(served, [0.0] * 200).alarmed_s is None


def test_the_bundle_alone_makes_the_promise(served: ServedModel) -> None:
    digest = served.manifest.edge[0].digest
    assert promises_of(served.manifest, note_of(served)) == [PoolKey("digits", 1, digest, THRESHOLD, EPSILON)]


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 1e-9},
        {"epsilon": 0.045},
        {"epsilon": 0.5},
        {"threshold": THRESHOLD - 1e-9},
        {"threshold": THRESHOLD + 1e-9},
        {"threshold": -1e308},
        {"edge_digest": "f" * 64},
    ],
)
def test_a_differing_note_audits_no_promise(served: ServedModel, changes: dict[str, object]) -> None:
    assert promises_of(served.manifest, note_of(served, **changes)) == []


def test_a_promise_about_each_event_has_a_pool(served: ServedModel) -> None:
    detector = certified_detector(served)
    keys = promises_of(detector.manifest, note_of(detector))
    assert {key.event: key.epsilon for key in keys} == EVENTS
    for events in ({}, {"missed person": 0.05}, EVENTS | {"missed person": 0.01}, EVENTS | {"invented car": 0.1}):
        assert promises_of(detector.manifest, note_of(detector, events=events)) == []


def test_the_events_of_a_contract_share_delta(served: ServedModel) -> None:
    detector = certified_detector(served)
    (key, *_) = promises_of(detector.manifest, note_of(detector))
    pool = new_pool(key, 0.0)
    while pool.alarmed_s is None:
        before = pool
        pool = with_audit(pool, note_of(detector), 1.0, now_s=1.0, delta=0.05)
    assert before.state.peak < 3 / 0.05 <= pool.state.peak


def test_a_promise_holds_only_if_errors_would_have_alarmed(served: ServedModel) -> None:
    needed = audit.audits_to_alarm(audit.begin(EPSILON), 0.05)
    assert new_pool(KEY, 0.0).result(0.05) is AuditResult.NOT_AUDITED
    assert after(served, [0.0] * (needed - 1)).result(0.05) is AuditResult.TOO_LITTLE_EVIDENCE
    quiet = after(served, [0.0] * needed)
    assert quiet.result(0.05) is AuditResult.HOLDS
    assert replace(quiet, promises=3).result(0.05) is AuditResult.TOO_LITTLE_EVIDENCE  # their alarms are later
    often = [float(number % round(0.8 / EPSILON) == 0) for number in range(needed)]  # 1.25 times the promised share
    doubtful = after(served, often)
    assert doubtful.alarmed_s is None and doubtful.result(0.05) is AuditResult.TOO_LITTLE_EVIDENCE
    assert after(served, [1.0] * 20).result(0.05) is AuditResult.ALARMED


def test_a_variant_without_a_certificate_promises_nothing(served: ServedModel) -> None:
    bare = served.manifest.edge[2]
    assert bare.certificate is None
    assert promises_of(served.manifest, note_of(served, edge_digest=bare.digest)) == []


def test_a_certificate_may_have_nothing_that_audits_could_see(served: ServedModel) -> None:
    variant = served.manifest.edge[0]
    assert variant.certificate is not None
    blind = msgspec.structs.replace(variant.certificate, audit_epsilon=None)
    manifest = msgspec.structs.replace(served.manifest, edge=(msgspec.structs.replace(variant, certificate=blind),))
    assert promises_of(manifest, note_of(served)) == []
