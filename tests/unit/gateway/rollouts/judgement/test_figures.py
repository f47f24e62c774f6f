"""The figures of devices that are compared."""

import math

import msgspec
import numpy as np
import pytest

from firstline_core.fleet.telemetry import LATENCY_BOUNDS_MS, ModelCounts, Telemetry
from firstline_gateway.fleet.totals import Totals, added
from firstline_gateway.rollouts.judgement.figures import (
    ALL,
    FIGURES,
    Period,
    Weighted,
    against_past,
    between,
    classes_of,
    compared,
    latency_p95_ms,
)

SHAPE = np.array([5, 20, 50, 20, 5])


def counts(version: int, rounds: int, *, alarm: bool = False) -> ModelCounts:
    rows = int(SHAPE.sum()) * rounds
    return ModelCounts("m", version, rows=rows, kept=rows, scores=tuple((SHAPE * rounds).tolist()), alarm=alarm)


def test_scores_of_another_version_are_not_subtracted() -> None:
    before = between("m", Totals(), Totals((counts(1, 20),), 1e5))
    start = Totals((counts(1, 20),), 1e5)
    # The same scores under a new version: nothing has drifted.
    end = Totals((counts(1, 20), counts(2, 25)), 2e5)
    period = compared("m", before, start, end)
    assert period.after.counts.scores == counts(2, 25).scores
    assert period.after.stability_index == pytest.approx(0.0, abs=0.01)


def test_after_a_rollback_scores_and_alarm_are_those_of_the_old_version() -> None:
    start = Totals((counts(1, 20), counts(2, 5, alarm=True)), 1e5)
    end = Totals((counts(1, 40), counts(2, 5, alarm=True)), 2e5)
    period = between("m", start, end)
    assert period.counts.version == 1
    assert period.counts.scores == counts(1, 20).scores and period.counts.rows == counts(1, 20).rows
    assert FIGURES["alarms"](period) == {ALL: (0.0, 1.0)}


def test_a_silent_device_differs_from_an_idle_one() -> None:
    start = Totals((counts(1, 20),), 1e5)
    silent, there = (compared("m", None, start, start, silent=silent) for silent in (True, False))
    assert silent.after is not None and FIGURES["silence"](silent.after) == {ALL: (1.0, 1.0)}
    assert there.after is not None and FIGURES["silence"](there.after) == {ALL: (0.0, 1.0)}
    assert {name for name, figure in FIGURES.items() if figure(silent.after)} == {"silence"}


def test_escalations_and_latency_are_those_of_the_period() -> None:
    start = Totals((ModelCounts("m", 1, rows=100, escalated=90, latency=(100, 0, 0)),), 3600)
    end = Totals((ModelCounts("m", 1, rows=200, escalated=100, latency=(100, 0, 100)),), 7200)
    period = between("m", start, end)
    assert period is not None
    assert FIGURES["escalations"](period) == {ALL: (0.1, 100 / 150)}
    p95_ms = 2 * 2.5**0.95  # between 2 and 5 ms
    assert FIGURES["latency"](period) == {ALL: (pytest.approx(math.log(p95_ms)), 100 / 150)}


def test_crashes_are_a_rate_per_day() -> None:
    """Half of a day has the weight 12 / (12 + 24); more than 24 a day count as 24."""
    assert FIGURES["crashes"](Period(ModelCounts("m", 1), 12.0, 3)) == {ALL: (6.0, pytest.approx(1 / 3))}
    assert FIGURES["crashes"](Period(ModelCounts("m", 1), 12.0, 13)) == {ALL: (24.0, pytest.approx(1 / 3))}
    assert FIGURES["crashes"](Period(ModelCounts("m", 1), 0.0, 3)) == {}
    assert FIGURES["crashes"](Period(ModelCounts("m", 1), 0.5, 0)) == {ALL: (0.0, pytest.approx(1 / 49))}


def test_alarms_and_drift_have_full_weight() -> None:
    alarmed = ModelCounts("m", 1, alarm=True)
    assert FIGURES["alarms"](Period(alarmed, 0.5)) == {ALL: (1.0, 1.0)}
    assert FIGURES["alarms"](Period(msgspec.structs.replace(alarmed, rows=1), 0.0)) == {ALL: (1.0, 1.0)}
    assert FIGURES["alarms"](Period(alarmed, 0.0)) == {}
    assert FIGURES["drift"](Period(alarmed, 1.0, stability_index=0.3)) == {ALL: (0.3, 1.0)}


def test_the_classes_with_most_weight_come_first() -> None:
    """The class of all devices that report none is not a class, unless there is no other."""
    car, dog, none = Weighted(0.1, 0.4), Weighted(9.0, 0.3), Weighted(0.0, 1.0)
    assert classes_of([{"car": car, ALL: none}, {"dog": dog}, {"dog": dog, "ant": car}]) == ["dog", "ant", "car"]
    assert classes_of([{ALL: none}, {}]) == [ALL]
    assert classes_of([{}]) == []


def test_the_percentile_of_a_first_and_a_last_bin() -> None:
    """A bin is taken for a factor of two where it has no bound; twenty requests suffice."""
    first, last = LATENCY_BOUNDS_MS[0], LATENCY_BOUNDS_MS[-1]
    assert latency_p95_ms(ModelCounts("m", 1, latency=(20,))) == pytest.approx(first / 2 * 2**0.95)
    assert latency_p95_ms(ModelCounts("m", 1, latency=(19,))) is None
    above = (0,) * len(LATENCY_BOUNDS_MS) + (20,)
    assert latency_p95_ms(ModelCounts("m", 1, latency=above)) == pytest.approx(last * 2**0.95)


def test_a_period_has_the_hours_and_crashes_between_two_totals() -> None:
    start, end = Totals((counts(1, 20),), 7200.0, unclean=2), Totals((counts(1, 20),), 14_400.0, unclean=5)
    period = between("m", start, end)
    assert period is not None and (period.hours, period.crashes, period.counts.rows) == (2.0, 3, 0)
    assert between("m", end, end) is None
    answered = between("m", Totals(), Totals((counts(1, 20),), 0.0))
    assert answered is not None and (answered.hours, answered.crashes, answered.counts.rows) == (0.0, 0, 2000)


def test_a_class_may_be_absent_from_either_period() -> None:
    """24 cars a day are eight in eight hours."""
    seen, gone = ModelCounts("m", 1, objects={"car": 24}), ModelCounts("m", 2)
    lost = against_past(Period(seen, 24.0), Period(gone, 8.0))
    assert lost.falls == {"car": (pytest.approx(math.log(9 / 1.2)), 8 / 13)}
    assert lost.rises == {ALL: (0.0, 1 / 6), "car": (0.0, 9 / 14)}
    new = against_past(Period(gone, 24.0), Period(seen, 8.0))
    assert new.falls == {}
    assert new.rises == {ALL: (0.0, 1 / 6), "car": (pytest.approx(math.log(25 / 1.2)), 1 / 6)}
    for before, after in ((0.0, 8.0), (24.0, 0.0)):
        unknown = Period(gone, after)
        assert against_past(Period(seen, before), unknown) is unknown


@pytest.mark.parametrize(("before", "after", "known"), [(200, 200, True), (199, 200, False), (200, 199, False)])
def test_a_drift_needs_200_scores_in_each_period(before: int, after: int, known: bool) -> None:
    earlier = Period(ModelCounts("m", 1, scores=(before, 0)), 24.0)
    device = compared("m", earlier, Totals(), Totals((ModelCounts("m", 1, scores=(after, 0)),), 3600.0))
    assert device.after is not None and (device.after.stability_index == 0) is known


def test_more_errors_than_rows_are_a_share_of_one() -> None:
    period = between("m", Totals(), Totals((ModelCounts("m", 1, rows=1, errors=2**53),), 1e5))
    assert period is not None
    assert FIGURES["errors"](period) == {ALL: (1.0, pytest.approx(1 / 51))}


def test_counts_have_an_upper_bound() -> None:
    most = ModelCounts("m", 1, rows=2**53, latency=(2**53,), latency_sum_ms=1e308)
    totals = Totals()
    for session in range(3):
        totals = added(totals, None, Telemetry(f"s{session}", 1, 1e308, (most,)))
    assert msgspec.json.decode(msgspec.json.encode(totals), type=Totals) == totals


def test_the_number_of_models_per_device_is_bounded() -> None:
    totals, before = Totals(), None
    for number in range(40):
        invented = (ModelCounts(f"invented-{number}-{index}", 1, rows=1) for index in range(60))
        report = Telemetry("s", number, 1.0 * number, (ModelCounts("m", 1, rows=number), *invented))
        totals, before = added(totals, before, report), report
    assert len(totals.models) <= 128
    assert next(model.rows for model in totals.models if model.name == "m") == 39


def objects(version: int, persons: int, cars: int, **fields: object) -> ModelCounts:
    return ModelCounts("m", version, rows=1000, objects={"person": persons, "car": cars}, **fields)


def test_objects_fall_against_the_devices_own_past_per_hour() -> None:
    start = Totals((objects(1, 2400, 0),), 24 * 3600)
    before = between("m", Totals(), start)
    end = Totals((objects(1, 2400, 0), objects(2, 399, 5)), 32 * 3600)
    device = compared("m", before, start, end)
    assert device.after is not None
    # 2,400 persons a day are 800 in eight hours; cars that were not seen before cannot fall.
    assert FIGURES["objects"](device.after) == {"person": (pytest.approx(math.log(801 / 400 / 1.2)), 800 / 805)}
    fewer = compared("m", before, start, Totals((objects(1, 2400, 0), objects(2, 700, 5)), 32 * 3600))
    assert fewer.after is not None and FIGURES["objects"](fewer.after) == {"person": (0.0, 800 / 805)}
    assert FIGURES["objects"](compared("m", None, start, end).after) == {}
    # Cars appear on this device, and not on those that do not report them.
    assert FIGURES["surplus"](device.after) == {
        ALL: (0.0, 1 / 6), "person": (0.0, 801 / 806), "car": (pytest.approx(math.log(6 / 1.2)), 1 / 6)
    }  # fmt: skip
    more = compared("m", before, start, Totals((objects(1, 2400, 0), objects(2, 1601, 0)), 32 * 3600))
    assert FIGURES["surplus"](more.after)["person"] == (pytest.approx(math.log(1602 / 801 / 1.2)), 801 / 806)


def test_disagreement_is_the_mean_loss_where_losses_have_grades() -> None:
    period = between("m", Totals(), Totals((ModelCounts("m", 2, audited=50, disagreed=50, losses=2.5),), 3600))
    assert period is not None and FIGURES["disagreement"](period) == {ALL: (0.05, 0.5)}


def test_events_are_shares_of_the_audits_in_which_they_can_occur() -> None:
    audits, losses = {"missed person": 50, "invented person": 0, "missed car": 10}, {"missed person": 5}
    counts_ = ModelCounts("m", 2, audited=900, audited_empty=850, event_audits=audits, event_losses=losses)
    period = between("m", Totals(), Totals((counts_,), 3600), audits_of=2)
    assert period is not None
    assert FIGURES["missed"](period) == {"person": (0.1, 0.5), "car": (0.0, pytest.approx(1 / 6))}
    assert FIGURES["invented"](period) == {}
    assert FIGURES["disagreement"](period) == {ALL: (0.0, 0.5)}
    other = between("m", Totals(), Totals((counts_,), 3600), audits_of=3)
    assert other is not None and not any(FIGURES[name](other) for name in ("missed", "invented", "disagreement"))


def test_audits_of_empty_frames_are_no_audits() -> None:
    empty = ModelCounts("m", 2, audited=900, audited_empty=900)
    device = compared("m", None, Totals(), Totals((empty,), 3600))
    assert not device.audited and device.after is not None and FIGURES["disagreement"](device.after) == {}


def test_objects_add_up_over_processes() -> None:
    totals, before = Totals(), None
    for session, persons in (("a", 5), ("a", 9), ("b", 3)):
        report = Telemetry(session, 1, 60.0, (objects(1, persons, 0),))
        totals = added(totals, before if before is not None and before.session == session else None, report)
        before = report
    (model,) = totals.models
    assert model.objects == {"person": 12, "car": 0}
