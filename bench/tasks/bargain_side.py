"""Runs BARGAIN in its own environment: reads score tables, and writes which records the proxy answers.

python bargain_side.py GIVEN.npz FOUND.npz TARGET DELTA LABELS
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from BARGAIN import BARGAIN_A, BARGAIN_P, Oracle, Proxy


class TableProxy(Proxy):  # type: ignore[misc]
    """The edge model. Its answer to each record is 1: the edge answer is right."""

    def __init__(self, scores: Any) -> None:
        super().__init__(verbose=False, max_workers=1)
        self._scores = scores

    def proxy_func(self, record: str) -> tuple[int, float]:
        return 1, float(self._scores[int(record)])


class TableOracle(Oracle):  # type: ignore[misc]
    """The full model, which knows whether the edge answer is right."""

    def __init__(self, right: Any) -> None:
        super().__init__(verbose=False, max_workers=1)
        self._right = right

    def oracle_func(self, record: str, answer: Any) -> tuple[bool, int]:
        right = int(self._right[int(record)])
        return bool(right), right


def main() -> None:
    table, found = sys.argv[1:3]
    target, delta, labels = float(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
    with np.load(table) as tables:
        scores, right = tables["scores"], tables["right"]
    accepted, used = np.zeros(scores.shape, bool), np.full(len(scores), labels)
    records = [str(record) for record in range(scores.shape[1])]
    for trial, (of_records, correct) in enumerate(zip(scores, right, strict=True)):
        proxy, oracle = TableProxy(of_records), TableOracle(correct)
        if labels:
            positive = BARGAIN_P(proxy, oracle, delta, target, budget=labels, seed=trial).process(records)
            accepted[trial, positive] = True
        else:
            process = BARGAIN_A(proxy, oracle, target, delta, verbose=False, seed=trial)
            _, escalated = process.process(records, return_oracle_usage=True)
            accepted[trial], used[trial] = ~np.array(escalated), len(oracle.cached_validations)
    np.savez(found, accepted=accepted, used=used)


if __name__ == "__main__":
    main()
