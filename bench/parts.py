"""Measures a target in parts, each of which can also run on its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from bench.figures import Figure, keep, named, stored, tell
from bench.page import refill

MISSED, NOT_RUN = 1, 2

Part = Callable[[], tuple[Sequence[Figure], Any]]
"""Returns figures, and raw results to store with them or None; no figures if it cannot run, for a reason it prints."""


def measure(target: str, parts: Mapping[str, Part], only: Iterable[str], *, quick: bool = False) -> int:
    """Measures some parts one after the other, writes what each found, and prints it at the end.

    Args:
        target: of the results.
        parts: all parts of the target; those that do not run keep the figures of an earlier run.
        only: the parts to run.
        quick: nothing is written.

    Returns:
        0 if all ran and every aim holds, 1 if an aim is missed, 2 if a part could not run.
    """
    figures: list[Figure] = []
    missing = []
    for name in only:
        print(f"{name} is measured.", file=sys.stderr, flush=True)
        found, record = parts[name]()
        if not found:
            missing.append(name)
            continue
        figures += named(name, found)
        if not quick:
            records = {**stored(target), **({} if record is None else {name: msgspec.to_builtins(record)})}
            keep(target, {name: found}, parts, {part: records[part] for part in parts if part in records} or None)
            refill(target)
    status = tell(figures)
    for name in missing:
        print(f"{name} was not run, for the reason above.")
    return NOT_RUN if missing else status
