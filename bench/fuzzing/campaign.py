"""Generates numbered inputs, gives them to their readers, and collects unexpected outcomes."""

from __future__ import annotations

import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from random import Random

from bench.fuzzing.targets import TARGETS, Input, Target

_CHUNK = 5000


@dataclass(slots=True)
class Outcome:
    """Of one target.

    Args:
        refused: inputs that were refused as they should be; the others were accepted.
        crashes: number of the input, and what it raised.
        slowest_ms: of one input, and its number.
    """

    inputs: int = 0
    refused: int = 0
    crashes: list[tuple[int, str]] = field(default_factory=list)
    slowest_ms: tuple[float, int] = (0.0, 0)

    def add(self, other: Outcome) -> None:
        self.inputs += other.inputs
        self.refused += other.refused
        self.crashes += other.crashes
        self.slowest_ms = max(self.slowest_ms, other.slowest_ms)


def made(target: Target, seed: int, number: int) -> Input:
    """The input of this number."""
    return target.make(Random(f"{seed} {target.name} {number}"))


def feed(target: Target, seed: int, numbers: range) -> Outcome:
    """Gives these inputs to the target."""
    found = Outcome()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning is something that was not foreseen, too
        for number in numbers:
            value = made(target, seed, number)
            began_s = time.perf_counter()
            try:
                target.read(value)
            except target.may:
                found.refused += 1
            except Exception as error:  # noqa: BLE001 (this is what is looked for)
                found.crashes.append((number, f"{type(error).__name__}: {error}"[:300]))
            found.slowest_ms = max(found.slowest_ms, ((time.perf_counter() - began_s) * 1000, number))
            found.inputs += 1
    return found


def _feed(position: int, seed: int, numbers: range) -> tuple[str, Outcome]:
    return TARGETS[position].name, feed(TARGETS[position], seed, numbers)


def run(inputs: int, seed: int, processes: int = os.cpu_count() or 1) -> dict[str, Outcome]:
    """Spreads the inputs over the targets by their shares.

    Args:
        inputs: given to those targets whose shares add up to 1; the rest come on top.
        seed: of all of them.
        processes: at once.
    """
    jobs = [
        (position, seed, range(first, min(first + _CHUNK, round(inputs * target.share))))
        for position, target in enumerate(TARGETS)
        for first in range(0, round(inputs * target.share), _CHUNK)
    ]
    found = {target.name: Outcome() for target in TARGETS}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as workers:
        for name, outcome in workers.map(_feed, *zip(*jobs, strict=True)):
            found[name].add(outcome)
    return found
