"""One purse for all that leaves: asked before, paid at the gate, settled with what was counted, kept for ever."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.agent import until
from support.edge import SURE, UNSURE, Scene, request, said

from firstline_core.clock import SimulatedClock
from firstline_core.errors import BudgetExceededError, LinkDownError
from firstline_core.routing import policies
from firstline_core.routing.account import Account, Cost
from firstline_core.routing.budget import DAY_S, HOUR_S, Budget, Ledger, Meter
from firstline_core.routing.conditions import Conditions
from firstline_core.routing.demand import SLOTS
from firstline_core.routing.tariff import LinkTariff, Tariff
from firstline_core.types import AuditNote, InferRequest, Privacy, Reason, Route, Status, Tier
from firstline_edge.ledgers import AROUND_BYTES, Books, LedgerFile
from firstline_edge.links.traffic import count
from firstline_edge.purse import budgets_of, open_spending, tariff_of
from firstline_edge.settings import BudgetSection, CostsSection, EdgeSettings, LinkSection
from firstline_edge.spending import SAVE_EVERY_S, Spending

COST_BYTES = 4 + AROUND_BYTES  # one row

AUDIT = AuditNote(predicted=0, propensity=0.5, floor=0.5, epsilon=0.05, threshold=0.8, edge_digest="e" * 64)


# By a version that remembered demand otherwise, or by hand.
_STRANGE = [
    b'{"ledgers": {"bytes/day": {%s}}}' % odd
    for odd in (b'"prices": [1]', b'"spent": -5', b'"demands": []', b'"demands": [{"today": [1]}, {}, {}]')
]


def purse(
    amount: float = 10_000.0,
    *,
    resource: str = "bytes/day",
    tariff: Tariff = Tariff(),  # noqa: B008 (frozen)
    prices: tuple[float, float] = (0.0, 0.0),
    file: LedgerFile | None = None,
    clock: SimulatedClock | None = None,
    link: str = "http",
) -> Spending:
    meter = Meter(Budget(amount, DAY_S), Ledger(prices=list(prices)))
    account = Account({resource: meter})
    return Spending(account, tariff, clock or SimulatedClock(), file=file, link=lambda: link)


def spent(spending: Spending) -> float:
    (budget,) = spending.status()
    return float(budget["spent"])


class TestPaid:
    asked = request(UNSURE)  # 4 bytes of payload

    def test_what_the_links_counted_takes_the_place_of_the_estimate(self) -> None:
        spending = purse()
        with spending.paid(self.asked):
            assert spent(spending) > 100
            count("http", sent=304, received=96)
        assert spent(spending) == 400

    def test_every_try_counts(self) -> None:
        spending = purse()
        with spending.paid(self.asked):
            count("http", sent=300)
            count("mqtt", sent=250, received=50)
        assert spent(spending) == 600

    def test_a_link_that_counts_nothing_is_taken_at_the_estimate(self) -> None:
        spending = purse()
        with spending.paid(self.asked):
            estimated = spent(spending)
        assert spent(spending) == estimated > 0

    def test_what_failed_before_anything_was_sent_costs_nothing(self) -> None:
        spending = purse(tariff=Tariff(money_per_request=5.0))
        with pytest.raises(LinkDownError), spending.paid(self.asked):
            raise LinkDownError("gone")
        assert spent(spending) == 0

    def test_what_was_sent_in_vain_was_sent(self) -> None:
        spending = purse()
        with pytest.raises(LinkDownError), spending.paid(self.asked):
            count("http", sent=304)
            raise LinkDownError("gone")
        assert spent(spending) == 304

    async def test_two_calls_at_once_do_not_count_each_others_bytes(self) -> None:
        spending, turns = purse(), asyncio.Event()

        async def call(sent: int) -> None:
            with spending.paid(self.asked):
                await turns.wait()
                count("http", sent=sent)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(call(100))
            tasks.create_task(call(230))
            turns.set()
        assert spent(spending) == 330

    def test_the_budget_is_a_hard_stop_and_says_until_when(self) -> None:
        spending = purse(2200.0)
        with spending.paid(self.asked):
            count("http", sent=300, received=200)
        with (
            pytest.raises(BudgetExceededError, match="budget for bytes/day is spent") as refused,
            spending.paid(self.asked),
        ):
            pytest.fail("it was paid")
        assert refused.value.retry_after_s is not None and 0 < refused.value.retry_after_s <= DAY_S
        assert spent(spending) == 500

    def test_an_estimate_learns_what_comes_around_a_payload(self) -> None:
        spending = purse(100_000.0)
        with spending.paid(self.asked):
            count("http", sent=3000, received=1004)
        with spending.paid(self.asked):
            assert spent(spending) == 4004 + 4004

    def test_what_a_link_sent_twice_is_no_habit(self) -> None:
        spending = purse(100_000.0)
        with spending.paid(self.asked):
            count("http", sent=30_000)  # over a connection that had been closed
            count("http", sent=30_000)
            count("http", received=1004)
        assert spent(spending) == 61_004
        with spending.paid(self.asked):
            assert spent(spending) == 61_004 + 31_004

    def test_each_link_has_its_own_price(self) -> None:
        tariff = Tariff({"wifi": LinkTariff(), "lte": LinkTariff(money_per_byte=1.0, metered=True)})
        spending = purse(100.0, resource="money/day", tariff=tariff, link="wifi")
        with pytest.raises(BudgetExceededError, match="money/day"), spending.paid(self.asked, "lte"):
            pytest.fail("it was paid")
        with spending.paid(self.asked, "wifi"):
            count("wifi", sent=5000)
        assert spent(spending) == 0

    def test_costs_are_those_of_the_link_that_was_taken(self) -> None:
        links = {"http": LinkTariff(0.5, 0.25), "mqtt": LinkTariff(2.0, 1.0)}
        spending = purse(resource="joules/day", tariff=Tariff(links))
        with spending.paid(self.asked):
            count("mqtt", sent=100, received=10)
        assert spent(spending) == 210

    def test_money_is_asked_by_the_answer_and_by_the_metered_byte(self) -> None:
        links = {"http": LinkTariff(money_per_byte=0.5, metered=True)}
        spending = purse(resource="money/day", tariff=Tariff(links, money_per_request=7.0))
        with spending.paid(self.asked):
            count("http", sent=100, received=10)
        assert spent(spending) == 55 + 7

    def test_an_audit_comes_after_what_the_contract_demands(self) -> None:
        audit = replace(self.asked, audit=AUDIT)
        spending = purse(10_000.0, prices=(0.01, 0.01))  # short
        with spending.paid(self.asked):
            pass
        with pytest.raises(BudgetExceededError, match="audits"), spending.paid(audit):
            pytest.fail("it was paid")
        with purse(10_000.0).paid(audit):
            pass
        with purse(100_000.0, prices=(0.01, 0.01)).paid(audit):  # a small share is always theirs
            pass

    def test_only_an_ample_budget_pays_for_what_may_not_be_needed(self) -> None:
        assert purse().ample
        assert not purse(prices=(0.0, 0.01)).ample

    def test_the_links_state_decides_what_is_dear(self) -> None:
        tariff = Tariff({"http": LinkTariff(), "mqtt": LinkTariff(metered=True)})
        dear, cheap = purse(prices=(0.01, 0.01), tariff=tariff, link="mqtt"), purse(prices=(0.01, 0.01), tariff=tariff)
        ratio = _price(dear) / _price(cheap)
        assert ratio == pytest.approx(4.0)
        assert dear.conditions.metered and not cheap.conditions.metered


def _price(spending: Spending) -> float:
    denial = spending.denial(4, 0.0)
    assert denial is not None
    return denial.price


class TestKeep:
    async def test_what_is_spent_outlives_a_restart(self, tmp_path: Path) -> None:
        clock, file = SimulatedClock(), LedgerFile(tmp_path / "spending.json")
        spending = purse(file=file, clock=clock)
        async with running(spending):
            with spending.paid(TestPaid.asked):
                count("http", sent=300, received=100)
            await settled(clock)
            await clock.advance(SAVE_EVERY_S)
            await written(file)
        (ledger,) = LedgerFile(tmp_path / "spending.json").read().ledgers.values()
        assert ledger.spent == 400

    async def test_nothing_is_written_while_nothing_is_spent(self, tmp_path: Path) -> None:
        clock = SimulatedClock()
        spending = purse(file=LedgerFile(tmp_path / "spending.json"), clock=clock)
        async with running(spending):
            await settled(clock)
            await clock.advance(10 * SAVE_EVERY_S)
        assert LedgerFile(tmp_path / "spending.json").read() == Books()

    async def test_a_battery_makes_joules_dearer(self) -> None:
        clock = SimulatedClock()
        spending = purse(resource="joules/day", clock=clock)
        spending._sense = lambda: Conditions(battery=0.05, charging=False)
        async with running(spending):
            await settled(clock)
        assert spending.account.markup.joules == 8.0

    async def test_a_driver_that_never_answers_does_not_stop_the_books(self, tmp_path: Path) -> None:
        clock, file, answers = SimulatedClock(), LedgerFile(tmp_path / "spending.json"), threading.Event()
        spending = purse(file=file, clock=clock)

        def hang() -> Conditions:
            answers.wait(30)
            return Conditions()

        spending._sense = hang
        try:
            async with running(spending):
                with spending.paid(TestPaid.asked):
                    count("http", sent=300)
                await settled(clock)
                await clock.advance(SAVE_EVERY_S)
                await written(file)
                answers.set()
        finally:
            answers.set()

    async def test_a_disk_that_refused_is_tried_again_though_nothing_more_is_spent(self, tmp_path: Path) -> None:
        clock, file = SimulatedClock(), LedgerFile(tmp_path / "missing" / "spending.json")
        spending = purse(file=file, clock=clock)
        async with running(spending):
            with spending.paid(TestPaid.asked):
                count("http", sent=300)
            await settled(clock)
            await clock.advance(SAVE_EVERY_S)

            async def told() -> bool:
                return bool(spending.problem)

            await until(told)
            (tmp_path / "missing").mkdir()
            await settled(clock)
            await clock.advance(SAVE_EVERY_S)
            await written(file)

    def test_a_disk_that_refuses_is_told_and_tried_again(self, tmp_path: Path) -> None:
        file = LedgerFile(tmp_path / "missing" / "spending.json")
        spending = purse(file=file)
        spending.save()
        assert "a restart would forget it" in spending.problem
        (tmp_path / "missing").mkdir()
        spending.save()
        assert spending.problem == ""

    @pytest.mark.parametrize(
        "content", [b"", b"[]", b'{"ledgers": {"bytes/day": {"spent": "much"}}}', b"\xff", *_STRANGE]
    )
    def test_a_file_that_makes_no_sense_is_no_failure(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "spending.json").write_bytes(content)
        assert LedgerFile(tmp_path / "spending.json").read() == Books()


@contextlib.asynccontextmanager
async def running(spending: Spending):  # type: ignore[no-untyped-def]
    task = asyncio.create_task(spending.keep())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def settled(clock: SimulatedClock) -> None:
    async def waits() -> bool:
        return clock.sleepers > 0

    await until(waits)


async def written(file: LedgerFile) -> None:
    async def there() -> bool:
        return bool(file.read().ledgers)

    await until(there)


@pytest.fixture
def short() -> Spending:
    """So short a budget that a row must be worth 0.4, and much more demand to come, so that it stays so."""
    spending = purse(1e6, prices=(0.4 / COST_BYTES, 0.4 / COST_BYTES))
    for demand in spending.account.meters["bytes/day"].ledger.demands[:2]:
        demand.usual = [1e12] * SLOTS
    return spending


class TestCascade:
    async def test_what_is_not_worth_its_price_is_answered_here_for_good(self, short: Spending) -> None:
        scene = Scene(certified=0.8, spending=short)
        answer = said(await scene.infer(0.7))
        assert (answer.tier, answer.reason, answer.status) == (Tier.EDGE, Reason.BUDGET, Status.FINAL)
        assert not answer.certified
        assert scene.cloud.requests == [] and scene.promises.items == []
        await scene.close()

    async def test_the_least_valuable_rows_are_the_ones_denied(self, short: Spending) -> None:
        scene = Scene(certified=0.8, spending=short)
        answer = said(await scene.infer(0.7, 0.5, 0.9, 0.75))
        assert [row.reason for row in answer.rows] == [
            Reason.BUDGET,
            Reason.UNCERTAIN,
            Reason.CONFIDENT,
            Reason.BUDGET,
        ]
        assert scene.sent_rows == [[0.5]]
        await scene.close()

    async def test_what_the_full_model_said_before_costs_nothing(self) -> None:
        scene = Scene(certified=0.8)
        await scene.infer(0.7)
        scene.cascade._spending = broke()
        assert said(await scene.infer(0.7)).tier is Tier.CACHE
        await scene.close()

    async def test_by_value_what_is_not_bought_beyond_the_contract_stays_certified(self, short: Spending) -> None:
        scene = Scene(certified=0.5, spending=short, chosen=policies.make("value"))
        kept = said(await scene.infer(0.9))
        assert (kept.tier, kept.reason, kept.certified) == (Tier.EDGE, Reason.CONFIDENT, True)
        bought = said(await scene.infer(0.55))
        assert (bought.tier, bought.reason, bought.certified) == (Tier.CLOUD, Reason.VALUABLE, True)
        await scene.close()

    async def test_by_value_without_a_certificate_the_unsure_say_that_it_was_the_price(self, short: Spending) -> None:
        scene = Scene(spending=short, chosen=policies.make("value"))
        answer = said(await scene.infer(0.7, SURE))
        assert [row.reason for row in answer.rows] == [Reason.BUDGET, Reason.CONFIDENT]
        await scene.close()

    async def test_the_trail_says_why(self, short: Spending) -> None:
        scene = Scene(certified=0.8, spending=short)
        asked = request(0.7)
        trail = await trail_of(scene, asked)
        denial = trail[0]
        assert denial.value == pytest.approx(0.3, abs=1e-3) and denial.price == pytest.approx(0.4)
        await scene.close()

    async def test_what_the_caller_wants_is_not_judged(self, short: Spending) -> None:
        scene = Scene(spending=short)
        assert said(await scene.infer(SURE, route=Route.CLOUD)).tier is Tier.CLOUD
        await scene.close()

    async def test_a_hard_stop_on_the_way_leaves_the_edge_answer_final(self) -> None:
        scene = Scene()
        scene.cloud.error = BudgetExceededError("The budget is spent.")
        answer = said(await scene.infer(UNSURE))
        assert (answer.reason, answer.status, answer.certified) == (Reason.BUDGET, Status.FINAL, False)
        assert scene.promises.items == []
        await scene.close()

    async def test_without_an_edge_answer_the_hard_stop_is_the_answer(self) -> None:
        scene = Scene(loads=False)
        scene.cloud.error = BudgetExceededError("The budget is spent.", retry_after_s=60)
        with pytest.raises(BudgetExceededError):
            await scene.infer(UNSURE)
        await scene.close()

    async def test_runs_cost_energy_and_private_ones_are_counted_nowhere(self) -> None:
        spending = purse(resource="joules/day", tariff=Tariff(joules_per_run=2.0))
        scene = Scene(spending=spending)
        await scene.infer(SURE, SURE, 0.91, 0.92)  # equal rows are computed once, and looked up as often as asked
        counted = spent(spending)
        assert counted >= 6.0
        await scene.infer(0.93, privacy=Privacy.LOCAL_ONLY)
        await scene.infer(SURE)  # from the cache
        assert spent(spending) == counted
        await scene.close()


async def trail_of(scene: Scene, asked: InferRequest):  # type: ignore[no-untyped-def]
    from firstline_edge.case import Trail

    trail = Trail()
    await scene.cascade.infer(asked, trail)
    return trail.denials


def broke() -> Spending:
    return purse(1.0)


class TestSettings:
    def test_budgets_go_by_resource_and_period(self) -> None:
        section = BudgetSection(bytes_per_hour=10, joules_per_day=2.5)
        assert budgets_of(section) == {"bytes/hour": Budget(10.0, HOUR_S), "joules/day": Budget(2.5, DAY_S)}

    def test_a_link_costs_what_its_section_says(self) -> None:
        settings = EdgeSettings(
            links=(
                LinkSection(kind="http", joules_per_mib_sent=1048576.0),
                LinkSection(kind="mqtt", metered=True, joules_per_mib_received=2097152.0),
            ),
            costs=CostsSection(money_per_mib=1048576.0, money_per_request=3.0, joules_per_run=0.5),
        )
        tariff = tariff_of(settings, ["http", "mqtt"])
        assert tariff.of_link("http").cost(10, 20, tariff.money_per_request) == Cost(30, 10.0, 3.0)
        assert tariff.of_link("mqtt").cost(10, 20) == Cost(30, 40.0, 30.0)
        assert tariff.runs(4) == Cost(joules=2.0)

    @pytest.fixture
    def opened(self, tmp_path: Path) -> Iterator[Path]:
        yield tmp_path / "spending.json"

    def test_without_limits_and_prices_nobody_counts(self, opened: Path) -> None:
        assert open_spending(EdgeSettings(), opened, SimulatedClock(), link_names=[], link=str) is None

    def test_a_purse_goes_on_where_it_was_left(self, opened: Path) -> None:
        settings = EdgeSettings(budget=BudgetSection(bytes_per_day=5000))
        for expected in (400, 800):
            spending = open_spending(settings, opened, SimulatedClock(), link_names=[], link=str)
            assert spending is not None
            with spending.paid(TestPaid.asked):
                count("http", sent=400)
            spending.save()
            assert spent(spending) == expected
