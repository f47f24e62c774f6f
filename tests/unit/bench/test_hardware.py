"""The hardware benchmark's own arithmetic, on rows and figures whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest
from hardware.energy import Measured, Record, Stated, Swing, figures, swings, ways
from hardware.exits import DELTA, Rows, _once

_MEASURED = Measured(edge_core_ms=2.0, full_core_ms=10.0, sent_bytes=1048576.0, received_bytes=0.0, kept=0.75)
_STATED = Stated(
    joules_per_core_s=1.0,
    device_slowdown=3.0,
    joules_per_mib_sent=2.0,
    joules_per_mib_received=1.0,
    overhead_bytes=0.0,
    gateway_joules_per_core_s=5.0,
    wake_joules=1.0,
)


def test_energy_is_the_sum_of_runs_and_bytes() -> None:
    found = ways(_MEASURED, _STATED)
    assert found["edge only"].device_mj == pytest.approx(6)
    assert found["cloud only"].device_mj == pytest.approx(3000)
    assert found["cloud only"].gateway_mj == pytest.approx(50)
    assert found["tiered"].device_mj == pytest.approx(6 + 0.25 * 3000)
    assert found["tiered"].gateway_mj == pytest.approx(12.5)


def test_the_constant_that_decides_most_comes_first() -> None:
    found = swings(_MEASURED, _STATED)
    assert {one.constant for one in found} == {
        "joules_per_core_s",
        "device_slowdown",
        "joules_per_mib_sent",
        "joules_per_mib_received",
        "gateway_joules_per_core_s",
        "wake_joules",
    }
    spread = [abs(one.at_triple - one.at_third) for one in found]
    assert spread == sorted(spread, reverse=True)
    assert next(one for one in found if one.constant == "gateway_joules_per_core_s").at_triple == pytest.approx(
        ways(_MEASURED, _STATED)["tiered"].device_mj / 3000
    )


def test_the_gateways_constant_moves_what_both_take_alone() -> None:
    device, both = (
        next(one for one in swings(_MEASURED, _STATED, whose) if one.constant == "gateway_joules_per_core_s")
        for whose in ("device", "both")
    )
    assert device.at_third == device.at_triple
    found = ways(_MEASURED, _STATED)
    tiered_mj, cloud_mj = (found[way].device_mj + 3 * found[way].gateway_mj for way in ("tiered", "cloud only"))
    assert both.at_triple == pytest.approx(tiered_mj / cloud_mj)


def test_a_constant_turns_it_around_where_the_other_takes_less_at_an_end() -> None:
    assert Swing("x", 0.4, 1.1).turns(0.8) and Swing("x", 0.9, 1.4).turns(1.2)
    assert not Swing("x", 0.4, 0.9).turns(0.8)


def test_sensitivity_is_told_of_the_device_and_of_both() -> None:
    found = {one.figure: one for one in figures({"pair": Record(_MEASURED)})}
    assert found["pair, wifi: stays at the edge"].value == 0.75
    for whose in ("device", "both"):
        assert f"pair, wifi, {whose}, device slowdown: three times" in found
        assert found[f"pair, wifi, {whose}: constants that turn it around within 3 times"].unit == "of 6"


def _rows(ms: float, sure: float, rng: np.random.Generator, wrong_below: float) -> Rows:
    scores = rng.random(4000)
    return Rows(ms, scores * sure, scores < wrong_below)


def test_a_second_stage_only_sees_what_the_first_leaves() -> None:
    rng = np.random.default_rng(5)
    small, large = _rows(1.0, 1.0, rng, 0.3), _rows(10.0, 1.0, rng, 0.1)
    edge_ms, kept, lost, broken = _once([small, large], 0.05, rng.permutation(4000), own=True)
    alone_ms, alone_kept, _, _ = _once([small], 0.05, rng.permutation(4000), own=True)
    assert alone_ms == 1.0
    assert 1.0 < edge_ms < 11.0
    assert edge_ms == pytest.approx(1 + 10 * (1 - alone_kept), rel=0.1)
    assert kept > alone_kept
    assert lost / kept <= 0.05
    assert broken in (0.0, 1.0)


def test_a_certificate_for_all_rows_says_nothing_of_the_hard_ones() -> None:
    """Both stages see the same: what the first is unsure of, the second is wrong about as often as it likes."""
    rng = np.random.default_rng(5)
    scores = rng.random(8000)
    first = Rows(1.0, scores, scores < 0.3)
    lost = (scores < 0.3) & (rng.random(8000) < 0.1)
    second = Rows(1.0, rng.random(8000), lost)
    order = rng.permutation(8000)
    assert _once([first, second], 0.05, order, own=False)[3] == 1.0
    assert _once([first, second], 0.05, order, own=True)[3] == 0.0
    assert 0 < DELTA < 1
