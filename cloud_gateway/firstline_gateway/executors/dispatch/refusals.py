"""Why the next batch of a model cannot run on any executor now, and until when. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from firstline_core.errors import BudgetExceededError, EngineUnavailableError, FirstlineError, PayloadTooLargeError
from firstline_core.telemetry.wording import counted
from firstline_core.types import ModelKey
from firstline_gateway.executors.dispatch.choice import Candidate
from firstline_gateway.executors.dispatch.member import Member

_RETRY_AFTER_S = 1.0


class NoPlacement(NamedTuple):
    """No executor may run a batch now, whether or not one is free.

    Args:
        error: for requests whose time ends before one may.
        again_s: seconds until one may at the earliest: infinite if none will without a change, 0 if that depends on
            what runs.
    """

    error: FirstlineError
    again_s: float


def trouble(members: Sequence[Member], key: ModelKey) -> str:
    """Returns why no executor can run a model, as sentences, or "" if one can."""
    troubles = {member: member.trouble(key) for member in members}
    if not all(troubles.values()):
        return ""
    reasons = [
        f"{member.name}: {reason}" if member.name else reason
        for member, reason in troubles.items()
        if key in member.models
    ]
    return " ".join(reasons) or f"No executor has room for model '{key.name}', or may run it."


def away(members: Sequence[Member], key: ModelKey) -> NoPlacement:
    """Returns the refusal of a model whose executors are all away."""
    error = EngineUnavailableError(
        f"No executor that runs model '{key.name}' answers; send the request again later. {trouble(members, key)}",
        retry_after_s=_RETRY_AFTER_S,
    )
    return NoPlacement(error, math.inf)


def over_budget(
    members: Sequence[Member], candidates: Sequence[Candidate[Member]], key: ModelKey, rows: int, now_s: float
) -> NoPlacement:
    """Returns the refusal of a batch beyond all budgets: energy comes back with time, memory when a batch ends.

    Args:
        members: all executors.
        candidates: the executors that run the model, as they are for that batch.
        key: the model.
        rows: of the batch.
        now_s: the present.
    """
    most_rows = _most_rows([member for member in members if key in member.models], key, rows)
    if most_rows < rows:
        return NoPlacement(_never(key, rows, most_rows), math.inf)
    waits_s = [
        each.executor.energy.wait_s(each.energy_j, now_s)
        for each in candidates
        if each.executor.memory.fits(each.memory_bytes)
    ]
    again_s = min(waits_s, default=math.inf)
    error = BudgetExceededError(
        f"A batch of model '{key.name}' is beyond the memory or energy that the executors may take now; "
        "come back later.",
        retry_after_s=again_s if 0 < again_s < math.inf else _RETRY_AFTER_S,
    )
    return NoPlacement(error, again_s)


def _most_rows(members: Sequence[Member], key: ModelKey, rows: int) -> int:
    """Returns the most rows, up to `rows`, that some executor has memory for while no other batch runs there."""
    return bisect_left(
        range(1, rows + 1), True, key=lambda fewer: not any(member.ever_has_memory(key, fewer) for member in members)
    )


def _never(key: ModelKey, rows: int, most_rows: int) -> FirstlineError:
    if not most_rows:
        return BudgetExceededError(
            f"No executor of this gateway has memory for a batch of model '{key.name}', not even for one row; its "
            "operator has to raise memory_budget_mb of an executor that runs it."
        )
    return PayloadTooLargeError(
        f"No executor of this gateway has memory for {rows} rows of model '{key.name}' at once; send at most "
        f"{counted(most_rows, 'row')} in one request."
    )
