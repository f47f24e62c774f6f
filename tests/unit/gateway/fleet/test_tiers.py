"""Answers by tier over time: added up in memory and stored once."""

from firstline_core.fleet.rest import TierCounts
from firstline_core.fleet.telemetry import ModelCounts
from firstline_gateway.fleet import tiers
from firstline_gateway.fleet.totals import Totals
from firstline_gateway.store.database import Database

NOW_S = 1.7e9 - 1.7e9 % tiers.BUCKET_S


def totals(kept: int, escalated: int = 0, errors: int = 0, model: str = "digits", version: int = 1) -> Totals:
    rows = kept + escalated + errors
    return Totals((ModelCounts(model, version, rows=rows, kept=kept, escalated=escalated, errors=errors),))


def test_counts_are_added_up_over_devices_and_flushes(database: Database) -> None:
    tally = tiers.TierCounter()
    for _ in range(2):
        tally.add(Totals(), totals(10, 2, 1), NOW_S)
        tally.add(totals(10, 2, 1), totals(15, 2, 1), NOW_S + 299)
        with database.begin() as connection:
            tiers.store(connection, tally.take(), 0)
    tally.add(totals(15), totals(16), NOW_S + 300)
    tally.add(Totals(), totals(7, model="words"), NOW_S + 300)
    with database.begin() as connection:
        tiers.store(connection, tally.take(), 0)
        of_all = tiers.history(connection, NOW_S, "")
        of_one = tiers.history(connection, NOW_S, "words")
        late = tiers.history(connection, NOW_S + 300, "")
    assert of_all.points == (TierCounts(NOW_S, 30, 4, 2), TierCounts(NOW_S + 300, 8, 0, 0))
    assert of_all.models == ("digits", "words") and of_all.span_s == 300
    assert of_one.points == (TierCounts(NOW_S + 300, 7, 0, 0),)
    assert len(late.points) == 1


def test_less_than_a_millijoule_per_report_adds_up(database: Database) -> None:
    tally = tiers.TierCounter()
    before = Totals()
    for report in range(1, 6):
        after = Totals((ModelCounts("digits", 1, saved_mj=0.4 * report, latency_sum_ms=0.4 * report),))
        tally.add(before, after, NOW_S)
        before = after
    with database.begin() as connection:
        tiers.store(connection, tally.take(), 0)
        (point,) = tiers.history(connection, NOW_S, "").points
    assert (point.saved_mj, point.latency_ms) == (2, 2)


def test_counts_that_could_not_be_stored_are_stored_later() -> None:
    tally = tiers.TierCounter()
    tally.add(Totals(), totals(1), NOW_S)
    taken = tally.take()
    tally.add(totals(1), totals(3), NOW_S)
    tally.put_back(taken)
    assert list(tally.take().values()) == [tiers.BucketCounts(kept=3)]
    assert tally.take() == {}


def test_the_number_of_model_names_per_bucket_is_bounded() -> None:
    tally = tiers.TierCounter()
    for number in range(1000):
        tally.add(Totals(), totals(1, model=f"m{number}"), NOW_S)
    first = tally.take()
    for number in range(1000, 2000):
        tally.add(Totals(), totals(1, model=f"m{number}"), NOW_S)
    then = tally.take()
    assert len(first | then) <= 257 and sum(kept for kept, *_ in [*first.values(), *then.values()]) == 2000
    tally.add(Totals(), totals(1, model="m1"), NOW_S + 300)
    assert [key.model for key in tally.take()] == ["m1"]


def test_reported_counts_are_bounded(database: Database) -> None:
    tally = tiers.TierCounter()
    for _ in range(1100):  # as many of the most that a device may say are more than 64 bits hold
        tally.add(Totals(), totals(2**53), NOW_S)
    with database.begin() as connection:
        tiers.store(connection, tally.take(), 0)
        found = tiers.history(connection, NOW_S, "")
    assert 0 < found.points[0].kept < 2**63


def test_old_buckets_are_deleted_by_seconds_in_service(database: Database) -> None:
    tally = tiers.TierCounter()
    with database.begin() as connection:
        tally.add(Totals(), totals(1), NOW_S)
        tiers.store(connection, tally.take(), 0)
        tally.add(Totals(), totals(2), NOW_S - 100 * 3600)  # by a clock that was set back
        tiers.store(connection, tally.take(), 3600)
        tiers.forget(connection, 49 * 3600 - 1)
        assert [point.kept for point in tiers.history(connection, 0, "").points] == [2]
