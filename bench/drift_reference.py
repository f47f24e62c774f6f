"""What drift of scores is best held against without a control group: certified rows, or the device's day before.

    python bench/drift_reference.py

Stages of ten simulated devices (`fleet.population`), whose scenes wander for a day; a stage would be aborted where its
mean stability index, less chance, is above 0.10 by 1.645 standard errors. The certificate's rows are of the fleet's own
mean, which is the best case. Prints a table; seeds are fixed. The figures show why neither is used.
"""

from __future__ import annotations

import sys

import numpy as np
from fleet.population import population
from numpy.typing import NDArray

from firstline_core.routing.drift import beyond_chance, population_stability_index

_STAGES, _DEVICES = 300, 10
_CERTIFICATE_ROWS, _ROWS_BEFORE, _ROWS_AFTER = 5000, 2400, 960
_BOUND, _DEVIATIONS = 0.10, 1.645
_CASES = {"nothing changes": 0.0, "all scenes move": 0.5, "the model drifts": 1.0}


def index(expected: NDArray[np.int64], observed: NDArray[np.int64]) -> float:
    """The stability index beyond what chance makes of so many rows."""
    found = population_stability_index(expected, observed)
    return beyond_chance(found, len(expected), int(expected.sum()), int(observed.sum())) or 0.0


def stage(seed: int, drift: float, certificate: NDArray[np.int64]) -> NDArray[np.float64]:
    """By device: the index against the certificate, and against its own day before."""
    said = []
    for device in population(_DEVICES, seed).values():
        before = device.rng.multinomial(_ROWS_BEFORE, device.shares(0.0))
        device.live(20)  # its scene wanders
        after = device.rng.multinomial(_ROWS_AFTER, device.shares(drift))
        said.append((index(certificate, after), index(before, after)))
    return np.array(said)


def main() -> int:
    """Prints the table."""
    fleet = np.mean([device.shares(0.0) for device in population(500, 99).values()], axis=0)
    certificate = np.random.default_rng(1).multinomial(_CERTIFICATE_ROWS, fleet)
    for case, drift in _CASES.items():
        stages = np.stack([stage(seed, drift, certificate) for seed in range(_STAGES)])
        errors = stages.std(axis=1, ddof=1) / np.sqrt(_DEVICES)
        aborted = (stages.mean(axis=1) > _BOUND + _DEVIATIONS * errors).mean(axis=0)
        medians = np.median(stages, axis=(0, 1))
        for name, median, share in zip(("the certificate", "its own day before"), medians, aborted, strict=True):
            print(f"{case}, against {name}: median index {median:.2f}, stages aborted {share:.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
