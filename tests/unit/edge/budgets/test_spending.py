"""The spending of a device: reserved before a request, settled by counted bytes, and stored over restarts."""

import asyncio
import contextlib
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from support.budgets import limited_spending, spent
from support.edge import UNSURE, request
from support.waiting import until

from firstline_core.clock import SimulatedClock
from firstline_core.errors import BudgetExceededError, LinkDownError
from firstline_core.routing.account import Conditions, LinkTariff, Tariff
from firstline_core.routing.budget import Ledger
from firstline_core.types import AuditNote
from firstline_core.units import DAY_S
from firstline_edge.budgets.spending import SAVE_EVERY_S, Spending, SpendingFile, StoredSpending
from firstline_edge.telemetry.link_traffic import count_traffic

AUDIT = AuditNote(propensity=0.5, epsilon=0.05, threshold=0.8, edge_digest="e" * 64)


class TestPaid:
    asked = request(UNSURE)  # 4 bytes of payload

    def test_counted_bytes_replace_the_estimate(self) -> None:
        spending = limited_spending()
        with spending.paid(self.asked, "http"):
            assert spent(spending) > 100
            count_traffic("http", sent=304, received=96)
            count_traffic("mqtt", sent=250, received=50)  # each try counts
        assert spent(spending) == 700

    def test_a_link_that_counts_nothing_is_taken_at_the_estimate(self) -> None:
        spending = limited_spending()
        with spending.paid(self.asked, "http"):
            estimated = spent(spending)
        assert spent(spending) == estimated > 0

    def test_a_failure_before_sending_costs_nothing(self) -> None:
        spending = limited_spending(tariff=Tariff(money_per_request=5.0))
        with pytest.raises(LinkDownError), spending.paid(self.asked, "http"):
            raise LinkDownError("gone")
        assert spent(spending) == 0

    def test_bytes_of_a_failed_call_are_spent(self) -> None:
        spending = limited_spending()
        with pytest.raises(LinkDownError), spending.paid(self.asked, "http"):
            count_traffic("http", sent=304)
            raise LinkDownError("gone")
        assert spent(spending) == 304

    async def test_two_calls_at_once_do_not_count_each_others_bytes(self) -> None:
        spending, turns = limited_spending(), asyncio.Event()

        async def call(sent: int) -> None:
            with spending.paid(self.asked, "http"):
                await turns.wait()
                count_traffic("http", sent=sent)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(call(100))
            tasks.create_task(call(230))
            turns.set()
        assert spent(spending) == 330

    def test_an_empty_budget_refuses_with_retry_after(self) -> None:
        spending = limited_spending(2200.0)
        with spending.paid(self.asked, "http"):
            count_traffic("http", sent=300, received=200)
        with (
            pytest.raises(BudgetExceededError, match="budget for bytes/day") as refused,
            spending.paid(self.asked, "http"),
        ):
            pytest.fail("it was paid")
        assert refused.value.retry_after_s is not None and 0 < refused.value.retry_after_s <= DAY_S
        assert spent(spending) == 500

    def test_the_estimate_learns_the_overhead_of_a_payload(self) -> None:
        spending = limited_spending(100_000.0)
        with spending.paid(self.asked, "http"):
            count_traffic("http", sent=3000, received=1004)
        with spending.paid(self.asked, "http"):
            assert spent(spending) == 4004 + 4004

    def test_a_retransmission_does_not_change_the_estimate(self) -> None:
        spending = limited_spending(100_000.0)
        with spending.paid(self.asked, "http"):
            count_traffic("http", sent=30_000)  # over a connection that had been closed
            count_traffic("http", sent=30_000)
            count_traffic("http", received=1004)
        assert spent(spending) == 61_004
        with spending.paid(self.asked, "http"):
            assert spent(spending) == 61_004 + 31_004

    def test_each_link_has_its_own_price(self) -> None:
        tariff = Tariff({"wifi": LinkTariff(), "lte": LinkTariff(money_per_byte=1.0, metered=True)})
        spending = limited_spending(100.0, resource="money/day", tariff=tariff, link="wifi")
        with pytest.raises(BudgetExceededError, match="money/day"), spending.paid(self.asked, "lte"):
            pytest.fail("it was paid")
        with spending.paid(self.asked, "wifi"):
            count_traffic("wifi", sent=5000)
        assert spent(spending) == 0

    def test_costs_are_those_of_the_link_that_was_taken(self) -> None:
        links = {"http": LinkTariff(0.5, 0.25), "mqtt": LinkTariff(2.0, 1.0)}
        spending = limited_spending(resource="joules/day", tariff=Tariff(links))
        with spending.paid(self.asked, "http"):
            count_traffic("mqtt", sent=100, received=10)
        assert spent(spending) == 210

    def test_money_is_spent_per_answer_and_metered_byte(self) -> None:
        links = {"http": LinkTariff(money_per_byte=0.5, metered=True)}
        spending = limited_spending(resource="money/day", tariff=Tariff(links, money_per_request=7.0))
        with spending.paid(self.asked, "http"):
            count_traffic("http", sent=100, received=10)
        assert spent(spending) == 55 + 7

    def test_audits_leave_room_for_demanded_escalations(self) -> None:
        audit = replace(self.asked, audit=AUDIT)
        spending = limited_spending(10_000.0, prices=(0.01, 0.01))  # short
        with spending.paid(self.asked, "http"):
            pass
        with pytest.raises(BudgetExceededError, match="audits"), spending.paid(audit, "http"):
            pytest.fail("it was paid")
        with limited_spending(10_000.0).paid(audit, "http"):
            pass
        with limited_spending(100_000.0, prices=(0.01, 0.01)).paid(audit, "http"):  # a small share is always theirs
            pass

    def test_runs_do_not_use_up_the_budget_of_audits(self) -> None:
        audit, tariff = replace(self.asked, audit=AUDIT), Tariff({"http": LinkTariff(0.01, 0.01)}, joules_per_run=1.0)
        spending = limited_spending(1000.0, resource="joules/day", tariff=tariff, prices=(0.01, 0.01))
        spending.charge_runs(900)
        for _ in range(2):  # of 20 joules, and 50 are theirs
            with spending.paid(audit, "http"):
                count_traffic("http", sent=2000)
        with pytest.raises(BudgetExceededError, match="audits"), spending.paid(audit, "http"):
            pytest.fail("it was paid")

    def test_a_budget_with_a_price_is_not_ample(self) -> None:
        assert limited_spending().ample
        assert not limited_spending(prices=(0.0, 0.01)).ample

    def test_the_link_in_use_decides_the_price(self) -> None:
        tariff = Tariff({"http": LinkTariff(), "mqtt": LinkTariff(metered=True)})
        expensive, cheap = (
            limited_spending(prices=(0.01, 0.01), tariff=tariff, link="mqtt"),
            limited_spending(prices=(0.01, 0.01), tariff=tariff),
        )
        ratio = _price(expensive) / _price(cheap)
        assert ratio == pytest.approx(4.0)
        assert expensive.conditions.metered and not cheap.conditions.metered


def _price(spending: Spending) -> float:
    denial = spending.denial(4, 0.0)
    return denial.price


class TestKeep:
    async def test_spending_outlives_a_restart(self, tmp_path: Path) -> None:
        clock, file = SimulatedClock(), SpendingFile(tmp_path / "spending.json")
        spending = limited_spending(file=file, clock=clock)
        async with running(spending):
            with spending.paid(TestPaid.asked, "http"):
                count_traffic("http", sent=300, received=100)
            await settled(clock)
            await clock.advance(SAVE_EVERY_S)
            await written(file)
        (ledger,) = SpendingFile(tmp_path / "spending.json").read().ledgers.values()
        assert ledger.spent == 400

    async def test_nothing_is_written_while_nothing_is_spent(self, tmp_path: Path) -> None:
        clock = SimulatedClock()
        spending = limited_spending(file=SpendingFile(tmp_path / "spending.json"), clock=clock)
        async with running(spending):
            await settled(clock)
            await clock.advance(10 * SAVE_EVERY_S)
        assert SpendingFile(tmp_path / "spending.json").read() == StoredSpending()

    async def test_a_draining_battery_raises_the_price_of_energy(self) -> None:
        clock = SimulatedClock()
        spending = limited_spending(resource="joules/day", clock=clock)
        spending.sense = lambda: Conditions(battery=0.05, charging=False)
        async with running(spending):
            await settled(clock)
        assert spending.account.markup.joules == 8.0

    async def test_a_disk_that_refused_is_tried_again_though_nothing_more_is_spent(self, tmp_path: Path) -> None:
        clock, file = SimulatedClock(), SpendingFile(tmp_path / "missing" / "spending.json")
        (tmp_path / "missing").touch()  # not a directory
        spending = limited_spending(file=file, clock=clock)
        async with running(spending):
            with spending.paid(TestPaid.asked, "http"):
                count_traffic("http", sent=300)
            await settled(clock)
            await clock.advance(SAVE_EVERY_S)
            await until(lambda: spending.problem)
            (tmp_path / "missing").unlink()
            await settled(clock)
            await clock.advance(SAVE_EVERY_S)
            await written(file)

    async def test_saving_and_sensing_need_no_threads(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async def refuse(*_: object) -> None:
            raise RuntimeError("can't start new thread")

        clock, file = SimulatedClock(1000.0), SpendingFile(tmp_path / "spending.json")
        looks: list[int] = []

        def sense() -> Conditions:
            looks.append(1)
            return Conditions()

        spending = limited_spending(clock=clock, file=file)
        spending.sense = sense
        async with running(spending):
            with spending.paid(TestPaid.asked, "http"):
                count_traffic("http", sent=300)
            await settled(clock)
            with monkeypatch.context() as patched:
                patched.setattr(asyncio, "to_thread", refuse)
                for _ in range(3):
                    await clock.advance(SAVE_EVERY_S)
                    await settled(clock)
                assert len(looks) == 4
                assert "can't start new thread" in spending.problem
            await clock.advance(SAVE_EVERY_S)
            await written(file)

    def test_a_refusing_disk_is_reported_and_retried(self, tmp_path: Path) -> None:
        (tmp_path / "missing").touch()  # not a directory
        spending = limited_spending(file=SpendingFile(tmp_path / "missing" / "spending.json"))
        spending.save()
        assert "A restart would forget the spending." in spending.problem
        (tmp_path / "missing").unlink()
        spending.save()
        assert spending.problem == ""


@contextlib.asynccontextmanager
async def running(spending: Spending):
    task = asyncio.create_task(spending.keep())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def settled(clock: SimulatedClock) -> None:
    await until(lambda: clock.sleepers)


async def written(file: SpendingFile) -> None:
    await until(lambda: file.read().ledgers)


# By a version that remembered demand otherwise, or by hand.
_STRANGE = [
    b'{"ledgers": {"bytes/day": {%s}}}' % odd
    for odd in (b'"prices": [1]', b'"spent": -5', b'"demands": []', b'"demands": [{"today": [1]}, {}, {}]')
]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"ledgers": {"bytes/day": {"spent": "much"}}}', b"\xff", *_STRANGE])
def test_a_file_that_makes_no_sense_is_no_failure(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "spending.json").write_bytes(content)
    assert SpendingFile(tmp_path / "spending.json").read() == StoredSpending()


def test_a_damaged_file_is_reported_and_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "spending.json"
    file = SpendingFile(path)
    file.write(msgspec.json.encode(StoredSpending({"bytes/day": Ledger(period=20_500, spent=12.5)})))
    whole = path.read_bytes()
    assert SpendingFile(path).read().ledgers["bytes/day"].spent == 12.5
    bits, found = range(0, 8 * len(whole), 5), 0  # of each byte one at least, and each position in a byte
    for bit in bits:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        file = SpendingFile(path)
        stored = file.read()
        if file.loss:
            assert stored == StoredSpending()
            assert path.with_name("spending.json.damaged").read_bytes() == damaged
            if not bit % 8:  # an fsync
                file.write(b"{}")
            assert file.problem == file.loss
            found += 1
        else:
            assert stored.ledgers["bytes/day"].spent == 12.5
    assert found >= len(bits) - 4  # all but those of the last line's end
    path.write_bytes(whole)
    assert SpendingFile(path).read().ledgers["bytes/day"].spent == 12.5
