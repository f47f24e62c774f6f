"""The policy that the device chose, at work in the cascade."""

from __future__ import annotations

import pytest
from support.edge import SURE, UNSURE, MakeScene, answer_of

from firstline_core.routing import policy
from firstline_core.types import Reason, Tier
from firstline_edge.cascade.cascade import policy_from
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
async def test_only_firstlines_own_policies_are_covered(
    make_scene: MakeScene, chosen: policy.Policy, *, covered: bool
) -> None:
    scene = make_scene(chosen=chosen, certified=0.7)
    answer = answer_of(await scene.infer(0.75))
    assert (answer.tier, answer.certified) == (Tier.EDGE, covered)


async def test_a_pause_after_an_escalation_leaves_answers_uncertified(make_scene: MakeScene) -> None:
    scene = make_scene(chosen=policy.make_policy("groundlight", pause_s=60.0))
    first, held = answer_of(await scene.infer(UNSURE)), answer_of(await scene.infer(UNSURE - 0.05))
    assert (first.tier, held.tier, held.reason, held.certified) == (Tier.CLOUD, Tier.EDGE, Reason.BUDGET, False)


def test_settings_name_parameters_as_their_policies_do() -> None:
    section = PolicySection(
        threshold=0.6, threshold_cross_entropy=0.4, rate=0.2, min_time_between_escalations_s=9.0, least_value=0.1
    )
    made = {kind: policy_from(PolicySection(**{**_fields(section), "kind": kind})) for kind in policy.KINDS}
    assert {kind: getattr(found.decide, "keywords", {}) for kind, found in made.items()} == {
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
