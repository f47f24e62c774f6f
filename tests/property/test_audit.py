"""The audits' test over everything it can be given."""

from functools import reduce

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstline_core.routing.audit import AuditState, alarm, begin, check, e_value, update

SHARES = st.floats(0.001, 0.999)
LOSSES = st.sampled_from([0.0, 1.0]) | st.floats(0, 1)
AUDITS = st.lists(LOSSES, max_size=60)


def _after(state: AuditState, losses: list[float]) -> AuditState:
    return reduce(update, losses, state)


STATES = st.builds(lambda epsilon, audits: _after(begin(epsilon), audits), SHARES, AUDITS)


@given(STATES)
def test_peak_is_at_least_the_e_value(state: AuditState) -> None:
    assert 0 < e_value(state) <= state.peak
    assert all(money >= 0 for money in state.wealth)


@given(STATES)
def test_e_value_is_a_martingale_at_epsilon(state: AuditState) -> None:
    wrong, right = (e_value(update(state, loss)) for loss in (1, 0))
    assert state.epsilon * wrong + (1 - state.epsilon) * right == pytest.approx(e_value(state), rel=1e-12)


@given(STATES, st.lists(st.tuples(LOSSES, LOSSES), max_size=30))
@settings(max_examples=50)
def test_evidence_is_monotone_in_the_loss(state: AuditState, pairs: list[tuple[float, float]]) -> None:
    less = _after(state, [min(pair) for pair in pairs])
    more = _after(state, [max(pair) for pair in pairs])
    assert e_value(less) <= e_value(more)
    assert less.peak <= more.peak


@given(STATES, AUDITS, SHARES, SHARES)
def test_alarms_persist_and_grow_with_level(state: AuditState, more: list[float], one: float, other: float) -> None:
    strict, loose = min(one, other), max(one, other)
    assert alarm(_after(state, more), loose) >= alarm(state, loose) >= alarm(state, strict)


@given(STATES, AUDITS)
def test_a_restart_changes_nothing(state: AuditState, more: list[float]) -> None:
    stored = msgspec.json.decode(msgspec.json.encode(state), type=AuditState)
    check(stored)
    assert stored == state
    assert _after(stored, more) == _after(state, more)


@pytest.mark.parametrize("share", [1.0, 0.05, 0.002])
@pytest.mark.parametrize("events", [1, 4])
def test_rare_events_raise_no_more_false_alarms_than_promised(share: float, events: int) -> None:
    """Each event can occur in a share of the audits; its promise just holds, and the test looks after every audit."""
    random, delta, epsilon, counted = np.random.default_rng(19), 0.2, 0.2, 100
    alarms = 0
    for _ in range(100):
        alarmed = False
        for _ in range(events):
            state = begin(epsilon)
            # How many audits pass between two that count depends on the share alone, and changes nothing.
            audits = int(random.binomial(round(counted / share), share))
            for loss in random.random(audits) < epsilon:
                state = update(state, float(loss))
            alarmed = alarmed or alarm(state, delta / events)
        alarms += alarmed
    assert alarms <= 30  # 20 expected at most; more than 30 has a probability below 1 %


@pytest.mark.parametrize("most", [0.2, 1.0])
def test_graded_losses_raise_no_more_false_alarms_than_promised(most: float) -> None:
    """Every audit has a loss. At a mean of epsilon few tests alarm, at double that all do."""
    random, delta, epsilon = np.random.default_rng(20), 0.2, 0.05

    def alarms(mean: float, audits: int) -> int:
        found = 0
        for _ in range(100):
            state, losses = begin(epsilon), most * random.beta(mean, most - mean, audits)
            for loss in losses:
                state = update(state, float(loss))
                if alarm(state, delta):
                    found += 1
                    break
        return found

    assert alarms(epsilon, 400) <= 30  # 20 expected at most; more than 30 has a probability below 1 %
    assert alarms(2 * epsilon, 3000) == 100
