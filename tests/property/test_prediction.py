"""The simulated queue against what is known of queues in closed form."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.profiles import point

from firstline_core.profile.predict import Stream, highest, predict, replay, response_times, utilisation
from firstline_core.profile.profile import distribution

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
    """Two models with different times for waiting queries."""
    share, times = draw(st.floats(0.1, 0.9)), st.floats(0.5, 3.0)
    return [
        Stream(replace(point(1.0, variant=variant), queued=distribution([draw(times) / 1000])), rate_per_s)
        for variant, rate_per_s in (("a", share), ("b", 1 - share))
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


def test_a_waiting_query_takes_the_queued_time() -> None:
    cooled = replace(point(query_ms=1.0), queued=distribution([0.002]))
    took = replay([cooled], np.array([0.0, 0.5, 10.0]), np.zeros(3, np.intp), servers=1, seed=0)
    assert took.tolist() == pytest.approx([1.0, 2.5, 1.0])


@settings(max_examples=5, deadline=None)  # each takes dozens of predictions
@given(slow_ms=st.floats(1.0, 20.0), bound=st.floats(1.5, 10.0))
def test_the_highest_rate_is_the_last_within_the_bound(slow_ms: float, bound: float) -> None:
    streams, within_ms = [Stream(point(query_ms=1.0), 30.0), Stream(point(query_ms=slow_ms), 3.0)], bound * slow_ms

    def p99_ms(factor: float) -> float:
        return predict([one._replace(rate_per_s=factor * one.rate_per_s) for one in streams]).p99_ms

    factor = highest(streams, within_ms)
    assert p99_ms(factor) <= within_ms < p99_ms(1.02 * factor)


def test_no_rate_is_within_a_bound_below_one_query() -> None:
    assert highest([Stream(point(query_ms=2.0), 1.0)], 1.9) == 0


@given(st.sampled_from([0.0, 1e-300, 1e6]), st.booleans())
def test_an_implausible_profile_still_gives_a_prediction(queued_s: float, no_time: bool) -> None:
    query = distribution([0.0 if no_time else 0.001])
    odd = replace(point(query_ms=1.0, variant="a"), query=query, queued=distribution([queued_s]))
    found = predict([Stream(one, 1.0) for one in (odd, point(query_ms=1.0, variant="b"))], queries=500)
    assert np.isfinite(found.p99_ms) and np.isfinite(found.utilisation)


def test_no_query_has_no_times() -> None:
    nothing = replay([point(query_ms=1.0)], np.empty(0), np.empty(0, np.intp), servers=1, seed=0)
    assert nothing.tolist() == []


@pytest.mark.parametrize(("servers", "took_ms"), [(1, [1.0, 1.9, 2.8, 1.0]), (2, [1.0, 1.0, 1.8, 1.0])])
def test_two_servers_answer_two_queries_at_once(servers: int, took_ms: list[float]) -> None:
    arrivals_ms, kinds = np.array([0.0, 0.1, 0.2, 10.0]), np.zeros(4, np.intp)
    took = replay([point(query_ms=1.0)], arrivals_ms, kinds, servers=servers, seed=0)
    assert took.tolist() == pytest.approx(took_ms)


@FEW
@given(load=LOADS, seed=SEEDS)
def test_two_servers_halve_the_utilisation(load: float, seed: int) -> None:
    """Each of two servers is busy for half of the share of one, and no server is busy for longer than there is work."""
    streams = [Stream(point(query_ms=1.0), 1000 * load)]
    one, two = (predict(streams, servers=servers, queries=5_000, seed=seed) for servers in (1, 2))
    assert one.utilisation == pytest.approx(load) and two.utilisation == pytest.approx(load / 2)
    assert two.mean_ms - 1 < (one.mean_ms - 1) / 3  # two servers at half the load wait less than half as long
