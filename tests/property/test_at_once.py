"""The commonest answer is the cascade's own: whether it is given at once, or on the whole way, nothing is different."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.edge import Scene, request

from firstline_core.clock import SimulatedClock
from firstline_core.errors import FirstlineError
from firstline_core.routing.certificate import Histogram
from firstline_core.routing.policies import KINDS, make
from firstline_core.types import InferRequest, InferResponse, Privacy, RequestedOutput, Route, Wait
from firstline_edge.audits.watched import Standing
from firstline_edge.cascade.hedging import HedgeOptions
from firstline_edge.requests.context import Trail
from firstline_edge.settings.settings import AuditSection

# -0.5 is no input that the model takes, and 2 breaks it.
VALUES = st.sampled_from([0.55, 0.6, 0.75, 0.8, 0.85, 0.95, 0.99, -0.5, 2.0, float("nan")])
REQUESTS = st.fixed_dictionaries(
    {"values": st.lists(VALUES, min_size=1, max_size=2)},
    optional={
        "route": st.sampled_from(Route),
        "privacy": st.sampled_from(Privacy),
        "wait": st.sampled_from(Wait),
        "outputs": st.sampled_from([(RequestedOutput("probabilities"),), (RequestedOutput("other"),)]),
        "version": st.sampled_from(["", "3", "4"]),
        "model": st.sampled_from(["m", "other"]),
    },
)
STEPS = st.lists(
    REQUESTS | st.floats(0, 40).map(lambda seconds: ("passes", seconds)) | st.just(("alarm", 0.9)), max_size=25
)


class Device:
    """A scene, and how it is asked."""

    def __init__(self, folder: Path, kind: Any, certified: float | None, *, at_once: bool) -> None:
        folder.mkdir()
        self.clock = SimulatedClock(1000.0)
        self.scene = Scene(
            clock=self.clock,
            chosen=make(kind),
            certified=certified,
            histogram=Histogram((0.6, 0.7, 0.9), (0.25,) * 4),
            audit=AuditSection(per_hour=3000.0, max_share=0.5),
            hedge=HedgeOptions(),
            folder=folder,
        )
        self._at_once = at_once

    async def take(self, step: Any) -> Any:
        if isinstance(step, tuple):
            what, amount = step
            if what == "passes":
                await self.clock.advance(amount)
            for watched in self.scene.standings or () if what == "alarm" else ():
                watched.record.alarmed, watched.record.tightened = True, amount
                watched.standing = Standing(True, amount)
            return None
        fields = dict(step)
        asked = replace(request(*fields.pop("values"), **fields), request_id="r")
        try:
            return told(await self._infer(asked))
        except FirstlineError as error:
            return type(error), error.message

    async def _infer(self, asked: InferRequest) -> InferResponse:
        cascade, trail = self.scene.cascade, Trail()
        if self._at_once and (response := cascade.at_once(asked, trail)) is not None:
            assert trail.told is self.scene.router.told(self.scene.held)
            return response
        return await cascade.infer(asked, trail)

    async def close(self) -> None:
        await self.scene.close()
        self.scene.samples.close()

    def left_behind(self) -> Any:
        """All that the next answers, audits and hedges depend on."""
        scene = self.scene
        assert scene.standings is not None and scene.auditor is not None
        watched = next(iter(scene.standings), None)
        return (
            scene.echo.runs,
            [(sent.audit, sent.inputs[0].array.tolist()) for sent in scene.cloud.requests],
            (len(scene.cache), scene.cache.size_bytes, list(scene.cache._entries)),
            watched and (watched.record.drawn, watched.scores and watched.scores.counts, watched.quota),
            (scene.auditor._uncounted_rows, scene.auditor._uncounted_bytes, scene.auditor._pace),
            {name: (rate._hits, rate._weight) for name, rate in scene.hedging._rates.items()},
        )


def told(response: InferResponse) -> Any:
    assert response.answer is not None
    arrays = [np.asarray(tensor.array).tolist() for tensor in response.outputs]
    return repr(replace(response, outputs=())), repr(arrays)


@settings(max_examples=150)
@given(STEPS, st.sampled_from(KINDS), st.none() | st.sampled_from([0.7, 0.8]))
def test_at_once_or_on_the_whole_way(steps: list[Any], kind: Any, certified: float | None) -> None:
    async def compare(folder: Path) -> None:
        short, whole = (Device(folder / str(once), kind, certified, at_once=once) for once in (True, False))
        try:
            for step in steps:
                assert await short.take(step) == await whole.take(step)
                assert repr(short.left_behind()) == repr(whole.left_behind())
        finally:
            await short.close()
            await whole.close()

    with TemporaryDirectory() as folder:
        asyncio.run(compare(Path(folder)))
