"""The agent as a library: what `EdgeAgent.infer` takes, beside `session.run` on the same input in the same loop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.device import small
from firstline_core.ids import new_request_id
from firstline_core.types import InferRequest, InferResponse, Tensor, Tier
from firstline_edge.app import EdgeAgent
from firstline_edge.settings.load import load

_WARM_UP = 200
Times = dict[str, list[float]]
"""Microseconds, by what was done."""


@contextlib.asynccontextmanager
async def agent(folder: Path, bundle: Path, **overrides: object) -> AsyncIterator[EdgeAgent]:
    """An agent with its defaults, audits and decision log included, and a link to a gateway that is down."""
    known: dict[str, object] = {
        "agent.state_dir": str(folder),
        "agent.device_id": "bench",
        "models.directories": [str(bundle)],
        "links": [{"kind": "http", "url": "http://127.0.0.1:9"}],
    }
    settings = load(None, environ={}, overrides=known | {key.replace("__", "."): v for key, v in overrides.items()})
    async with EdgeAgent(settings) as running:
        yield running


def rows(count: int, seed: int) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    """Inputs of one row; other ones for another seed."""
    random = np.random.default_rng(seed)
    return [random.standard_normal((1, small.FEATURES)).astype(np.float32) for _ in range(count)]


def request_of(row: np.ndarray[Any, np.dtype[np.float32]]) -> InferRequest:
    """As an application asks that has an array."""
    return InferRequest(small.NAME, (Tensor(small.INPUT, row),), new_request_id())


async def measure(folder: Path, requests: int, repeat: int) -> Times:
    """One repeat: each of the three answers, in turn with the model alone."""
    bundle = folder / "kept" / small.NAME
    session = small.session(small.small_bundle(bundle, 0.0))
    fresh, known = rows(requests + _WARM_UP, 2 * repeat), rows(requests + _WARM_UP, 2 * repeat + 1)
    times: Times = {name: [] for name in ("session.run", "confident", "memory hit", "disk hit", "making a request")}
    async with (
        agent(folder / f"state-{repeat}", bundle) as remembering,
        agent(folder / f"disk-{repeat}", bundle, cache__memory_limit_bytes=0) as forgetful,
    ):
        for row in known:
            await remembering.infer(request_of(row))
            await forgetful.infer(request_of(row))
        for position, (new, old) in enumerate(zip(fresh, known, strict=True)):
            if position == _WARM_UP:
                for spent in times.values():
                    spent.clear()
            _time(times["session.run"], lambda row=new: session.run(None, {small.INPUT: row}))  # type: ignore[misc]
            _time(times["making a request"], lambda row=new: request_of(row))  # type: ignore[misc]
            await _answer(times["confident"], remembering.infer, request_of(new), Tier.EDGE)
            await _answer(times["memory hit"], remembering.infer, request_of(old), Tier.CACHE)
            await _answer(times["disk hit"], forgetful.infer, request_of(old), Tier.CACHE)
    return times


def _time(spent: list[float], call: Callable[[], object]) -> None:
    started_s = time.perf_counter()
    call()
    spent.append((time.perf_counter() - started_s) * 1e6)


async def _answer(
    spent: list[float], infer: Callable[[InferRequest], Awaitable[InferResponse]], request: InferRequest, tier: Tier
) -> None:
    started_s = time.perf_counter()
    response = await infer(request)
    spent.append((time.perf_counter() - started_s) * 1e6)
    if response.answer is None or response.answer.tier is not tier:
        raise RuntimeError(f"not answered by {tier}: {response.answer}")
