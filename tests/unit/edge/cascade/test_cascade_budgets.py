"""The cascade on a budget: which calls are denied, which are free, and how answers report it."""

from __future__ import annotations

import pytest
from support.budgets import COST_BYTES, limited_spending, spent
from support.edge import SURE, UNSURE, Scene, answer_of, request

from firstline_core.errors import BudgetExceededError
from firstline_core.routing import policy
from firstline_core.routing.account import Denial, Tariff
from firstline_core.routing.budget import SLOTS
from firstline_core.types import InferRequest, Privacy, Reason, Route, Status, Tier
from firstline_edge.budgets.spending import Spending


@pytest.fixture
def short() -> Spending:
    """So short a budget that a row must be worth 0.4, and much more demand to come, so that it stays so."""
    spending = limited_spending(1e6, prices=(0.4 / COST_BYTES, 0.4 / COST_BYTES))
    for demand in spending.account.meters["bytes/day"].ledger.demands[:2]:
        demand.usual = [1e12] * SLOTS
    return spending


async def test_a_row_below_its_price_gets_a_final_edge_answer(short: Spending) -> None:
    scene = Scene(certified=0.8, spending=short)
    answer = answer_of(await scene.infer(0.7))
    assert (answer.tier, answer.reason, answer.status) == (Tier.EDGE, Reason.BUDGET, Status.FINAL)
    assert not answer.certified
    assert scene.cloud.requests == [] and scene.promises.items == []
    await scene.close()


async def test_where_no_link_works_that_is_the_reason_and_not_the_price(short: Spending) -> None:
    short.links = list
    scene = Scene(certified=0.8, spending=short)
    answer = answer_of(await scene.infer(0.7))
    assert (answer.tier, answer.reason, answer.status) == (Tier.EDGE, Reason.LINK_DOWN, Status.FINAL)
    assert not answer.certified
    assert scene.cloud.requests == [] and scene.promises.items == []
    await scene.close()


async def test_the_least_valuable_rows_are_the_ones_denied(short: Spending) -> None:
    scene = Scene(certified=0.8, spending=short)
    answer = answer_of(await scene.infer(0.7, 0.5, 0.9, 0.75))
    assert [row.reason for row in answer.rows] == [
        Reason.BUDGET,
        Reason.UNCERTAIN,
        Reason.CONFIDENT,
        Reason.BUDGET,
    ]
    assert scene.sent_rows == [[0.5]]
    await scene.close()


async def test_a_cached_full_answer_costs_nothing() -> None:
    rich = Scene(certified=0.8)
    await rich.infer(0.7)
    poor = Scene(certified=0.8, spending=broke(), cache=rich.cache)
    assert answer_of(await poor.infer(0.7)).tier is Tier.CACHE
    assert answer_of(await poor.infer(0.71)).reason is Reason.BUDGET
    await rich.close()
    await poor.close()


async def test_edge_answers_of_the_value_policy_stay_certified(short: Spending) -> None:
    scene = Scene(certified=0.5, spending=short, chosen=policy.make_policy("value"))
    kept = answer_of(await scene.infer(0.9))
    assert (kept.tier, kept.reason, kept.certified) == (Tier.EDGE, Reason.CONFIDENT, True)
    bought = answer_of(await scene.infer(0.55))
    assert (bought.tier, bought.reason, bought.certified) == (Tier.CLOUD, Reason.VALUABLE, True)
    await scene.close()


async def test_by_value_without_a_certificate_the_unsure_say_that_it_was_the_price(short: Spending) -> None:
    scene = Scene(spending=short, chosen=policy.make_policy("value"))
    answer = answer_of(await scene.infer(0.7, SURE))
    assert [row.reason for row in answer.rows] == [Reason.BUDGET, Reason.CONFIDENT]
    await scene.close()


async def test_the_decision_log_has_the_reason(short: Spending) -> None:
    scene = Scene(certified=0.8, spending=short)
    asked = request(0.7)
    trail = await denials_of(scene, asked)
    denial = trail[0]
    assert denial.value == pytest.approx(0.3, abs=1e-3) and denial.price == pytest.approx(0.4)
    await scene.close()


async def test_a_requested_route_ignores_prices(short: Spending) -> None:
    scene = Scene(spending=short)
    assert answer_of(await scene.infer(SURE, route=Route.CLOUD)).tier is Tier.CLOUD
    await scene.close()


async def test_a_hard_stop_on_the_way_leaves_the_edge_answer_final() -> None:
    scene = Scene()
    scene.cloud.error = BudgetExceededError("The budget is spent.")
    answer = answer_of(await scene.infer(UNSURE))
    assert (answer.reason, answer.status, answer.certified) == (Reason.BUDGET, Status.FINAL, False)
    assert scene.promises.items == []
    await scene.close()


async def test_without_an_edge_answer_the_hard_stop_is_the_answer() -> None:
    scene = Scene(loads=False)
    scene.cloud.error = BudgetExceededError("The budget is spent.", retry_after_s=60)
    with pytest.raises(BudgetExceededError):
        await scene.infer(UNSURE)
    await scene.close()


async def test_runs_cost_energy_and_private_ones_are_counted_nowhere() -> None:
    spending = limited_spending(resource="joules/day", tariff=Tariff(joules_per_run=2.0))
    scene = Scene(spending=spending)
    await scene.infer(SURE, SURE, 0.91, 0.92)  # equal rows are computed once, and looked up as often as asked
    counted = spent(spending)
    assert counted >= 6.0
    await scene.infer(0.93, privacy=Privacy.LOCAL_ONLY)
    await scene.infer(SURE)  # from the cache
    assert spent(spending) == counted
    await scene.close()


async def denials_of(scene: Scene, asked: InferRequest) -> dict[int, Denial]:
    context = scene.context(asked)
    await scene.cascade.infer(context)
    return context.denials


def broke() -> Spending:
    return limited_spending(1.0)
