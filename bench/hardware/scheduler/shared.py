"""Another gateway in front of the same executor: does the forecast hold when others load it?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import numpy as np

from bench.hardware.scheduler.load import Ask, batched, play
from bench.hardware.scheduler.site import Site, engine, gateway
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher
from firstline_gateway.executors.dispatch.running_batch import RunningBatch

_WARM_S, _RUN_S = 1.0, 6.0
# Of what the shared executor can do, how much the other gateway asks for.
_OTHERS_SHARE = 0.5


@dataclass(frozen=True)
class Shared:
    """One run of this gateway.

    Args:
        others_per_s: that the other gateway asks the shared executor.
        far_share: of this one's batches, at the shared executor.
        took_to_expected: of those, what they took to what was expected: the median, and the 90th percentile; None
            where there were none.
        others_p99_ms: of the other gateway's requests; None without any.
    """

    others_per_s: float
    requests: int
    lost: int
    p50_ms: float
    p99_ms: float
    far_batches: int
    far_share: float
    took_to_expected: tuple[float, float] | None
    others_lost: int
    others_p99_ms: float | None


async def measure(found: Site, rate_per_s: float, far_per_s: float) -> list[Shared]:
    """This gateway at a rate, with the other one quiet and at its work."""
    behind = f'[execution]\nengine = "oip"\n[oip]\nendpoints = ["{found.far.url}"]\n'
    runs = []
    with gateway(found.folder, "other", found.bundle, found.cores[0], behind) as other:
        async with httpx.AsyncClient(base_url=other.url, timeout=10.0) as client:
            for others_per_s in (0.0, round(_OTHERS_SHARE * far_per_s, 1)):
                runs.append(await _run(found, rate_per_s, _asking(client), others_per_s))
    return runs


def _asking(client: httpx.AsyncClient) -> Ask:
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0.5, 0, 1, 2]}]}

    async def ask(_deadline_s: float) -> None:
        (await client.post("/v2/models/m/infer", json=body)).raise_for_status()

    return ask


async def _run(found: Site, rate_per_s: float, other: Ask, others_per_s: float) -> Shared:
    async with engine(found, ["here", "far"]) as opened:
        ask = batched(opened)
        beside = asyncio.create_task(play(other, others_per_s, _WARM_S + _RUN_S)) if others_per_s else None
        await play(ask, rate_per_s, _WARM_S)
        ratios, given = _noted(opened)
        took_s, lost = await play(ask, rate_per_s, _RUN_S)
        others_s, others_lost = await beside if beside is not None else ([], 0)
    here, far = given["here"], given["far"]
    return Shared(
        others_per_s=others_per_s,
        requests=len(took_s) + lost,
        lost=lost,
        p50_ms=_ms(took_s, 0.5),
        p99_ms=_ms(took_s, 0.99),
        far_batches=far,
        far_share=round(far / max(1, here + far), 3),
        took_to_expected=(round(float(np.median(ratios)), 2), round(float(np.quantile(ratios, 0.9)), 2))
        if ratios
        else None,
        others_lost=others_lost,
        others_p99_ms=_ms(others_s, 0.99) if others_s else None,
    )


def _ms(seconds: list[float], quantile: float) -> float:
    return round(1000 * float(np.quantile(seconds, quantile)), 2)


def _noted(opened: Dispatcher) -> tuple[list[float], dict[str, int]]:
    """What batches at the shared executor take to what was expected, and how many each executor answers, from now."""
    ratios: list[float] = []
    given = {member.name: 0 for member in opened.members}

    def noting(name: str, answered: Callable[[RunningBatch, float], None]) -> Callable[[RunningBatch, float], None]:
        def note(running: RunningBatch, now_s: float) -> None:
            if not running.is_probe:
                given[name] += 1
                if name == "far" and running.expected_s:
                    ratios.append((now_s - running.started_s) / running.expected_s)
            answered(running, now_s)

        return note

    for member in opened.members:
        member.answered = noting(member.name, member.answered)  # type: ignore[assignment, method-assign]
    return ratios, given
