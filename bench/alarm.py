"""How often do the audits alarm falsely, and how soon do they find a shift? Measured on streams of known risk.

    python bench/alarm.py [--runs N]

Every run is a device's stream of audited answers. In the constant streams all answers are audited alike. In the varying
ones a fifth of the answers is hard, six times as likely to be wrong as the others, and audited five times as often;
the risk named is that of all kept answers. Before a shift the risk is half of epsilon. What the shipped test does is
computed here for all runs at once, and compared with `audit.update` on one of them. Prints every figure, and writes
them to bench/results/alarm.json. Half a minute on one core.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator

import numpy as np
from figures import Figure, report
from routing.audits import Floats, Stream, Tests, check_against_update, constant, delays
from routing.margins import most

from firstline_core.routing import audit

_DELTA = 0.05
_EPSILONS = (0.02, 0.05)
_AUDITS = 20_000
_QUIET = (0, 10_000)
_FACTORS = (2, 3)
_FOUND = 0.99
_HARD, _PROPENSITIES, _RISKS = 0.2, (0.02, 0.1), (0.5, 3.0)  # of easy and hard answers; risks in those of all
_DEVICES = 20
_ECHOES = 0.17  # of the audits, where 20 devices audit 2 % each: those of a moment in which another device audited too
_SEED = 20261121


def slowly(audits: int) -> float:
    """Waits longer than the shipped weights do: 1 / (1 + ln(1 + audits))."""
    return 1 / (1 + math.log1p(audits))


def varying(random: np.random.Generator, runs: int, *, weighted: bool = True) -> Stream:
    audited = (1 - _HARD) * _PROPENSITIES[0], _HARD * _PROPENSITIES[1]
    hard_share = audited[1] / sum(audited)
    propensities, risks = np.array(_PROPENSITIES), np.array(_RISKS)

    def draw(risk: float) -> tuple[Floats, Floats]:
        hard = (random.random(runs) < hard_share).astype(np.intp)
        losses = (random.random(runs) < risk * risks[hard]).astype(np.float64)
        return losses, min(_PROPENSITIES) / propensities[hard] if weighted else np.ones(runs)

    return draw


def echoing(random: np.random.Generator, runs: int) -> Stream:
    """One state for devices that watch one scene: some audits are of the moment before, and err as that one did."""
    ones, last = np.ones(runs), np.zeros(runs)

    def draw(risk: float) -> tuple[Floats, Floats]:
        fresh = random.random(runs) >= _ECHOES
        last[fresh] = random.random(fresh.sum()) < risk
        return last, ones

    return draw


def false_alarms(epsilon: float, runs: int) -> Iterator[Figure]:
    allowed = most(runs, _DELTA)
    random = np.random.default_rng(_SEED)
    streams = {
        "constant propensity": (constant(random, runs), True),
        "varying propensity": (varying(random, runs), True),
        "varying propensity, not weighted, which is not valid": (varying(random, runs, weighted=False), False),
        f"{_ECHOES:.0%} of audits repeat the one before, which is not valid": (echoing(random, runs), False),
    }
    for name, (stream, aimed) in streams.items():
        found, _ = delays(Tests(epsilon, (runs,)), _DELTA, stream, (0, 0), (epsilon, _AUDITS))
        alarms = int(np.isfinite(found).sum())
        yield Figure(
            f"risk of exactly {epsilon:.0%}, {_AUDITS} audits, {name}: false alarms",
            alarms / runs,
            "share of runs",
            f"<= {allowed / runs:g}, that is {_DELTA:g} and its binomial margin over {runs} runs" if aimed else None,
            alarms <= allowed if aimed else None,
        )


def shifts(epsilon: float, factor: int, quiet: int, runs: int) -> Iterator[Figure]:
    within = round(100 / epsilon)
    one_bet = (audit.begin(epsilon).bets[2],)
    tests: dict[str, tuple[Tests, Callable[[np.random.Generator, int], Stream]]] = {
        "": (Tests(epsilon, (runs,)), constant),
        ", varying propensity": (Tests(epsilon, (runs,)), varying),
        ", single start": (Tests(epsilon, (runs,), None), constant),
        ", weights of 1 / (1 + ln(k + 1))": (Tests(epsilon, (runs,), slowly), constant),
        ", one bet, for odds of 3": (Tests(epsilon, (runs,), bets=one_bet), constant),
    }
    for name, (test, kind) in tests.items():
        stream = kind(np.random.default_rng(_SEED), runs)
        found, early = delays(test, _DELTA, stream, (epsilon / 2, quiet), (factor * epsilon, within))
        what = f"{epsilon:.0%} promised, {factor * epsilon:.0%} after {quiet} quiet audits{name}"
        share = float(np.isfinite(found).mean())
        aim = None if name else f">= {_FOUND}"
        yield Figure(f"{what}: found within {within}", share, "share of runs", aim, share >= _FOUND if aim else None)
        middle = float(np.sort(found)[len(found) // 2])
        yield Figure(f"{what}: median delay", middle if math.isfinite(middle) else None, "audits")
        if quiet and not name:
            share = float(early.mean())
            yield Figure(f"{what}: alarms before the shift", share, "share of runs", f"<= {_DELTA}", share <= _DELTA)


def pooling(runs: int) -> Iterator[Figure]:
    """One state for all devices' audits, beside e-values of each device that are averaged or multiplied."""
    epsilon, rounds = 0.05, 1_500
    risks = {
        "all devices at 10%": np.full(_DEVICES, 2 * epsilon),
        "one device at 25%": np.append(np.full(_DEVICES - 1, epsilon / 2), 5 * epsilon),
        "all at exactly 5%": np.full(_DEVICES, epsilon),
        "all at exactly 5%, erring together": np.full(_DEVICES, epsilon),
    }
    for name, risk in risks.items():
        random = np.random.default_rng(_SEED)
        each, one, apart = Tests(epsilon, (runs, _DEVICES)), Tests(epsilon, (runs,)), Tests(epsilon, (runs,))
        found = {
            way: np.full(runs, np.inf)
            for way in (
                "one state",
                "one state, one audit of each moment",
                "average",
                "devices' own alarms at delta / 20",
                "product",
            )
        }
        ones = np.ones(runs)
        for at in range(1, rounds + 1):
            drawn = random.random((runs, 1 if "together" in name else _DEVICES))
            losses = (np.broadcast_to(drawn, (runs, _DEVICES)) < risk).astype(np.float64)
            e_values = each.update(losses, np.ones(1))
            pooled = np.max([one.update(losses[:, device], ones) for device in range(_DEVICES)], axis=0)
            # Whichever device comes first: it is chosen before its loss is known.
            spaced = apart.update(losses[:, at % _DEVICES], ones)
            with np.errstate(over="ignore"):
                reached = (
                    pooled,
                    spaced,
                    e_values.mean(axis=1),
                    e_values.max(axis=1) / _DEVICES,
                    e_values.prod(axis=1),
                )
            for firsts, e_value in zip(found.values(), reached, strict=True):
                firsts[(e_value * _DELTA >= 1) & np.isinf(firsts)] = at
        for way, firsts in found.items():
            what = f"{_DEVICES} devices, 5% promised, {name}: {way}"
            yield Figure(f"{what}: alarms within {rounds}", float(np.isfinite(firsts).mean()), "share of runs")
            if "exactly" not in name:
                middle = float(np.sort(firsts)[runs // 2])
                yield Figure(f"{what}: median delay", middle if math.isfinite(middle) else None, "audits of a device")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="streams of each kind (default: %(default)s)")
    runs = parser.parse_args().runs
    for epsilon in _EPSILONS:
        check_against_update(epsilon, varying(np.random.default_rng(_SEED), 1), min(_PROPENSITIES))
    figures: list[Figure] = []
    for epsilon in _EPSILONS:
        figures += false_alarms(epsilon, runs)
        for factor in _FACTORS:
            for quiet in _QUIET:
                figures += shifts(epsilon, factor, quiet, runs)
    figures += pooling(max(runs // 5, 1))
    return report("alarm", figures)


if __name__ == "__main__":
    sys.exit(main())
