"""Measure what a request costs on the device beyond the model: a confident answer, a memory hit and a disk hit.

Each is timed next to `session.run` on the same input in the same loop. A figure is that of the best repeat, because
other work on the machine is not the device's cost. `make -C bench serving` runs it.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.figures import Figure, at_most, plain
from bench.serving.client import session
from bench.serving.models import INPUT, S, write_bundle
from firstline_core.ids import new_request_id
from firstline_core.types import InferRequest, InferResponse, Tensor, Tier
from firstline_edge.app import EdgeAgent
from firstline_edge.settings.load import load

_AIMS_US = {"memory hit": 80.0, "disk hit": 160.0}
_CONFIDENT_AIM_US = 80.0
_WARM_UP = 200
Times = dict[str, list[float]]
"""Microseconds, by what was done."""


@contextlib.asynccontextmanager
async def agent(folder: Path, bundle: Path, **overrides: object) -> AsyncIterator[EdgeAgent]:
    """An agent with its defaults, audits and decision log included, and a link to a gateway that is down."""
    defaults: dict[str, object] = {
        "agent.state_dir": str(folder),
        "agent.device_id": "bench",
        "models.directories": [str(bundle)],
        "links": [{"kind": "http", "url": "http://127.0.0.1:9"}],
    }
    settings = load(None, environ={}, overrides=defaults | {key.replace("__", "."): v for key, v in overrides.items()})
    async with EdgeAgent(settings) as running:
        yield running


def rows(count: int, seed: int) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    """Inputs of one row; other ones for another seed."""
    random = np.random.default_rng(seed)
    return [random.standard_normal((1, *S.row)).astype(np.float32) for _ in range(count)]


def request_of(row: np.ndarray[Any, np.dtype[np.float32]]) -> InferRequest:
    """As an application asks that has an array."""
    return InferRequest(S.name, (Tensor(INPUT, row),), new_request_id())


async def measure(folder: Path, requests: int, repeat: int) -> Times:
    """One repeat: each of the three answers, in turn with the model alone."""
    bundle = write_bundle(S, folder / S.name, edge=True)
    model = session(bundle / "model.onnx")
    fresh, cached = rows(requests + _WARM_UP, 2 * repeat), rows(requests + _WARM_UP, 2 * repeat + 1)
    times: Times = {name: [] for name in ("session.run", "confident", "memory hit", "disk hit", "making a request")}
    async with (
        agent(folder / f"state-{repeat}", bundle) as remembering,
        agent(folder / f"disk-{repeat}", bundle, cache__memory_limit_bytes=0) as forgetful,
    ):
        for row in cached:
            await remembering.data_plane.infer(request_of(row))
            await forgetful.data_plane.infer(request_of(row))
        for position, (new, old) in enumerate(zip(fresh, cached, strict=True)):
            if position == _WARM_UP:
                for spent in times.values():
                    spent.clear()
            _time(times["session.run"], lambda row=new: model.run(None, {INPUT: row}))  # type: ignore[misc]
            _time(times["making a request"], lambda row=new: request_of(row))  # type: ignore[misc]
            await _answer(times["confident"], remembering.data_plane.infer, request_of(new), Tier.EDGE)
            await _answer(times["memory hit"], remembering.data_plane.infer, request_of(old), Tier.CACHE)
            await _answer(times["disk hit"], forgetful.data_plane.infer, request_of(old), Tier.CACHE)
    for name, spent in times.items():
        if len(spent) < requests / 2:
            raise RuntimeError(f"{name}: only {len(spent)} of {requests} answers came from there")
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
    took_us = (time.perf_counter() - started_s) * 1e6
    # On a busy machine the cache may skip the disk after a slow read. The model answers then, which is not a disk hit.
    if response.answer is not None and response.answer.tier is tier:
        spent.append(took_us)


def figures(repeats: Sequence[Times]) -> list[Figure]:
    """Returns p50 and p99 (us) of the best repeat, and their ratio to the model alone."""
    model_us = min(_quantile(times["session.run"], 0.5) for times in repeats)
    extra_us = min(_quantile(t["confident"], 0.5) - _quantile(t["session.run"], 0.5) for t in repeats)
    found = [at_most("in process: confident answer minus session.run, p50", extra_us, _CONFIDENT_AIM_US, "us", 2)]
    for name in repeats[0]:
        p50_us, p99_us = (min(_quantile(times[name], share) for times in repeats) for share in (0.5, 0.99))
        label = f"in process: {name}, p50"
        aim_us = _AIMS_US.get(name)
        found.append(plain(label, p50_us, "us", 2) if aim_us is None else at_most(label, p50_us, aim_us, "us", 2))
        found.append(plain(f"in process: {name}, p99", p99_us, "us", 2))
        if name != "session.run":
            found.append(plain(f"in process: {name} / session.run, p50", p50_us / model_us, "times", 2))
    return found


def _quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(values, share))


async def measured_figures(requests: int, repeats: int) -> list[Figure]:
    """All figures, agents and bundles in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="firstline-agent-") as folder:
        found = [await measure(Path(folder), requests, repeat) for repeat in range(repeats)]
        return figures(found)
