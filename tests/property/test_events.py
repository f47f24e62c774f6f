"""Promises about events, over populations whose truth is known: none is broken more often than its delta allows."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from firstline_core.routing.binomial import cdf
from firstline_core.routing.certification import Start, certify
from firstline_core.routing.contracts import EventRows, EventsResult, certify_events, event_starts, first_rows

_EPSILON = 0.1
_SCORES = 12  # different scores, of which the last is the highest


class Population(NamedTuple):
    """Rows of two events that occur together or alone.

    Attributes:
        score: (scores,) share of the rows.
        both: (scores,) probability that a row counts for both events, and not for one of them alone.
        first: (scores,) otherwise, the probability that it counts for the first event; else it counts for the second.
        risks: (events, scores) the probability of a loss.
    """

    score: NDArray[np.float64]
    both: NDArray[np.float64]
    first: NDArray[np.float64]
    risks: NDArray[np.float64]

    def counts(self) -> NDArray[np.float64]:
        """Returns (events, scores) the probability that a row counts."""
        return np.stack([self.both + (1 - self.both) * one for one in (self.first, 1 - self.first)])

    def true_risks(self) -> NDArray[np.float64]:
        """Returns (events, scores) the risk of the rows with at least this score, given that they count."""
        mass = (self.counts() * self.score)[:, ::-1]
        return (np.cumsum(mass * self.risks[:, ::-1], axis=1) / np.cumsum(mass, axis=1))[:, ::-1]

    def draw(self, random: np.random.Generator, rows: int) -> tuple[NDArray[np.float64], list[Any], list[Any]]:
        """Returns scores, and for each event whether rows count and whether they are lost.

        The losses of both events agree as often as they can.
        """
        scores = random.choice(_SCORES, rows, p=self.score)
        both, first, luck = random.random((3, rows))
        in_both, in_first = both < self.both[scores], first < self.first[scores]
        counts = [in_both | in_first, in_both | ~in_first]
        return scores.astype(np.float64), counts, [luck < risk[scores] for risk in self.risks]


@st.composite
def populations(draw: st.DrawFn) -> Population:
    """Risks near epsilon, which may cross it several times and at different scores for the two events."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    score, both, first = random.dirichlet(np.ones(_SCORES)), random.random(_SCORES), random.random(_SCORES)
    around = draw(st.sampled_from([0.7, 1.0, 1.15]))
    return Population(score, both, first, np.clip(around * _EPSILON * 2 * random.random((2, _SCORES)), 0, 1))


def _broken(
    population: Population, deltas: tuple[float, float], trials: int, seed: int, rows: int = 250
) -> NDArray[np.bool_]:
    """Returns (trials, events) whether a certificate was given although the event's risk is above epsilon."""
    random, true = np.random.default_rng(seed), population.true_risks()
    broken = np.zeros((trials, 2), np.bool_)
    for trial in range(trials):
        scores, counts, losses = population.draw(random, rows)
        part = np.arange(rows) < 40
        rest = ~part
        sizes = [int((rest & one).sum()) for one in counts]
        starts = event_starts([scores[part & one] for one in counts], sizes, [(_EPSILON, delta) for delta in deltas])
        found = certify_events(
            {
                str(number): EventRows(scores[rest & one], lost[rest & one], _EPSILON, delta)
                for number, (one, lost, delta) in enumerate(zip(counts, losses, deltas, strict=True))
            },
            starts=starts,
            seed=trial,
        )
        if found.threshold is not None:
            lowest = int(np.ceil(found.threshold))
            broken[trial] = true[:, lowest] > _EPSILON
    return broken


def _allowed(broken: NDArray[np.bool_], delta: float) -> bool:
    """Returns whether the count is no more than chance explains, at one in 100,000."""
    return float(cdf(len(broken) - broken.sum(), len(broken), 1 - delta)) > 1e-5


@settings(max_examples=3, deadline=None)
@given(populations(), st.integers(0, 2**32))
def test_promises_about_two_events_hold_together(population: Population, seed: int) -> None:
    broken = _broken(population, (0.2, 0.2), trials=100, seed=seed)
    assert _allowed(broken.any(axis=1), 0.2)


@settings(max_examples=3, deadline=None)
@given(populations(), st.integers(0, 2**32))
def test_each_promise_has_its_own_delta(population: Population, seed: int) -> None:
    broken = _broken(population, (0.05, 0.4), trials=100, seed=seed)
    assert _allowed(broken[:, 0], 0.05)
    assert _allowed(broken[:, 1], 0.4)


def test_error_rate_reaches_delta_at_the_limit() -> None:
    """Both risks are just above epsilon from the first test on: the bound is close to what happens."""
    flat = np.ones(_SCORES)
    population = Population(flat / _SCORES, flat, flat, np.stack([flat * _EPSILON * 1.001, flat * 0]))
    broken = _broken(population, (0.2, 0.2), trials=300, seed=1)
    assert 0.08 < broken.any(axis=1).mean() <= 0.2


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([None, (Start(0.7, 0.6), Start(0.2, 0.4))]), st.booleans())
def test_one_event_is_certified_like_its_rows_alone(seed: int, starts: Any, graded: bool) -> None:
    random = np.random.default_rng(seed)
    scores = np.round(random.random(300), 2)
    losses = (random.random(300) < 0.15 * (1 - scores)) * (random.random(300) if graded else 1)
    found = certify_events({"missed": EventRows(scores, losses, 0.1, 0.1)}, starts=starts, seed=seed)
    alone = certify(scores, losses, 0.1, 0.1, starts=starts, seed=seed, fewest_rows=first_rows(0.1, 0.1))
    assert (found.certified, found.threshold, found.n, found.n_needed) == (
        alone.certified, alone.threshold, alone.n, alone.n_needed,
    )  # fmt: skip
    assert (found.events["missed"].kept, found.events["missed"].risk_upper) == (alone.kept, alone.risk_upper)


@settings(max_examples=30, deadline=None)
@given(populations(), st.integers(0, 2**32))
def test_another_promise_never_loosens_the_threshold(population: Population, seed: int) -> None:
    scores, counts, losses = population.draw(np.random.default_rng(seed), 400)
    starts = (Start(9.0, 0.5), Start(4.0, 0.5))
    rows = {
        str(number): EventRows(scores[one], lost[one], _EPSILON, 0.1)
        for number, (one, lost) in enumerate(zip(counts, losses, strict=True))
    }
    both = certify_events(rows, starts=starts)
    for name, one in rows.items():
        alone = certify_events({name: one}, starts=starts)
        if both.threshold is not None:
            assert alone.threshold is not None
            assert alone.events[name].kept >= both.events[name].kept  # thresholds between the same rows may differ
            assert (both.events[name].risk_upper or 1) <= _EPSILON
        weaker = certify_events({**rows, name: replace(one, epsilon=0.2)}, starts=starts)
        _no_stricter(weaker, both)
        _no_stricter(certify_events({**rows, name: replace(one, delta=0.3)}, starts=starts), both)


def _no_stricter(loose: EventsResult, strict: EventsResult) -> None:
    assert loose.kept >= strict.kept
    assert loose.threshold is not None or strict.threshold is None


@pytest.mark.parametrize("frames_with_object", [0, 1, 20, 500])
@pytest.mark.parametrize("share", [0.001, 0.03, 0.5])
@pytest.mark.parametrize("event", ["missed", "invented"])
def test_detector_that_reports_nothing_is_never_certified(share: float, frames_with_object: int, event: str) -> None:
    """However rare the objects are: frames without them prove nothing."""
    random = np.random.default_rng(frames_with_object)
    frames = round(frames_with_object / share)
    reported = np.zeros(frames, np.bool_)
    present = np.arange(frames) < frames_with_object
    counts = present if event == "missed" else reported
    for scores in (np.zeros(frames), random.random(frames), random.random(frames) + present):
        rows = EventRows(scores[counts], (present != reported)[counts].astype(float), 0.3, 0.3)
        for starts in (None, (Start(0.5, 1.0),)):
            found = certify_events({event: rows}, starts=starts)
            assert not found.certified
            assert found.n == (frames_with_object if event == "missed" else 0)
            assert found.events[event].n_needed == max(4 - found.n, 0)  # 0.7 ** 4 < 0.3


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.002, 0.1, 0.6]))
def test_detector_that_lost_one_class_is_never_certified_for_it(seed: int, share: float) -> None:
    """The other class is always found, and the lost one is not known to be lost by any score."""
    random = np.random.default_rng(seed)
    scores, found, lost = random.random(4000), random.random(4000) < 0.5, random.random(4000) < share
    events = {
        "missed found": EventRows(scores[found], np.zeros(found.sum()), 0.1, 0.1),
        "missed lost": EventRows(scores[lost], np.ones(lost.sum()), 0.1, 0.1),
    }
    assert certify_events({"missed found": events["missed found"]}).certified
    starts = (Start(0.9, 0.5), Start(0.5, 0.4), Start(0.0, 0.1))
    assert not certify_events(events, starts=starts).certified
