"""Policy overhead: what a decision costs on the device, measured as `bench/decision.py` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import decision
from figures import Figure
from pools import Pool

from routing.parts import Effort, Job, Table


def jobs(pools: Mapping[str, Pool], effort: Effort) -> list[Job]:
    return [Job("overhead", decision.measured)]


def figures(records: Sequence[Figure]) -> list[Figure]:
    return list(records)


def tables(records: Sequence[Figure]) -> list[Table]:
    rows = [(one.figure, "" if one.value is None else f"{one.value:.2f}", one.unit, one.aim or "") for one in records]
    return [Table("Overhead: one decision on this machine", ("decision", "takes", "unit", "aim"), rows)]
