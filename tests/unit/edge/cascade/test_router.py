"""The policy that the device chose, at work in the cascade."""

import math
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from support.edge import SURE, UNSURE, MakeScene, Scene, answer_of

from bench.support.bundles import with_certificate
from firstline_core.routing import policy
from firstline_core.routing.certificate import GroupCertificate
from firstline_core.tasks.classification import Classification
from firstline_core.types import PROBABILITIES, InferRequest, Reason, Tensor, Tier
from firstline_edge.cascade.cascade import TierRouter, policy_from
from firstline_edge.models.models import DeviceModel
from firstline_edge.requests.context import ModelOutput, RequestContext, Row
from firstline_edge.settings.settings import PolicySection


@pytest.mark.parametrize(
    ("chosen", "value", "tier", "reason"),
    [
        (policy.make_policy("certified"), SURE, Tier.EDGE, Reason.CONFIDENT),
        (policy.make_policy("threshold", threshold=0.99), SURE, Tier.CLOUD, Reason.UNCERTAIN),
        (policy.make_policy("edge_only"), UNSURE, Tier.EDGE, Reason.POLICY),
        (policy.make_policy("cloud_only"), SURE, Tier.CLOUD, Reason.POLICY),
        (policy.make_policy("sedna", threshold=0.1), UNSURE, Tier.CLOUD, Reason.UNCERTAIN),
        (policy.make_policy("value", least_value=0.2), UNSURE, Tier.CLOUD, Reason.VALUABLE),
        (policy.make_policy("value", least_value=0.2), SURE, Tier.EDGE, Reason.CONFIDENT),
    ],
)
async def test_the_policy_chosen_decides(
    make_scene: MakeScene, chosen: policy.Policy, value: float, tier: Tier, reason: Reason
) -> None:
    scene = make_scene(chosen=chosen)
    answer = answer_of(await scene.infer(value))
    assert (answer.tier, answer.reason) == (tier, reason)


@pytest.mark.parametrize(
    ("chosen", "covered"),
    [
        (policy.make_policy("certified"), True),
        (policy.make_policy("value", least_value=0.3), True),
        (policy.make_policy("threshold", threshold=0.7), False),
        (policy.make_policy("groundlight", threshold=0.7), False),
        (policy.make_policy("edge_only"), False),
    ],
)
async def test_only_own_policies_are_covered(make_scene: MakeScene, chosen: policy.Policy, *, covered: bool) -> None:
    scene = make_scene(chosen=chosen, certified=0.7)
    answer = answer_of(await scene.infer(0.75))
    assert (answer.tier, answer.certified) == (Tier.EDGE, covered)


async def test_a_pause_after_an_escalation_leaves_answers_uncertified(make_scene: MakeScene) -> None:
    scene = make_scene(chosen=policy.make_policy("groundlight", pause_s=60.0))
    first, paused = answer_of(await scene.infer(UNSURE)), answer_of(await scene.infer(UNSURE - 0.05))
    assert (first.tier, paused.tier, paused.reason, paused.certified) == (Tier.CLOUD, Tier.EDGE, Reason.BUDGET, False)


def test_settings_name_parameters_as_their_policies_do() -> None:
    section = PolicySection(
        threshold=0.6, threshold_cross_entropy=0.4, rate=0.2, min_time_between_escalations_s=9.0, least_value=0.1
    )
    policies = {kind: policy_from(PolicySection(**{**_fields(section), "kind": kind})) for kind in policy.KINDS}
    assert {kind: getattr(found.decide, "keywords", {}) for kind, found in policies.items()} == {
        "certified": {},
        "value": {"least_value": 0.1},
        "threshold": {"threshold": 0.6},
        "edge_only": {},
        "cloud_only": {},
        "random": {"rate": 0.2},
        "sedna": {"threshold": 0.4},
        "groundlight": {"threshold": 0.6, "pause_s": 9.0},
    }


def _fields(section: PolicySection) -> dict[str, object]:
    return {name: getattr(section, name) for name in section.__struct_fields__}


# Thresholds by the predicted class, as a certificate by class has them.


YES, NO = (0.75, 0.25), (0.25, 0.75)


@pytest.fixture
def model() -> Iterator[DeviceModel]:
    """Certified by class: yes is kept from 0.6 on, of no nothing is proved."""
    model = Scene().held
    groups = {"yes": GroupCertificate(0.6, 300, 0.8, 0.04), "no": GroupCertificate(None, 20, 0.0, None)}
    certified = with_certificate(model.manifest.edge[0], model.manifest, 0.6, by="class", groups=groups)
    yield replace(model, edge=replace(model.edge, certificate=certified.certificate))
    model.edge.workers.close()


def row(probabilities: tuple[float, float], score: float) -> Row:
    return Row(0, b"", b"", ModelOutput({PROBABILITIES: np.array([probabilities], np.float32)}, score))


def decided(router: TierRouter, model: DeviceModel, seen: Row) -> tuple[Tier, bool]:
    terms = router.terms(model, model.group(seen.edge))
    decision = router.decide(model, seen, terms)
    return decision.tier, terms.certify(decision)


def test_each_class_has_its_threshold(model: DeviceModel) -> None:
    router = TierRouter(min_threshold=0.0)
    assert decided(router, model, row(YES, 0.6)) == (Tier.EDGE, True)
    assert decided(router, model, row(YES, math.nextafter(0.6, 0))) == (Tier.CLOUD, False)
    assert decided(router, model, row(NO, 1.0)) == (Tier.CLOUD, False)
    assert [router.threshold(model, group) for group in (None, "yes", "no")] == [0.6, 0.6, math.inf]
    assert router.decide(model, Row(0, b"", b""), router.terms(model)).reason is Reason.HEAVY


def test_each_row_is_decided_by_its_own_class(model: DeviceModel) -> None:
    decisions = Scene().cascade.decisions
    rows = [row(YES, 0.8), row(NO, 0.8), row(YES, 0.5)]
    inputs = (Tensor("x", np.zeros((len(rows), 1), np.float32)),)
    context = RequestContext(InferRequest(model.manifest.name, inputs, "id"), math.inf, rows=rows)
    assert decisions.decide(context, model, None, None) == rows[1:]
    assert [each.group for each in rows] == ["yes", "no", "yes"]


def test_a_raised_threshold_is_covered(model: DeviceModel) -> None:
    router = TierRouter(min_threshold=0.7)
    assert decided(router, model, row(YES, 0.65)) == (Tier.CLOUD, False)
    assert decided(router, model, row(YES, 0.8)) == (Tier.EDGE, True)


def test_a_class_without_a_threshold_is_escalated(model: DeviceModel) -> None:
    renamed = msgspec.structs.replace(model.manifest, task=Classification(("yes", "maybe")))
    model = replace(model, bundle=replace(model.bundle, manifest=renamed))
    assert decided(TierRouter(min_threshold=0.0), model, row(NO, 1.0)) == (Tier.CLOUD, False)
