"""The cascade on a budget: which calls are denied, which are free, and how answers report it."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from support.budgets import COST_BYTES, limited_spending, spent
from support.edge import SURE, UNSURE, MakeScene, Scene, answer_of, request

from firstline_core.errors import BudgetExceededError
from firstline_core.routing import policy
from firstline_core.routing.account import Tariff
from firstline_core.routing.budget import SLOTS
from firstline_core.types import Privacy, Reason, Route, Status, Tier
from firstline_edge.budgets.spending import Spending


@pytest.fixture
def short() -> Spending:
    """So short a budget that a row must be worth 0.4, and much more demand to come, so that it stays so."""
    spending = limited_spending(1e6, prices=(0.4 / COST_BYTES, 0.4 / COST_BYTES))
    for demand in spending.account.meters["bytes/day"].ledger.demands[:2]:
        demand.usual = [1e12] * SLOTS
    return spending


@pytest.mark.parametrize("works", [True, False], ids=["by its price", "because no link works"])
async def test_a_row_below_its_price_stays_on_the_device(short: Spending, make_scene: MakeScene, works: bool) -> None:
    if not works:
        short.links = list
    scene = make_scene(certified=0.8, spending=short)
    answer = answer_of(await scene.infer(0.7))
    reason = Reason.BUDGET if works else Reason.LINK_DOWN
    assert (answer.tier, answer.reason, answer.status) == (Tier.EDGE, reason, Status.FINAL)
    assert not answer.certified
    assert scene.cloud.requests == [] and scene.promises.items == []


async def test_the_least_valuable_rows_are_the_ones_denied(short: Spending, make_scene: MakeScene) -> None:
    scene = make_scene(certified=0.8, spending=short)
    answer = answer_of(await scene.infer(0.7, 0.5, 0.9, 0.75))
    assert [row.reason for row in answer.rows] == [Reason.BUDGET, Reason.UNCERTAIN, Reason.CONFIDENT, Reason.BUDGET]
    assert scene.sent_rows == [[0.5]]


async def test_a_cached_full_answer_costs_nothing(make_scene: MakeScene) -> None:
    rich = make_scene(certified=0.8)
    await rich.infer(0.7)
    poor = make_scene(certified=0.8, spending=limited_spending(1.0), cache=rich.cache)
    assert answer_of(await poor.infer(0.7)).tier is Tier.CACHE
    assert answer_of(await poor.infer(0.71)).reason is Reason.BUDGET


@pytest.mark.parametrize(
    ("score", "learned", "reason", "tier"),
    [(0.45, 0.0, Reason.BUDGET, Tier.EDGE), (0.75, 1.0, Reason.UNCERTAIN, Tier.CLOUD)],
)
async def test_a_learned_value_replaces_the_estimate(  # noqa: PLR0917
    short: Spending, make_scene: MakeScene, score: float, learned: float, reason: Reason, tier: Tier
) -> None:
    value = SimpleNamespace(losses=lambda features: np.full(len(features), learned, np.float32))
    by_price = make_scene(certified=0.8, spending=short)
    by_policy = make_scene(chosen=policy.make_policy("value", least_value=0.5))
    for scene in (by_price, by_policy):
        scene.models.put(replace(scene.held, edge=replace(scene.held.edge, value=value)))
    assert answer_of(await by_price.infer(score)).reason is reason
    assert answer_of(await by_policy.infer(score)).tier is tier


async def test_edge_answers_of_the_value_policy_stay_certified(short: Spending, make_scene: MakeScene) -> None:
    scene = make_scene(certified=0.5, spending=short, chosen=policy.make_policy("value"))
    edge_answer = answer_of(await scene.infer(0.9))
    assert (edge_answer.tier, edge_answer.reason, edge_answer.certified) == (Tier.EDGE, Reason.CONFIDENT, True)
    bought = answer_of(await scene.infer(0.55))
    assert (bought.tier, bought.reason, bought.certified) == (Tier.CLOUD, Reason.VALUABLE, True)


async def test_unsure_rows_without_a_certificate_name_the_price(short: Spending, make_scene: MakeScene) -> None:
    scene = make_scene(spending=short, chosen=policy.make_policy("value"))
    answer = answer_of(await scene.infer(0.7, SURE))
    assert [row.reason for row in answer.rows] == [Reason.BUDGET, Reason.CONFIDENT]


async def test_the_decision_log_has_the_reason(short: Spending, make_scene: MakeScene) -> None:
    scene = make_scene(certified=0.8, spending=short)
    context = scene.context(request(0.7))
    await scene.cascade.infer(context)
    denial = context.denials[0]
    assert denial.value == pytest.approx(0.3, abs=1e-3) and denial.price == pytest.approx(0.4)


async def test_a_requested_route_ignores_prices(short: Spending, make_scene: MakeScene) -> None:
    scene = make_scene(spending=short)
    assert answer_of(await scene.infer(SURE, route=Route.CLOUD)).tier is Tier.CLOUD


async def test_a_hard_stop_on_the_way_leaves_the_edge_answer_final(scene: Scene) -> None:
    scene.cloud.error = BudgetExceededError("The budget is spent.")
    answer = answer_of(await scene.infer(UNSURE))
    assert (answer.reason, answer.status, answer.certified) == (Reason.BUDGET, Status.FINAL, False)
    assert scene.promises.items == []


async def test_without_an_edge_answer_the_hard_stop_is_the_answer(make_scene: MakeScene) -> None:
    scene = make_scene(loads=False)
    scene.cloud.error = BudgetExceededError("The budget is spent.", retry_after_s=60)
    with pytest.raises(BudgetExceededError):
        await scene.infer(UNSURE)


async def test_runs_cost_energy_and_private_ones_are_counted_nowhere(make_scene: MakeScene) -> None:
    spending = limited_spending(resource="joules/day", tariff=Tariff(joules_per_run=2.0))
    scene = make_scene(spending=spending)
    await scene.infer(SURE, SURE, 0.91, 0.92)  # equal rows are computed once, and looked up as often as asked
    counted = spent(spending)
    assert counted >= 6.0
    await scene.infer(0.93, privacy=Privacy.LOCAL_ONLY)
    await scene.infer(SURE)  # from the cache
    assert spent(spending) == counted
