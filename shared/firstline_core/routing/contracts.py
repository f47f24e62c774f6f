"""Contracts on the whole stream of answers, on groups, on events, and on rows with different sampling probabilities."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from firstline_core.errors import ConfigError
from firstline_core.routing import binomial, bounds, certification

_STEPS = 100
_WALKED = 5000  # with more rows, a part of them places the thresholds

Group = TypeVar("Group", bound=Hashable)


def net_loss(edge_right: ArrayLike, full_right: ArrayLike) -> NDArray[np.float64]:
    """Returns the accuracy lost by each edge answer: 1 if only the full model is right, -1 if only the edge is.

    Args:
        edge_right: (n,) whether the edge model's answer is right; 1 - loss for losses between 0 and 1.
        full_right: (n,) the same of the full model's.
    """
    return np.asarray(full_right, np.float64) - np.asarray(edge_right, np.float64)


def certify_stream(
    scores: ArrayLike,
    net_losses: ArrayLike,
    epsilon: float,
    delta: float,
    *,
    seed: int = 0,
    grid: ArrayLike | None = None,
) -> certification.CertificationResult:
    """Finds the loosest threshold at which the tiered accuracy is at most epsilon below the full model's.

    The test is paired: the loss of a row is the accuracy lost by accepting it, and 0 if it is escalated, so that its
    mean over all rows is the difference of the two accuracies. It lies in -1 to 1; (1 + loss) / 2 is tested by betting.
    Thresholds are tested from strict to loose up to the first failure. All of delta starts at the threshold that
    accepts nothing, which loses nothing, so that noise does not stop the test there. With a grid the thresholds accept
    1, 2, ... 100 % of it; without one every score is a threshold. Either way testing starts at a fixed number and skips
    no threshold, so the guarantee holds for any score. Many rows give up a small part as the grid, because each test
    uses all rows.

    Args:
        scores: (n,), higher means keep; NaN is never kept.
        net_losses: (n,) in [-1, 1]: see `net_loss`.
        epsilon: bound of the accuracy given up, above 0 and below 1.
        delta: probability that the bound does not hold, above 0 and below 1.
        seed: of the split and of the order of bets.
        grid: scores that place the thresholds; they must not come from these rows.

    Raises:
        ConfigError: arguments out of range, or of different lengths.
    """
    score_array, net_array = np.asarray(scores, np.float64), np.asarray(net_losses, np.float64)
    if score_array.ndim != 1 or score_array.shape != net_array.shape or not (np.abs(net_array) <= 1).all():
        raise ConfigError("A contract on the stream needs one score and one net loss from -1 to 1 a row.")
    certification.check_share("epsilon", epsilon)
    certification.check_share("delta", delta)
    if grid is None and len(score_array) > _WALKED:
        selection, rest = certification.split(len(score_array), _WALKED / len(score_array) / 10, seed)
        grid, score_array, net_array = score_array[selection], score_array[rest], net_array[rest]
    grid_scores = np.asarray(score_array if grid is None else grid, np.float64)
    order = np.random.default_rng(seed).permutation(len(score_array))
    score_array, net_array = score_array[order], net_array[order]
    candidates = np.sort(grid_scores[~np.isnan(grid_scores)])[::-1]
    # Accepted answers without a net loss have the transformed loss 1/2.
    tested = max((1 + epsilon) / 2, math.nextafter(0.5, 1))  # above the loss, however small epsilon is
    needed = max(bounds.rows_needed_by_betting(0.5, tested, delta) - len(score_array), 1)
    if not len(candidates) or not len(score_array):
        return certification.uncertified(len(score_array), needed)
    if grid is not None:
        candidates = candidates[np.ceil(np.arange(1, _STEPS + 1) / _STEPS * len(candidates)).astype(np.intp) - 1]
    thresholds = np.append(np.inf, np.unique(candidates)[::-1])

    def losses(at: int) -> NDArray[np.float64]:
        found: NDArray[np.float64] = (1 + net_array * (score_array >= thresholds[at])) / 2
        return found

    def p_values(first: int, last: int) -> NDArray[np.float64]:
        found = np.ones(last - first)
        for at in range(first, last):
            found[at - first] = bounds.betting(losses(at), tested)
            if found[at - first] > delta:
                break
        return found

    rejected = certification.rejected_ranges(len(thresholds), [(0, 1.0)], delta, p_values)
    if not rejected or rejected[0].last == 0:
        return certification.uncertified(len(score_array), needed)
    at = rejected[0].last
    lowest = float(thresholds[at])
    kept = score_array >= lowest
    below = score_array[score_array < lowest]
    upper = 2 * bounds.upper_bound(lambda mean: bounds.betting(losses(at), mean), delta) - 1
    threshold = certification.between(float(below.max()) if below.size else None, lowest)
    return certification.CertificationResult(
        True, threshold, float(kept.mean()), min(upper, epsilon), len(score_array), 0
    )


def certify_groups(
    scores: ArrayLike,
    losses: ArrayLike,
    groups: Sequence[Group],
    epsilon: float,
    delta: float,
    *,
    seed: int = 0,
    starts: Mapping[Group, Sequence[certification.Start]] | None = None,
) -> dict[Group, certification.CertificationResult]:
    """Certifies each group (a predicted class, a site); all results hold together with confidence 1 - delta.

    Delta is split evenly over the groups (Bonferroni). Holm's improvement would make the threshold of each group depend
    on the rows of the others, for a small gain.

    Args:
        scores: (n,), as for `certify`.
        losses: (n,), as for `certify`.
        groups: (n,), known before the decision.
        epsilon: risk within each group.
        delta: probability that any of the bounds does not hold.
        seed: as for `certify`.
        starts: per group, as for `certify`; a group without starts uses ranks of its rows.

    Raises:
        ConfigError: as for `certify`.
    """
    score_array, loss_array = np.asarray(scores, np.float64), np.asarray(losses, np.float64)
    if len(groups) != len(score_array):
        raise ConfigError(f"There are {len(score_array)} scores, but {len(groups)} groups; each row has one of each.")
    members: dict[Group, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    return {
        group: certification.certify(
            score_array[rows],
            loss_array[rows],
            epsilon,
            delta / len(members),
            seed=seed,
            starts=(starts or {}).get(group) or None,
        )
        for group, rows in members.items()
    }


def certify_weighted(
    scores: ArrayLike,
    losses: ArrayLike,
    weights: ArrayLike,
    epsilon: float,
    delta: float,
    *,
    select_fraction: float = 0.0,
    seed: int = 0,
) -> certification.CertificationResult:
    """Finds the loosest threshold that the rows certify for the population that they were sampled from.

    For rows that were sampled with different probabilities, such as the audits of a device. A row that was sampled with
    probability p represents 1 / p rows. Its weight w is proportional to that, scaled so that the largest is 1. The risk
    at a threshold is then E[w * loss] / E[w] over the sampled rows that it keeps, and

        risk > epsilon    if and only if    E[y] > epsilon,    y = epsilon + w * (loss - epsilon).

    Each y lies in [0, 1], so that a proof of "the mean of y is at most epsilon" proves the same of the risk: betting,
    or Hoeffding-Bentkus for many rows. Equal weights leave the losses as they are, and the test exact. An upper bound
    of the mean of y below epsilon is also an upper bound of the risk, because E[w] is at most 1.

    The weights must depend on the sampling alone: given its score and weight, the loss of a row must not influence
    whether it was sampled.

    Args:
        scores: (n,), higher means keep.
        losses: (n,) in [0, 1].
        weights: (n,) above 0, in proportion to 1 / propensity.
        epsilon: as for `certify`.
        delta: as for `certify`.
        select_fraction: share of the rows that only places the starts; 0 certifies on all rows.
        seed: of the split, and as for `certify`.

    Returns:
        As `certify` does; `kept` is the share of the population.

    Raises:
        ConfigError: as for `certify`, or an invalid weight.
    """
    certification.check_share("epsilon", epsilon)
    score_array, bounded_losses, shares = _weighted(scores, losses, weights, epsilon)
    certification.check_rows(score_array, bounded_losses, epsilon, delta)
    rest, starts = np.arange(len(score_array)), None
    if select_fraction:
        certification.check_share("the selection fraction", select_fraction)
        selection, rest = certification.split(len(score_array), select_fraction, seed)
        starts = certification.starts_at(score_array[selection], certification.start_shares(len(rest)))
    score_array = score_array[rest]
    found = certification.certify(score_array, bounded_losses[rest], epsilon, delta, seed=seed, starts=starts)
    if found.threshold is None:
        return found
    return replace(found, kept=_kept_share(score_array, shares[rest], found.threshold))


def _weighted(
    scores: ArrayLike, losses: ArrayLike, weights: ArrayLike, epsilon: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Returns scores, losses whose plain mean is tested as `certify_weighted` says, and weights of at most 1."""
    score_array, loss_array, weight_array = (np.asarray(column, np.float64) for column in (scores, losses, weights))
    if score_array.shape != weight_array.shape or score_array.shape != loss_array.shape:
        raise ConfigError(
            f"Scores, losses and weights are one each a row; got {score_array.shape}, {loss_array.shape} and "
            f"{weight_array.shape}."
        )
    if not (np.isfinite(weight_array) & (weight_array > 0)).all():
        raise ConfigError("A weight is a number above 0: one over the probability with which the row was drawn.")
    shares = weight_array / weight_array.max(initial=1e-300)
    return score_array, epsilon + shares * (loss_array - epsilon) if (shares < 1).any() else loss_array, shares


def _kept_share(scores: NDArray[np.float64], weights: NDArray[np.float64], threshold: float) -> float:
    """Returns the share of the population that a threshold keeps."""
    return float(weights[scores >= threshold].sum() / weights.sum())


@dataclass(frozen=True, slots=True, eq=False)
class EventRows:
    """The rows in which an event can occur, and the promise about them.

    Attributes:
        scores: (n,), as for `certify`.
        losses: (n,), as for `certify`: 1 where the event occurred, 0 where it did not.
        epsilon: the bound of the mean loss of the rows that are kept.
        delta: probability that the bound does not hold.
        weights: (n,) of rows with different sampling probabilities, as for `certify_weighted`; None for equal ones.
    """

    scores: ArrayLike
    losses: ArrayLike
    epsilon: float
    delta: float
    weights: ArrayLike | None = None

    def bounded(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Returns scores, losses whose plain mean is tested, and weights of at most 1.

        Raises:
            ConfigError: as for `certify_weighted`.
        """
        scores, losses = certification.check_rows(self.scores, self.losses, self.epsilon, self.delta)
        weights = np.ones(len(scores)) if self.weights is None else self.weights
        return _weighted(scores, losses, weights, self.epsilon)


@dataclass(frozen=True, slots=True)
class EventResult:
    """The result of a promise about one event; see `EventRows` and `CertificationResult`.

    Attributes:
        n_needed: number of additional rows with a score without which no threshold proves the promise, even if no row
            is lost; 0 if there are enough.
    """

    epsilon: float
    delta: float
    n: int
    kept: float
    risk_upper: float | None
    n_needed: int


@dataclass(frozen=True, slots=True)
class EventsResult(certification.CertificationResult):
    """The results of promises about events. `n` and `kept` are of all events' rows, `risk_upper` is the largest.

    Attributes:
        events: by name of the event.
        alone: if nothing is certified, those of several whose promise would be proved without the others.
    """

    events: Mapping[str, EventResult]
    alone: tuple[str, ...] = ()


def certify_events(
    events: Mapping[str, EventRows], *, starts: Sequence[certification.Start] | None = None, seed: int = 0
) -> EventsResult:
    """Finds the loosest threshold at which the promises about all events are proved.

    There is one sequence of thresholds, and one hypothesis for each: "the risk of any event is above its epsilon". Its
    p-value is the largest of the events' p-values: an intersection-union test (Berger 1982, "Multiparameter Hypothesis
    Testing and Acceptance Sampling"). An event's p-value uses only its own rows. So each promise fails with a
    probability of at most its delta, all of them together with at most the largest delta, and no delta is shared out.
    It does not matter whether the same inputs are rows of several events. `docs/concepts/proof.md` has the argument.

    Args:
        events: by name.
        starts: thresholds where testing starts; they must not come from these rows. Only a single event may do
            without: it is then certified from ranks of its rows, as `certify` does.
        seed: as for `certify`.

    Raises:
        ConfigError: as for `certify`; or several events without starts.
    """
    if not events:
        raise ConfigError("A contract about events names at least one of them.")
    if starts is None and len(events) > 1:
        raise ConfigError(
            "Promises about several events need a part of the rows that decides where testing starts; set one "
            "aside with --select 0.1."
        )
    certification.check_starts(starts or ())
    bounded = [rows.bounded() for rows in events.values()]
    tests = [
        certification.RiskTests.of(scores, losses, rows.epsilon, rows.delta, seed=seed)
        for rows, (scores, losses, _) in zip(events.values(), bounded, strict=True)
    ]
    if starts is None:
        hypotheses = certification.at_ranks(tests[0], first_rows(tests[0].epsilon, tests[0].delta))
    else:
        hypotheses = certification.at_thresholds(tests, starts)
    n = sum(test.n for test in tests)
    proof = certification.prove(tests, hypotheses)
    if proof is None:
        few = [max(binomial.rows_needed(0, test.epsilon, test.delta) - len(test.descending), 0) for test in tests]
        results = {
            name: EventResult(test.epsilon, test.delta, test.n, 0.0, None, lacking)
            for name, test, lacking in zip(events, tests, few, strict=True)
        }
        needed = certification.missing(tests, hypotheses, max(few))
        return EventsResult(False, None, 0.0, None, n, needed, results)
    results = {
        name: EventResult(test.epsilon, test.delta, test.n, _kept_share(scores, weights, proof.threshold), upper, 0)
        for name, test, upper, (scores, _, weights) in zip(events, tests, proof.risk_upper, bounded, strict=True)
    }
    kept = sum(result.kept * result.n for result in results.values()) / n
    return EventsResult(True, proof.threshold, kept, max(proof.risk_upper), n, 0, results)


def first_rows(epsilon: float, delta: float) -> int:
    """Returns how many rows of an event are tested first: they prove the promise even with one error among them."""
    return binomial.rows_needed(1, epsilon, certification.MAIN_SHARE * delta)


def event_starts(
    scores: Sequence[ArrayLike], rows: Sequence[int], bounds_of: Sequence[tuple[float, float]]
) -> tuple[certification.Start, ...]:
    """Returns the thresholds where testing of several events starts.

    Each of them keeps, of every event's rows, the share with which `certify` starts, and about `first_rows` of them.

    Args:
        scores: for each event, those of its rows in the part that decides.
        rows: for each event, the number of its rows that certify.
        bounds_of: for each event, epsilon and delta.
    """
    descending = [np.sort(np.asarray(one, np.float64))[::-1] for one in scores]
    lowest = min((float(one[-1]) for one in descending if len(one)), default=None)
    if lowest is None:
        return ()
    fewest = [first_rows(epsilon, delta) for epsilon, delta in bounds_of]
    shares_of = zip(
        *(certification.start_shares(count, least) for count, least in zip(rows, fewest, strict=True)), strict=True
    )
    found: dict[float, float] = {}
    for shares in shares_of:
        places = [
            certification.starts_at(one, [share])[0].threshold if len(one) else lowest
            for one, share in zip(descending, shares, strict=True)
        ]
        found[min(places)] = found.get(min(places), 0.0) + shares[0][1]
    return tuple(certification.Start(threshold, min(share, 1.0)) for threshold, share in found.items())
