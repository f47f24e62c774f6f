import random

import pytest

from firstline_core.routing.timing import LEAST_WEIGHT, LinkTiming, TimesBySize


def fed(base_s: float, per_mib_s: float, sizes: list[int], *, spread: float = 0.1, times: int = 60) -> TimesBySize:
    rng = random.Random(1)
    found = TimesBySize()
    for count in range(times):
        size_bytes = sizes[count % len(sizes)]
        seconds = (base_s + per_mib_s * size_bytes / 2**20) * rng.lognormvariate(0, spread)
        found.add(size_bytes, seconds, count * 0.1)
    return found


def test_sizes_share_observations() -> None:
    found = fed(0.05, 2.0, [4_000, 40_000, 400_000])
    for size_bytes in (1_000, 10_000, 100_000, 1_000_000):
        typical_s = 0.05 + 2.0 * size_bytes / 2**20
        assert found.quantile(size_bytes, 0.5) == pytest.approx(typical_s, rel=0.3)
        assert typical_s < (found.quantile(size_bytes, 0.95) or 0) < typical_s * 1.6


def test_one_size_predicts_others() -> None:
    assert fed(0.05, 0.0, [30_000]).quantile(60_000, 0.5) == pytest.approx(0.05, rel=0.1)


def test_similar_sizes_do_not_predict_others() -> None:
    found = fed(0.05, 0.0, [119, 120, 121, 122, 123], spread=0.3, times=500)
    assert found.quantile(121, 0.95) == pytest.approx(0.05 * 1.64, rel=0.25)
    assert (found.quantile(30_000, 0.5) or 0) < 0.5


def test_the_usual_size_follows_the_traffic() -> None:
    found = fed(0.05, 2.0, [3_000])
    rng = random.Random(2)
    for count in range(40):
        found.add(300_000, (0.05 + 2.0 * 300_000 / 2**20) * rng.lognormvariate(0, 0.1), 10.0 + count)
    assert found.quantile(300_000, 0.5) == pytest.approx(0.622, rel=0.15)
    assert found.quantile(3_000, 0.5) == pytest.approx(0.056, rel=0.5)


def test_a_dozen_fast_answers_discard_older_ones() -> None:
    found = fed(1.0, 0.0, [30_000], times=200)
    for count in range(11):
        found.add(30_000, 0.1, 20.0 + count)
    assert (found.quantile(30_000, 0.95) or 0) > 1.0
    found.add(30_000, 0.1, 31.0)
    assert found.quantile(30_000, 0.95) == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize("spread", [0.1, 0.5])
def test_chance_discards_no_observations(spread: float) -> None:
    assert fed(0.1, 0.0, [30_000], spread=spread, times=5_000).weight(500.0) > 30


def test_a_stall_does_not_tilt_the_line() -> None:
    found = fed(0.05, 0.5, [4_000, 400_000])
    before = found.quantile(400_000, 0.5)
    found.add(4_000, 20.0, 10.0)
    assert found.quantile(400_000, 0.5) == pytest.approx(before, rel=0.2)


def behind(found: TimesBySize, per_s: float, carried_per_s: float) -> None:
    """Feeds calls that do not wait for each other, by a link that carries one after the other, `carried_per_s`."""
    size_bytes, rng, at_s, free_s, under_way = 30_000, random.Random(3), 0.0, 0.0, list[tuple[float, float, int]]()
    for _ in range(600):
        at_s += rng.expovariate(per_s)
        while under_way and under_way[0][0] <= at_s:
            done_s, seconds, ahead_bytes = under_way.pop(0)
            found.add(size_bytes, seconds, done_s, ahead_bytes=ahead_bytes)
        free_s = max(free_s, at_s) + 1 / carried_per_s
        under_way.append((free_s + 0.02, free_s + 0.02 - at_s, size_bytes * len(under_way)))


def test_bytes_ahead_delay_a_payload() -> None:
    found = TimesBySize()
    behind(found, 18.0, 20.0)
    alone_s, sixth_s, far_s = (found.quantile(30_000, 0.5, ahead * 30_000) or 0.0 for ahead in (0, 5, 30))
    assert alone_s == pytest.approx(0.07, abs=0.03)
    assert sixth_s == pytest.approx(0.02 + 6 / 20, rel=0.2)
    assert far_s == pytest.approx(0.02 + 31 / 20, rel=0.25)  # many more than it ever saw


def test_a_wide_link_is_not_delayed_by_bytes_ahead() -> None:
    rng, found = random.Random(4), TimesBySize()
    for count in range(300):
        size_bytes, ahead_bytes = int(rng.lognormvariate(10, 1)), int(rng.uniform(0, 500_000))
        seconds = (0.05 + size_bytes / 1e6) * rng.lognormvariate(0, 0.1)
        found.add(size_bytes, seconds, count * 0.1, ahead_bytes=ahead_bytes)
    assert found.quantile(30_000, 0.5, 500_000) == pytest.approx(0.08, rel=0.15)


def test_single_calls_do_not_measure_bytes_ahead() -> None:
    found = fed(0.05, 2.0, [4_000, 40_000, 400_000])
    assert found.quantile(40_000, 0.95, 10**7) == found.quantile(40_000, 0.95)


def test_size_and_bytes_ahead_are_separated() -> None:
    rng, found = random.Random(5), TimesBySize()
    for count in range(300):
        size_bytes, ahead_bytes = rng.choice((4_000, 40_000, 200_000)), rng.choice((0, 100_000, 400_000))
        seconds = (0.05 + 3e-6 * size_bytes + 1e-6 * ahead_bytes) * rng.lognormvariate(0, 0.1)
        found.add(size_bytes, seconds, count * 0.1, ahead_bytes=ahead_bytes)
    assert found.quantile(200_000, 0.5, 0) == pytest.approx(0.65, rel=0.15)
    assert found.quantile(4_000, 0.5, 400_000) == pytest.approx(0.462, rel=0.15)
    assert found.line == (pytest.approx(0.05, rel=0.3), pytest.approx(3e-6, rel=0.15))


def test_a_call_is_in_flight_until_it_ends() -> None:
    timing = LinkTiming(in_turn=True)
    with timing.carrying(1_000) as first:
        assert (first.ahead_bytes, timing.ahead_bytes(7)) == (0, 1_000)
        with pytest.raises(OSError, match="gone"), timing.carrying(500) as other:
            assert (other.ahead_bytes, timing.ahead_bytes(7)) == (1_000, 1_500)
            raise OSError("gone")
        assert timing.ahead_bytes(7) == 1_000
    assert timing.ahead_bytes(7) == 0


def test_on_a_shared_link_a_large_payload_counts_less() -> None:
    timing = LinkTiming()
    with timing.carrying(1_000_000), timing.carrying(500):
        assert timing.ahead_bytes(700) == 1_200
        assert timing.ahead_bytes(2_000_000) == 1_000_500


def test_calls_of_an_outage_delay_no_others() -> None:
    timing = LinkTiming()
    with timing.carrying(1_000) as before:
        timing.returned()
        assert timing.ahead_bytes(1_000) == 0
        with timing.carrying(600) as after:
            assert timing.ahead_bytes(1_000) == 600
    assert timing.ahead_bytes(1_000) == 0
    assert (before.lost, after.lost) == (True, False)


def test_a_slow_link_is_not_taken_for_congestion() -> None:
    """Where answers take long, more is in flight: one follows from the other either way."""
    timing = LinkTiming()
    for count in range(100):
        timing.answered(1_000, 1.0, 0.3 * count, ahead_bytes=1_000 * min(count, 3))
    for count in range(20):
        timing.answered(1_000, 0.05, 30.0 + 0.3 * count)
    with timing.carrying(1_000):
        assert (timing.predicted_s(1_000, 0.95, 36.0) or 0) < 0.15


def test_a_prediction_includes_calls_in_flight() -> None:
    timing = LinkTiming(in_turn=True)
    for count in range(60):
        ahead = count % 6
        timing.answered(1_000, 0.02 + 0.01 * ahead, float(count), ahead_bytes=1_000 * ahead)
    alone_s = timing.predicted_s(1_000, 0.5, 60.0)
    assert alone_s == pytest.approx(0.02, rel=0.15)
    with timing.carrying(10_000):
        assert timing.predicted_s(1_000, 0.5, 60.0) == pytest.approx(0.12, rel=0.15)
    assert timing.predicted_s(1_000, 0.5, 60.0) == alone_s
    report = timing.report(60.0)
    assert report.total_p50_ms == pytest.approx(45, rel=0.25)  # as measured recently


def test_stale_observations_predict_nothing() -> None:
    timing = LinkTiming()
    assert timing.predicted_s(1_000, 0.95, 0.0) is None
    assert timing.report(0.0) is None
    timing.answered(1_000, 0.2, 0.0)
    assert timing.predicted_s(1_000, 0.95, 0.0) == pytest.approx(0.2, rel=0.05)
    assert timing.predicted_s(1_000, 0.95, 61.0) is None


def test_slow_observations_are_forgotten_in_minutes() -> None:
    timing = LinkTiming()
    for _ in range(1000):
        timing.waited(1_000, 2.0, 0.0)
    assert (timing.predicted_s(1_000, 0.95, 0.0) or 0) > 2.0
    assert timing.predicted_s(1_000, 0.95, 420.0) is None


def test_a_probe_stands_in_until_something_was_answered() -> None:
    timing = LinkTiming()
    timing.probed(0.3, 0.0)
    assert timing.predicted_s(1_000, 0.95, 0.0) == pytest.approx(0.3, rel=0.05)
    timing.answered(1_000, 0.1, 1.0)
    assert timing.predicted_s(1_000, 0.95, 1.0) == pytest.approx(0.1, rel=0.05)


def test_a_link_is_measured_again_after_an_outage() -> None:
    timing = LinkTiming()
    for _ in range(100):
        timing.answered(1_000, 2.0, 0.0)
    timing.returned()
    for _ in range(20):
        timing.answered(1_000, 0.1, 1.0)
    assert timing.predicted_s(1_000, 0.8, 1.0) == pytest.approx(0.1, rel=0.05)


def test_service_and_network_times_are_separated() -> None:
    timing = LinkTiming()
    for _ in range(20):
        timing.answered(30_000, 0.3, 0.0, service_s=0.1)
    report = timing.report(0.0)
    assert report.typical_bytes == 30_000
    assert report.observations > 10 * LEAST_WEIGHT
    assert report.total_p50_ms == pytest.approx(300, rel=0.05)
    assert report.network_p95_ms == pytest.approx(200, rel=0.05)
    assert report.service_p95_ms == pytest.approx(100, rel=0.05)


def test_several_sizes_measure_round_trip_and_bandwidth() -> None:
    timing = LinkTiming()
    for size_bytes in (1_000, 20_000, 60_000) * 20:  # 20 ms there and back, 1 MB/s, and the gateway's own time
        timing.answered(size_bytes, 0.02 + size_bytes / 1e6 + 0.1, 0.0, service_s=0.1)
    report = timing.report(0.0)
    assert report.round_trip_ms is not None and report.bytes_per_s is not None
    assert report.round_trip_ms == pytest.approx(20, rel=0.1)
    assert report.bytes_per_s == pytest.approx(1e6, rel=0.1)


def test_one_size_measures_no_bandwidth() -> None:
    timing = LinkTiming()
    for size_bytes in (29_000, 30_000, 31_000) * 20:
        timing.answered(size_bytes, 0.02 + size_bytes / 1e6, 0.0, service_s=0.0)
    report = timing.report(0.0)
    assert (report.round_trip_ms, report.bytes_per_s) == (None, None)


def test_a_service_time_above_the_total_is_limited() -> None:
    timing = LinkTiming()
    timing.answered(1_000, 0.1, 0.0, service_s=5.0)
    report = timing.report(0.0)
    assert (report.network_p50_ms or 0) < 1 < (report.service_p50_ms or 0) <= 106
