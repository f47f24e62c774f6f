"""The simulated queue against what is known of queues in closed form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.profiles import point

from firstline_core.profile.predict import Stream, highest, load_factors, predict, replay, response_times, utilisation
from firstline_core.profile.profile import HALF_LOAD, LIGHT_LOAD, MixedLoad, UsualTimes, distribution, slow_moments

LOADS = st.floats(0.1, 0.6)
SEEDS = st.integers(0, 2**32 - 1)
QUERIES = 40_000
FEW = settings(max_examples=15, deadline=None)


@FEW
@given(load=LOADS, seed=SEEDS)
def test_constant_service_matches_pollaczek_khinchine(load: float, seed: int) -> None:
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(1 / load, QUERIES))
    service = np.ones(QUERIES)
    waits = response_times(arrivals, service, service, 1) - 1
    assert waits.mean() == pytest.approx(load / (2 * (1 - load)), rel=0.25)  # M/D/1


@FEW
@given(load=LOADS, seed=SEEDS)
def test_exponential_service_matches_the_closed_form(load: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    arrivals, service = np.cumsum(random.exponential(1 / load, QUERIES)), random.exponential(1, QUERIES)
    stays = response_times(arrivals, service, service, 1)
    p50, p99 = np.quantile(stays, (0.5, 0.99))
    assert p50 == pytest.approx(np.log(2) / (1 - load), rel=0.2)  # M/M/1
    assert p99 == pytest.approx(np.log(100) / (1 - load), rel=0.4)


@FEW
@given(seed=SEEDS, servers=st.integers(1, 4))
def test_another_server_never_lengthens_a_wait(seed: int, servers: int) -> None:
    random = np.random.default_rng(seed)
    arrivals, service = np.cumsum(random.exponential(0.5, 500)), random.exponential(1, 500)
    fewer, more = (response_times(arrivals, service, service, count) for count in (servers, servers + 1))
    assert (more <= fewer + 1e-9).all() and (more >= service - 1e-9).all()


def test_a_query_without_a_wait_takes_the_rested_time() -> None:
    found = response_times(np.array([0.0, 10.0, 11.0]), np.full(3, 2.0), np.full(3, 5.0), 1)
    assert found.tolist() == [5.0, 5.0, 6.0]  # the third waits for 4, and is served for 2


@st.composite
def _mixes(draw: st.DrawFn) -> list[Stream]:
    """Two models with different times for waiting queries and among each other."""
    share, times = draw(st.floats(0.1, 0.9)), st.floats(0.5, 3.0)
    return [
        Stream(
            replace(
                point(1.0, variant=mine),
                queued=distribution([draw(times) / 1000]),
                mixed_load=MixedLoad(draw(times), draw(times), variant=other, own_share=draw(st.floats(0.01, 0.99))),
                light_load=draw(st.none() | st.builds(UsualTimes, times, times)),
            ),
            rate_per_s,
        )
        for mine, other, rate_per_s in (("a", "b", share), ("b", "a", 1 - share))
    ]


@settings(max_examples=25, deadline=None)
@given(mix=_mixes(), servers=st.integers(1, 3), load=st.sampled_from([0.8, 1.2]), seed=SEEDS)
def test_an_overload_grows_the_queue_without_bound(mix: list[Stream], servers: int, load: float, seed: int) -> None:
    times = load / utilisation(mix, servers=servers)
    streams = [one._replace(rate_per_s=times * one.rate_per_s) for one in mix]
    few, many = (predict(streams, servers=servers, queries=queries, seed=seed) for queries in (4_000, 40_000))
    assert many.utilisation == pytest.approx(load)
    assert (many.p50_ms > 3 * few.p50_ms) == (load > 1)


def test_a_mix_is_between_its_kinds_and_reproducible() -> None:
    quick, slow = point(query_ms=1.0), point(query_ms=9.0)
    mixed = predict([Stream(quick, 20), Stream(slow, 10)], seed=3)
    assert mixed == predict([Stream(quick, 20), Stream(slow, 10)], seed=3)
    assert mixed.utilisation == pytest.approx(0.11)
    assert predict([Stream(quick, 30)], seed=3).mean_ms < mixed.mean_ms < predict([Stream(slow, 30)], seed=3).mean_ms


def test_a_load_without_queries_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one stream"):
        predict([Stream(point(query_ms=1.0), 0.0)])


def test_a_mixed_query_takes_the_time_measured_in_a_mix() -> None:
    among = replace(point(query_ms=1.0), mixed_load=MixedLoad(2.0, 1.2, variant="slow"))
    slow = point(query_ms=9.0, variant="slow")
    arrivals_ms, kinds = np.array([0.0, 0.1, 0.2, 0.3, 50.0, 60.0, 80.0, 90.0]), np.array([0, 0, 1, 0, 1, 0, 1, 1])
    took = replay([among, slow], arrivals_ms, kinds, servers=1, seed=0)
    ends_ms = took + arrivals_ms
    assert took[0] == pytest.approx(2.0)
    assert np.diff(ends_ms[:4]).tolist() == pytest.approx([1.2, 9.0, 1.2])
    assert took[4:].tolist() == pytest.approx([9.0, 2.0, 9.0, 9.0])


@given(st.floats(0.0001, 1.0), st.floats(0.1, 0.5))
def test_a_rarer_other_model_matters_less(other_per_s: float, own_share: float) -> None:
    among = replace(point(query_ms=1.0), mixed_load=MixedLoad(2.0, 2.0, variant="slow", own_share=own_share))
    streams = [Stream(among, 1.0), Stream(point(query_ms=9.0, variant="slow"), other_per_s)]
    mine_s = utilisation(streams) - other_per_s * 0.009
    there, here = 9 * (1 - own_share) / (own_share + 9 * (1 - own_share)), 9 * other_per_s / (1 + 9 * other_per_s)
    assert mine_s == pytest.approx(0.001 * (1 + min(here / there, 1)), rel=1e-6)


@pytest.mark.parametrize("other", ["edge", "slow"])
def test_a_light_load_takes_the_time_of_a_light_load(other: str) -> None:
    """Among queries of another model it is scaled as measured at half load."""
    mixed = MixedLoad(1.5, 1.5, variant="slow")
    light = replace(point(query_ms=1.0, variant="edge"), light_load=UsualTimes(3.0, 2.0), mixed_load=mixed)
    slow = point(query_ms=1.0, variant="slow")
    arrivals_ms, kinds = np.array([0.0, 0.5, 100.0, 199.0, 300.0]), np.array([0, 0, 0, 0, 0])
    took = replay([light, slow], arrivals_ms, np.where(arrivals_ms == 199.0, other == "slow", kinds), servers=1, seed=0)
    if other == "edge":
        assert took.tolist() == pytest.approx([3.0, 4.5, 3.0, 3.0, 3.0])
    else:
        similarity = 0.2 / 0.5  # the other model's share of the queries, and in the measurement
        assert took[3:].tolist() == pytest.approx([1.0, (1 + similarity * 0.5) * 3.0])


@given(load=st.floats(0.0, 2.0), light_ms=st.floats(0.5, 4.0), queued_ms=st.floats(0.5, 1.6))
def test_more_load_approaches_back_to_back_times(load: float, light_ms: float, queued_ms: float) -> None:
    measured = replace(
        point(query_ms=1.0), queued=distribution([queued_ms / 1000]), light_load=UsualTimes(light_ms, light_ms)
    )
    found = load_factors(load, measured)
    full = min(1 / queued_ms, 1.0)  # a query that waits is never faster than one that does not
    between = sorted((light_ms / queued_ms, 1.0, full) if load < HALF_LOAD else (1.0, full))
    assert 0.999 * between[0] <= found.queued <= 1.001 * between[-1]
    assert load_factors(0.0, measured).queued == pytest.approx(light_ms / queued_ms, rel=1e-3)
    assert load_factors(HALF_LOAD, measured) == (1.0, 1.0)
    assert load_factors(1.0, measured).rested == load_factors(1.0, measured).queued
    assert load_factors(1.0, measured).queued == load_factors(2.0, measured).queued == pytest.approx(full, rel=1e-3)


def test_the_rate_is_interpolated_linearly_between_loads() -> None:
    profiled = replace(point(query_ms=1.0), light_load=UsualTimes(rested_ms=4.0))
    between = (LIGHT_LOAD + HALF_LOAD) / 2
    assert 1 / load_factors(between, profiled).rested == pytest.approx((1 / 4 + 1) / 2)
    assert (
        load_factors(between, profiled).queued == load_factors(between, profiled).rested
    )  # because no waiting query was measured


def test_an_unmeasured_light_load_counts_as_half_load() -> None:
    assert load_factors(0.01, replace(point(query_ms=1.0), queued=distribution([0.0015]))) == (1.0, 1.0)


def test_the_cost_of_another_model_counts_for_that_model_only() -> None:
    among = replace(point(query_ms=1.0), mixed_load=MixedLoad(2.0, 1.2, variant="slow"))
    arrivals_ms, kinds = np.array([0.0, 0.1, 0.2]), np.array([0, 1, 0])
    took = replay([among, point(query_ms=1.0, variant="third")], arrivals_ms, kinds, servers=1, seed=0)
    assert took.tolist() == pytest.approx([1.0, 1.9, 2.8])


@given(st.sampled_from([0.0, 1e-9, 1e9]), st.sampled_from([0.0, 1e-300, 1e6]), st.booleans())
def test_an_implausible_profile_still_gives_a_prediction(mixed_ms: float, queued_s: float, no_time: bool) -> None:
    odd = [
        replace(
            point(query_ms=1.0, variant=mine),
            query=distribution([0.0 if no_time else 0.001]),
            queued=distribution([queued_s]),
            mixed_load=MixedLoad(mixed_ms, None if no_time else mixed_ms, variant=other),
            light_load=UsualTimes(mixed_ms, queued_s),
        )
        for mine, other in (("a", "b"), ("b", "a"))
    ]
    found = predict([Stream(one, 1.0) for one in (*odd, point(query_ms=1.0, variant="c"))], queries=500)
    assert np.isfinite(found.p99_ms) and np.isfinite(found.utilisation)


def test_a_waiting_query_takes_the_queued_time() -> None:
    cooled = replace(point(query_ms=1.0), queued=distribution([0.002]))
    took = replay([cooled], np.array([0.0, 0.5, 10.0]), np.zeros(3, np.intp), servers=1, seed=0)
    assert took.tolist() == pytest.approx([1.0, 2.5, 1.0])


def test_one_query_is_no_load_and_no_query_has_no_times() -> None:
    asleep = replace(point(query_ms=1.0), light_load=UsualTimes(3.0))
    assert replay([asleep], np.array([7.0]), np.zeros(1, np.intp), servers=1, seed=0).tolist() == pytest.approx([3.0])
    assert replay([asleep], np.empty(0), np.empty(0, np.intp), servers=1, seed=0).tolist() == []


def test_two_servers_halve_the_utilisation() -> None:
    asleep = replace(point(query_ms=1.0), light_load=UsualTimes(3.0))
    arrivals_ms, kinds = np.arange(101) * 5.0, np.zeros(101, np.intp)
    one, two = (replay([asleep], arrivals_ms, kinds, servers=servers, seed=0)[-1] for servers in (1, 2))
    assert one == pytest.approx(2.0, rel=0.02) and two == pytest.approx(3.0, rel=0.02)


@FEW
@given(within_ms=st.floats(6.5, 60.0))
def test_the_highest_rate_is_found_above_slow_light_loads(within_ms: float) -> None:
    measured = replace(point(query_ms=1.0), queued=distribution([0.0012]), light_load=UsualTimes(3.6, 3.6))
    found, rates = highest([Stream(measured, 1.0)], within_ms), np.arange(50.0, 1000.0, 50.0)
    keep = [rate for rate in rates.tolist() if predict([Stream(measured, rate)]).p99_ms <= within_ms]
    assert not keep or found >= 0.85 * max(keep)


def test_an_unmeasured_time_in_a_mix_is_the_time_alone() -> None:
    unknown = replace(point(query_ms=1.0), mixed_load=MixedLoad(queued_ms=2.0, variant="other"))
    other = point(query_ms=1.0, variant="other")
    took = replay([unknown, other], np.array([0.0, 0.5, 0.6, 50.0]), np.array([0, 1, 0, 1]), servers=1, seed=0)
    assert took.tolist() == pytest.approx([1.0, 1.5, 3.4, 1.0])


@FEW
@given(seed=SEEDS)
def test_clustered_slow_queries_make_longer_queues(seed: int) -> None:
    """The same times in another order."""
    random = np.random.default_rng(seed)
    times = np.where(np.arange(2_000) % 1_000 < 150, 0.0018, 0.0008) * random.uniform(0.95, 1.05, 2_000)
    together, mixed = (slow_moments(order, [False] * 2_000, 4.0) for order in (times, random.permutation(times)))
    measured = replace(point(query_ms=1.0), rested=distribution(times), queued=distribution(times))
    p99_ms = [
        predict([Stream(replace(measured, slow_moments=one), 700.0)], seed=seed).p99_ms
        for one in (together, mixed, None)
    ]
    assert p99_ms[0] > 2 * p99_ms[1]
    assert p99_ms[0] > 2 * p99_ms[2]


@FEW
@given(seed=SEEDS)
def test_without_slow_moments_the_order_is_random(seed: int) -> None:
    times = np.random.default_rng(seed).lognormal(np.log(0.001), 0.25, 4_000)
    measured = replace(point(query_ms=1.0), rested=distribution(times), queued=distribution(times))
    along = replace(measured, slow_moments=slow_moments(times, [False] * len(times), 8.0))
    with_it, without = (predict([Stream(one, 500.0)], seed=seed).p99_ms for one in (along, measured))
    assert with_it == pytest.approx(without, rel=0.3)


@FEW
@given(slow_ms=st.floats(1.0, 20.0), bound=st.floats(1.5, 10.0))
def test_the_highest_rate_is_the_last_within_the_bound(slow_ms: float, bound: float) -> None:
    streams, within_ms = [Stream(point(query_ms=1.0), 30.0), Stream(point(query_ms=slow_ms), 3.0)], bound * slow_ms

    def p99_ms(factor: float) -> float:
        return predict([one._replace(rate_per_s=factor * one.rate_per_s) for one in streams]).p99_ms

    factor = highest(streams, within_ms)
    assert p99_ms(factor) <= within_ms < p99_ms(1.02 * factor)


def test_no_rate_is_within_a_bound_below_one_query() -> None:
    assert highest([Stream(point(query_ms=2.0), 1.0)], 1.9) == 0
