"""Certification: the loosest threshold whose risk among edge answers is at most epsilon, with confidence 1 - delta.

An edge answer is accepted ("kept") if and only if its score is at least the threshold. The risk is the mean loss of an
answer, given that it is kept. Rows must be exchangeable with future ones: a random sample, and not used before to
choose model, score or temperature.

Hypotheses are "the risk at this threshold is above epsilon", one for every number, from strict to loose. Thresholds
between two neighbouring scores keep the same rows, so that each occurring score represents all down to the next one,
and rows of equal score are kept or dropped together. Given how many rows a threshold keeps, the errors among them are
binomial, which makes Clopper-Pearson exact (`bounds.py`). `rejected_ranges` bounds the error of the multiple tests.

Testing starts at a few thresholds, each with its share of delta. It cannot start at the strictest threshold, which
keeps one row and proves nothing. Most of delta starts at 20 % kept, which is best on real pairs of models. The rest
serves edge models that are good on few answers, or on nearly all.

The starts must not depend on the losses tested, nor on epsilon and delta. Taken from a selection part, or given, they
are fixed numbers, and the guarantee holds for any score and any risk. Without a selection part the starts are ranks:
the first test keeps an exact number of the most certain rows, with ties broken at random; the next
tests are of whole thresholds. If the most certain rows of all tie, all of them form the start. The guarantee holds for
any shape of the risk (`docs/concepts/proof.md`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from firstline_core.errors import ConfigError
from firstline_core.routing import binomial, bounds


class RejectedRange(NamedTuple):
    """Consecutive hypotheses that were rejected at one level.

    Attributes:
        first, last: positions.
        level: of the rejection.
    """

    first: int
    last: int
    level: float


def rejected_ranges(
    count: int, starts: Sequence[tuple[int, float]], delta: float, p_values: Callable[[int, int], NDArray[np.float64]]
) -> list[RejectedRange]:
    """Tests hypotheses 0 to count - 1 in this order.

    Each start adds its share of delta. A rejected hypothesis passes its level on to the next one; otherwise the level
    is used up, and testing continues at the next start. With one start this is fixed-sequence testing. The probability
    that any true hypothesis is rejected is at most delta, whatever the dependence between the p-values, if order and
    shares do not depend on what is tested (Wiens 2003, "A Fixed Sequence Bonferroni Procedure"; Wiens and Dmitrienko
    2005). Angelopoulos et al. 2021, "Learn then Test", control risks in this way.

    Args:
        count: number of hypotheses.
        starts: (position, share of delta), positions ascending, shares of at most 1 in all.
        delta: probability of any false rejection.
        p_values: returns those of hypotheses first to last - 1; called only for hypotheses that are tested.

    Returns:
        The rejected hypotheses, in order.
    """
    found: list[RejectedRange] = []
    carried = 0.0
    for (first, share), (last, _) in pairwise([*starts, (count, 0.0)]):
        level = carried + share * delta
        failed = np.flatnonzero(p_values(first, last) > level)
        stop = first + int(failed[0]) if failed.size else last
        if stop > first:
            found.append(RejectedRange(first, stop - 1, level))
        carried = level if stop == last else 0.0
    return found


_MAIN = 0.2
MAIN_SHARE = 0.86
"""Share of delta of the main start."""

START_SHARES = ((0.05, 0.08), (_MAIN, MAIN_SHARE), (0.5, 0.03), (1.0, 0.03))
"""(share of the rows kept, share of delta)."""

FEWEST_ROWS = 60
"""Minimum number of rows of a start: 59 rows without error prove 5 % at 95 % confidence."""

_CELL_BITS = 20  # bits of a score that count: a float32 has 24, of which sums over many classes lose some


class Start(NamedTuple):
    """A threshold at which testing starts, with its share of delta."""

    threshold: float
    share: float


def start_shares(rows: int, fewest_rows: int = FEWEST_ROWS) -> tuple[tuple[float, float], ...]:
    """Returns `START_SHARES` for a number of rows; a start that would keep too few rows is merged into the main one."""
    fewest = min(fewest_rows / max(rows, 1), 1.0)
    return tuple((share if share >= fewest else max(fewest, _MAIN), of_delta) for share, of_delta in START_SHARES)


def ranks(rows: int, fewest_rows: int = FEWEST_ROWS) -> dict[int, float]:
    """Returns the number of rows that each start keeps, with its share of delta."""
    at: dict[int, float] = {}
    for kept, share in start_shares(rows, fewest_rows):
        rank = _rank(kept, rows)
        at[rank] = at.get(rank, 0.0) + share
    return at


def cells_of(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns equal numbers for scores that differ only by rounding, in the order of the scores.

    The most certain answers of a quantised softmax share one step of 1/256, but normalisation changes their last
    digits.
    """
    mantissas, exponents = np.frexp(scores)
    cells: NDArray[np.float64] = np.ldexp(np.rint(mantissas * 2**_CELL_BITS), exponents)
    return cells


def starts_at(scores: ArrayLike, shares: Sequence[tuple[float, float]] = START_SHARES) -> tuple[Start, ...]:
    """Returns the thresholds that keep these shares of the rows, or more if scores tie.

    Args:
        scores: (n,); a row with NaN is never kept.
        shares: (share of the rows kept, share of delta); those of delta are added for equal thresholds.
    """
    found = np.asarray(scores, np.float64)
    descending = np.sort(found[~np.isnan(found)])[::-1]
    at: dict[float, float] = {}
    if descending.size:
        for kept, share in shares:
            threshold = float(descending[min(_rank(kept, len(found)), len(descending)) - 1])
            at[threshold] = at.get(threshold, 0.0) + share
    return tuple(Start(threshold, min(share, 1.0)) for threshold, share in at.items())


def _rank(share: float, rows: int) -> int:
    return max(math.ceil(share * rows - 1e-9), 1)


Floats = NDArray[np.float64]

_BETTING_ROWS = 5000  # above this, betting is slow and Hoeffding-Bentkus is nearly as powerful


@dataclass(frozen=True, slots=True)
class CertificationResult:
    """The result of a certification.

    Attributes:
        certified: whether any threshold is certified.
        threshold: the loosest certified one, half-way to the next lower score; None without one.
        kept: share of the `n` rows with a score of at least the threshold.
        risk_upper: upper confidence bound of the risk at the threshold, at the level at which it was tested; at most
            epsilon. None if nothing is certified.
        n: number of rows of the certification.
        n_needed: if nothing is certified, the smallest number of additional error-free rows that a start would have to
            keep. 0 with a threshold.
    """

    certified: bool
    threshold: float | None
    kept: float
    risk_upper: float | None
    n: int
    n_needed: int


def uncertified(n: int, n_needed: int) -> CertificationResult:
    """Returns the result of a certification without any certified threshold."""
    return CertificationResult(certified=False, threshold=None, kept=0.0, risk_upper=None, n=n, n_needed=n_needed)


def certify(
    scores: ArrayLike,
    losses: ArrayLike,
    epsilon: float,
    delta: float,
    *,
    seed: int = 0,
    starts: Sequence[Start] | None = None,
    fewest_rows: int = FEWEST_ROWS,
) -> CertificationResult:
    """Finds the loosest threshold that the rows certify.

    Losses of 0 and 1 are tested exactly; others by betting, or by Hoeffding-Bentkus for many rows.

    Args:
        scores: (n,), higher means keep; NaN is never kept.
        losses: (n,) in [0, 1]: the loss of each answer if kept.
        epsilon: the bound of the risk, above 0 and below 1.
        delta: probability that the bound does not hold, above 0 and below 1.
        seed: of tie-breaking at a start, and of the order of bets.
        starts: instead of ranks; they must not come from these rows.
        fewest_rows: minimum number of rows of a start.

    Raises:
        ConfigError: arguments out of range, or of different lengths.
    """
    score_array, loss_array = check_rows(scores, losses, epsilon, delta)
    check_starts(starts or ())
    tests = RiskTests.of(score_array, loss_array, epsilon, delta, seed=seed)
    hypotheses = at_ranks(tests, fewest_rows) if starts is None else at_thresholds([tests], starts)
    proof = prove([tests], hypotheses)
    if proof is None:
        needed = missing([tests], hypotheses, binomial.rows_needed(0, epsilon, delta))
        return uncertified(tests.n, needed)
    return CertificationResult(True, proof.threshold, proof.kept[0] / tests.n, proof.risk_upper[0], tests.n, 0)


def split(n: int, fraction: float, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Returns the positions of the selection part and of the certification part: a random partition, both ascending."""
    order = np.random.default_rng(seed).permutation(n)
    cut = round(n * fraction)
    return np.sort(order[:cut]), np.sort(order[cut:])


def check_rows(scores: ArrayLike, losses: ArrayLike, epsilon: float, delta: float) -> tuple[Floats, Floats]:
    """Returns scores and losses as arrays.

    Raises:
        ConfigError: arguments out of range, or of different lengths; see `certify`.
    """
    score_array, loss_array = np.asarray(scores, np.float64), np.asarray(losses, np.float64)
    if score_array.ndim != 1 or score_array.shape != loss_array.shape:
        raise ConfigError(
            f"Scores of shape {list(score_array.shape)} and losses of shape {list(loss_array.shape)} are not one each "
            "a row."
        )
    inside = (loss_array >= 0) & (loss_array <= 1)
    if not inside.all():
        row = int(np.argmin(inside))
        raise ConfigError(f"The loss of row {row} is {loss_array[row]:g}; a loss is 0 to 1.")
    check_share("epsilon", epsilon)
    check_share("delta", delta)
    return score_array, loss_array


def check_share(name: str, value: float) -> None:
    """Raises ConfigError for a value that is not above 0 and below 1."""
    if not 0 < value < 1:
        raise ConfigError(f"{name} is {value:g}, but must be above 0 and below 1; write 5 % as 0.05.")


def check_starts(starts: Sequence[Start]) -> None:
    """Raises ConfigError if the shares of delta add up to more than 1."""
    if (shares := sum(start.share for start in starts)) > 1 + 1e-9:
        raise ConfigError(f"The starts share out {shares:g} of delta; together they have at most 1.")


class Hypotheses(NamedTuple):
    """The hypotheses of one or several tests, from strict to loose, and where testing begins.

    Attributes:
        kept: for each test, (hypotheses,) number of its rows that each hypothesis keeps.
        lowest: (hypotheses,) the lowest known threshold that keeps exactly these rows.
        whole: (hypotheses,) whether it is a threshold, in contrast to a start at a rank.
        places: (position, share of delta), ascending.
    """

    kept: Sequence[NDArray[np.intp]]
    lowest: Floats
    whole: NDArray[np.bool_]
    places: list[tuple[int, float]]


def at_thresholds(tests: Sequence[RiskTests], starts: Sequence[Start]) -> Hypotheses:
    """Returns the hypotheses from given thresholds through every score."""
    own = [start.threshold for start in starts]
    thresholds = np.unique(np.concatenate([*(test.descending for test in tests), own]))[::-1]
    kept = [np.searchsorted(-test.descending, -thresholds, side="right") for test in tests]
    places = [(int(np.searchsorted(-thresholds, -start.threshold)), start.share) for start in starts]
    return Hypotheses(kept, thresholds, np.ones(len(thresholds), np.bool_), sorted(places))


def at_ranks(test: RiskTests, fewest_rows: int) -> Hypotheses:
    """Returns the hypotheses from ranks of the most certain rows, ties in the given order, through every score.

    A start within the cell of the highest scores keeps the whole cell, which makes it a threshold. So does a start that
    keeps all rows with a score.
    """
    descending = test.descending
    if not len(descending):
        return Hypotheses([np.zeros(0, np.intp)], np.zeros(0), np.zeros(0, np.bool_), [])
    # Compared, not subtracted: infinite scores tie too.
    ends = np.append(np.flatnonzero(descending[1:] < descending[:-1]) + 1, len(descending))
    cells = cells_of(descending)
    surest = int(np.searchsorted(-cells, -cells[0], side="right"))
    shares = ranks(test.n, fewest_rows)
    starts = {rank: min(max(rank, surest), len(descending)) for rank in shares}
    cuts = [rank for rank in starts.values() if surest < rank < len(descending)]
    kept = np.concatenate([ends, np.array(cuts, np.intp)])
    whole = np.arange(len(kept)) < len(ends)
    order = np.lexsort((~whole, kept))
    kept, whole = kept[order], whole[order]
    places: dict[int, float] = {}
    for rank, share in shares.items():
        begun = starts[rank]
        at = int(np.searchsorted(kept, begun, side="right")) - 1 if begun in cuts else int(np.searchsorted(kept, begun))
        places[at] = min(places.get(at, 0.0) + share, 1.0)
    return Hypotheses([kept], descending[kept - 1], whole, sorted(places.items()))


@dataclass(frozen=True, slots=True, eq=False)
class RiskTests:
    """Tests of "the mean loss of the rows that a threshold keeps is above epsilon", for every number of kept rows.

    Attributes:
        descending: (rated,) scores, the highest first, ties at random; rows with NaN are absent.
        losses: (rated,) in this order.
        random_order: (rated,) permutation: bets must not follow the order of scores.
        epsilon: the bound of the risk.
        delta: the largest level of any test.
        n: number of rows, those with NaN included.
    """

    descending: Floats
    losses: Floats
    random_order: NDArray[np.intp]
    epsilon: float
    delta: float
    n: int

    @classmethod
    def of(cls, scores: Floats, losses: Floats, epsilon: float, delta: float, *, seed: int) -> RiskTests:
        """Orders the rows; the seed breaks ties and orders the bets."""
        rated = len(scores) - int(np.isnan(scores).sum())
        random = np.random.default_rng(seed)
        order = np.lexsort((losses, -scores))[:rated]  # NaN sorts last; the order of the rows has no influence
        order = order[np.lexsort((random.permutation(rated), -scores[order]))]  # breaks ties at random
        return cls(scores[order], losses[order], random.permutation(rated), epsilon, delta, len(scores))

    def errors(self, kept: NDArray[np.intp]) -> Floats:
        """Returns the sum of the losses of the first rows, for each number of them."""
        return np.concatenate([[0.0], np.cumsum(self.losses)])[kept]

    def p_values(self, kept: NDArray[np.intp]) -> Floats:
        """Returns the p-values of consecutive hypotheses, from strict to loose.

        After the first one that is above `delta` they may all be 1, because testing ends there.

        Args:
            kept: (hypotheses,) number of rows that each keeps, ascending.
        """
        found = np.ones(len(kept))
        errors = self.errors(kept)
        below_epsilon = np.append(errors < self.epsilon * kept, False)
        testable = int(np.argmin(below_epsilon))  # a risk above epsilon on these rows ends the test
        if self._exact:
            # More kept rows without another error only lower the p-value: compute it only where errors are added.
            steps = np.flatnonzero(np.diff(errors[:testable], prepend=-1) > 0)
            tested = binomial.cdf(errors[steps], kept[steps], self.epsilon)
            found[:testable] = np.repeat(tested, np.diff(np.append(steps, testable)))
        elif not self._by_betting:
            found[:testable] = bounds.hoeffding_bentkus(errors[:testable], kept[:testable], self.epsilon)
        else:
            for at in range(testable):
                found[at] = bounds.betting(self._kept_losses(kept[at]), self.epsilon)
                if found[at] > self.delta:
                    break
        return found

    def upper_bound(self, kept: int, level: float) -> float:
        """Returns the upper confidence bound of the risk among the first `kept` rows, at most epsilon."""
        errors = float(self.losses[:kept].sum())
        if self._exact:
            risk = bounds.clopper_pearson(round(errors), kept, level)
        elif not self._by_betting:
            risk = bounds.upper_bound(lambda mean: float(bounds.hoeffding_bentkus(errors, kept, mean)), level)
        else:
            risk = bounds.upper_bound(lambda mean: bounds.betting(self._kept_losses(kept), mean), level)
        return min(risk, self.epsilon)

    def missing(self, kept: int, level: float) -> int:
        """Returns the fewest additional rows without error that would make the first `kept` rows pass at a level."""
        errors = math.ceil(float(self.errors(np.array([kept], np.intp))[0]))
        return binomial.rows_needed(errors, self.epsilon, level) - kept

    @property
    def _exact(self) -> bool:
        return bool(((self.losses == 0) | (self.losses == 1)).all())

    @property
    def _by_betting(self) -> bool:
        return self.n <= _BETTING_ROWS

    def _kept_losses(self, kept: int) -> Floats:
        return self.losses[:kept][np.argsort(self.random_order[:kept])]


class Proof(NamedTuple):
    """The loosest threshold that tests have proved.

    Attributes:
        threshold: half-way to the next lower score.
        kept: for each test, number of its rows that the threshold keeps.
        risk_upper: for each test, upper confidence bound of the risk among them, at the level of the proof.
    """

    threshold: float
    kept: list[int]
    risk_upper: list[float]


def prove(tests: Sequence[RiskTests], hypotheses: Hypotheses) -> Proof | None:
    """Tests "the risk of any of them is above its epsilon" for each hypothesis; returns None if nothing is proved.

    The p-value of a hypothesis is the largest of the tests' p-values. Those of tests with different deltas are divided
    by their delta, so that the levels are in proportion to them.
    """
    delta = max(test.delta for test in tests)

    def p_values(first: int, last: int) -> Floats:
        scaled = [
            test.p_values(kept[first:last]) * (delta / test.delta)
            for test, kept in zip(tests, hypotheses.kept, strict=True)
        ]
        largest: Floats = np.maximum.reduce(scaled)
        return largest

    proven = [
        (at, rejected.level)
        for rejected in rejected_ranges(len(hypotheses.lowest), hypotheses.places, delta, p_values)
        for at in np.flatnonzero(hypotheses.whole[: rejected.last + 1])[-1:].tolist()
        if at >= rejected.first
    ]
    if not proven:
        return None
    at, level = proven[-1]
    rows = [int(kept[at]) for kept in hypotheses.kept]
    below = [
        float(test.descending[kept]) for test, kept in zip(tests, rows, strict=True) if kept < len(test.descending)
    ]
    threshold = between(max(below, default=None), float(hypotheses.lowest[at]))
    upper = [test.upper_bound(kept, level * test.delta / delta) for test, kept in zip(tests, rows, strict=True)]
    return Proof(threshold, rows, upper)


def missing(tests: Sequence[RiskTests], hypotheses: Hypotheses, default: int) -> int:
    """Returns how many more rows without error a start would need for a proof, at least 1; `default` without starts."""
    needed = [
        max(test.missing(int(kept[at]), share * test.delta) for test, kept in zip(tests, hypotheses.kept, strict=True))
        for at, share in hypotheses.places
    ]
    return max(min(needed, default=default), 1)


def between(below: float | None, lowest: float) -> float:
    """Returns a threshold that keeps `lowest` and not `below`, the next lower score (None without one).

    It is half-way and rounded, so that the last digit of a score, which differs between processors, has no effect.
    """
    if below is None:
        return lowest
    middle = below / 2 + lowest / 2
    for candidate in (round(middle, 6), middle):
        if below < candidate <= lowest:
            return candidate
    return lowest
