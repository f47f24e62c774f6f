from __future__ import annotations

import pytest

from firstline_core.types import ModelKey
from firstline_gateway.executors.oip.calls import Hedging
from firstline_gateway.executors.oip.endpoints import OutlierDetector, OutlierSettings

M = ModelKey("m", 1)


def fail(detector: OutlierDetector[str], server: str, now_s: float, times: int = 5) -> None:
    for _ in range(times):
        detector.failed(server, now_s)


def test_failures_in_a_row_eject_and_one_success_between_them_does_not() -> None:
    detector = OutlierDetector("abc")
    fail(detector, "a", 0, 4)
    detector.succeeded("a", 0)
    fail(detector, "a", 0, 4)
    assert not detector.ejected("a", 0)
    detector.failed("a", 0)
    assert detector.ejected("a", 9.9)
    assert not detector.ejected("a", 10)
    assert detector.left_s("a", 4) == 6
    assert not detector.ejected("b", 1)


def test_each_further_ejection_is_twice_as_long_up_to_a_cap_and_is_lived_down() -> None:
    detector = OutlierDetector("abc")
    now_s, lengths = 0.0, []
    for _ in range(7):
        fail(detector, "a", now_s)
        lengths.append(detector.left_s("a", now_s))
        now_s += lengths[-1]
    assert lengths == [10, 20, 40, 80, 160, 300, 300]
    for _ in range(9):  # well for so many intervals
        now_s += 10
        detector.succeeded("a", now_s)
    fail(detector, "a", now_s)
    assert detector.left_s("a", now_s) == 10


def test_an_idle_server_keeps_its_ejections() -> None:
    detector = OutlierDetector("abc")
    fail(detector, "a", 0)
    for now_s in range(10, 200, 10):
        detector.succeeded("b", now_s)
    fail(detector, "a", 200)
    assert detector.left_s("a", 200) == 20


@pytest.mark.parametrize(("servers", "most"), [("a", 0), ("ab", 1), ("abc", 1), ("abcd", 2), ("abcdefgh", 4)])
def test_only_a_share_is_ejected_and_never_the_last(servers: str, most: int) -> None:
    detector = OutlierDetector(servers)
    for server in servers:
        fail(detector, server, 0)
    assert sum(detector.ejected(server, 1) for server in servers) == most


def test_a_server_that_succeeds_less_often_than_the_others_is_ejected() -> None:
    detector = OutlierDetector("abcdef")
    for round_ in range(200):
        for server in "abcdef":
            if server == "f" and round_ % 3 == 0:
                detector.failed(server, 1)
            else:
                detector.succeeded(server, 1)
    assert not detector.ejected("f", 9)
    detector.succeeded("a", 11)  # the interval is over
    assert [server for server in "abcdef" if detector.ejected(server, 11)] == ["f"]


def test_rates_of_few_servers_or_few_requests_say_nothing() -> None:
    for servers, rounds in (("abcd", 200), ("abcdef", 50)):
        detector = OutlierDetector(servers)
        for _ in range(rounds):
            for server in servers[:-1]:
                detector.succeeded(server, 1)
            detector.failed(servers[-1], 1)
            detector.succeeded(servers[-1], 1)
        detector.succeeded("a", 11)
        assert not any(detector.ejected(server, 11) for server in servers)


def test_settings_hold() -> None:
    detector = OutlierDetector("abc", OutlierSettings(failures=1, first_s=2))
    detector.failed("a", 0)
    assert detector.left_s("a", 0) == 2


def test_hedges_wait_for_the_95th_percentile_of_their_own_size_and_are_a_share_of_all() -> None:
    hedging = Hedging(0.05)
    assert hedging.after_s(M, 1, 0) is None
    for count in range(100):
        hedging.answered(M, 1, 0.010 if count % 10 else 0.1, count * 0.01)
        hedging.answered(M, 30, 0.5, count * 0.01)
    assert hedging.after_s(M, 1, 1) == pytest.approx(0.11, rel=0.06)
    assert hedging.after_s(M, 32, 1) == pytest.approx(0.55, rel=0.06)
    assert hedging.after_s(M, 8, 1) is None, "nothing is known of that size"
    assert hedging.after_s(ModelKey("other", 1), 1, 1) is None
    while hedging.may(1):
        pass
    allowed = 0
    for _ in range(1000):
        hedging.started()
        allowed += hedging.may(1)
    assert allowed == 50


def test_an_abandoned_wait_moves_the_percentile() -> None:
    hedging = Hedging(0.05)
    for count in range(100):
        hedging.answered(M, 1, 0.01, count * 0.01)
    for count in range(20):
        hedging.waited(M, 1, 0.02, 1 + count * 0.01)
    after_s = hedging.after_s(M, 1, 2)
    assert after_s is not None
    assert after_s > 0.02


def test_a_share_of_0_never_hedges() -> None:
    hedging = Hedging(0)
    for count in range(100):
        hedging.answered(M, 1, 0.01, count * 0.01)
        hedging.started()
    assert hedging.after_s(M, 1, 1) is None
    assert not hedging.may(1)
