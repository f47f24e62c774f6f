"""Why a model's next batch may run on no executor now, and until when. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from firstline_core.errors import BudgetExceededError, EngineUnavailableError, FirstlineError, PayloadTooLargeError
from firstline_core.telemetry.wording import counted
from firstline_core.types import ModelKey
from firstline_gateway.executors.dispatch.choice import Candidate
from firstline_gateway.executors.dispatch.member import Member
from firstline_gateway.executors.seating import NoSeat

_RETRY_AFTER_S = 1.0


def trouble(members: Sequence[Member], key: ModelKey) -> str:
    """What keeps every executor from running a model, as sentences; "" where one runs it."""
    troubles = {member: member.trouble(key) for member in members}
    if not all(troubles.values()):
        return ""
    told = [f"{member.name}: {said}" for member, said in troubles.items() if member.has(key)]
    return " ".join(told) or f"No executor has room for model '{key.name}', or may run it."


def away(members: Sequence[Member], key: ModelKey) -> NoSeat:
    """Nobody who has the model is there."""
    error = EngineUnavailableError(
        f"No executor that runs model '{key.name}' answers; send the request again later. {trouble(members, key)}",
        retry_after_s=_RETRY_AFTER_S,
    )
    return NoSeat(error, math.inf)


def over_budget(
    members: Sequence[Member], candidates: Sequence[Candidate[Member]], key: ModelKey, rows: int, now_s: float
) -> NoSeat:
    """It is within no executor's budget: energy comes back with time, memory with the end of what runs.

    Args:
        members: all of them.
        candidates: those that run the model now, as they are for that batch.
        key: the model.
        rows: of the batch.
        now_s: the present.
    """
    most_rows = _most_rows([member for member in members if member.has(key)], key, rows)
    if most_rows < rows:
        return NoSeat(_never(key, rows, most_rows), math.inf)
    waits_s = [
        each.name.energy.wait_s(each.energy_j, now_s) for each in candidates if each.name.memory.fits(each.memory_bytes)
    ]
    again_s = min(waits_s, default=math.inf)
    error = BudgetExceededError(
        f"A batch of model '{key.name}' is beyond the memory or energy that the executors may take now; "
        "come back later.",
        retry_after_s=again_s if 0 < again_s < math.inf else _RETRY_AFTER_S,
    )
    return NoSeat(error, again_s)


def _most_rows(members: Sequence[Member], key: ModelKey, rows: int) -> int:
    """Of a batch of up to so many rows, those that some executor has memory for once nothing else runs there."""
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
