"""Why a model's next batch may run on no executor now, and until when. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from firstline_core.errors import BudgetExceededError, EngineUnavailableError
from firstline_gateway.executors.base import ModelKey, NoSeat
from firstline_gateway.executors.dispatch.choice import Candidate
from firstline_gateway.executors.dispatch.member import Member

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


def over_budget(candidates: Sequence[Candidate[Member]], key: ModelKey, now_s: float) -> NoSeat:
    """It is within no executor's budget: energy comes back with time, memory with the end of what runs."""
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
