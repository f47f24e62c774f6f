"""Hedged calls of the full model: when they start, how often, and how unneeded ones end."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest
from support.edge import SURE, UNSURE, MakeScene, Scene, answer_of, outcomes, request, tiers, yes
from support.escalations import begun, settle
from support.waiting import until

from firstline_core.clock import SimulatedClock
from firstline_core.errors import LinkDownError
from firstline_core.types import InferRequest, InferResponse, Privacy, Reason, Route, Status, Tier, Wait
from firstline_edge.cascade import cascade
from firstline_edge.requests import context
from firstline_edge.requests.context import Row
from firstline_edge.settings.settings import HedgeSection

OFTEN_UNSURE = (0.51, 0.52, 0.53, 0.54, 0.55)
OFTEN = HedgeSection(share=0.0, burst=3.0, min_escalation_rate=0.25)


# The edge model takes 0.3 s and the cloud 0.5 s: one after the other is too late, side by side is not.
SHORT = {"deadline_s": 0.7}


class Stage:
    """A slow edge model whose answers escalate often, and a link of known pace."""

    def __init__(self, make_scene: MakeScene, hedge: HedgeSection | None = OFTEN) -> None:
        self.clock = SimulatedClock()
        self.scene = make_scene(clock=self.clock, row_ms=300.0, hedge=hedge)

    async def practise(self, *values: float) -> Stage:
        """Requests with time enough, from which is learnt how often such are escalated."""
        for value in values:
            await self.scene.infer(value, deadline_s=100.0)
        self.scene.cloud.p95_s = 0.5
        self.scene.cloud.requests.clear()
        return self

    async def begin(self, *values: float, **fields: Any) -> asyncio.Task[InferResponse]:
        """A request whose edge model runs until `scene.echo.gate` is set."""
        self.scene.echo.gate.clear()
        return await begun(self.scene.infer(*values, **(SHORT | fields)))

    async def end(self, task: asyncio.Task[InferResponse]) -> InferResponse:
        self.scene.echo.gate.set()
        return await task

    @property
    def counts(self) -> tuple[int, int]:
        return self.scene.hedging.used, self.scene.hedging.unneeded


@pytest.fixture
async def stage(make_scene: MakeScene) -> Stage:
    return await Stage(make_scene).practise(*OFTEN_UNSURE)


async def test_an_answer_that_came_meanwhile_is_the_escalations(stage: Stage) -> None:
    task = await stage.begin(UNSURE)
    assert stage.scene.sent_rows == [[UNSURE]]  # though the edge model still runs
    await settle()
    response = await stage.end(task)
    answer = answer_of(response)
    assert (answer.tier, answer.reason, answer.certified, yes(response)) == (Tier.CLOUD, Reason.UNCERTAIN, True, [0.01])
    assert outcomes(response) == [("edge", "ok"), ("cloud", "ok")]
    assert (len(stage.scene.cloud.requests), stage.counts) == (1, (1, 0))


async def test_an_escalation_joins_a_call_that_is_still_under_way(stage: Stage) -> None:
    stage.scene.cloud.gate = asyncio.Event()
    task = await stage.begin(UNSURE)
    stage.scene.echo.gate.set()
    await until(lambda: stage.scene.hedging.used)
    stage.scene.cloud.gate.set()
    assert answer_of(await task).tier is Tier.CLOUD
    assert (len(stage.scene.cloud.requests), stage.counts) == (1, (1, 0))
    assert stage.scene.gateway.lateness.held_back == 0


async def test_a_call_that_is_not_needed_is_cancelled(stage: Stage) -> None:
    stage.scene.cloud.gate = asyncio.Event()
    response = await stage.end(await stage.begin(SURE))
    answer = answer_of(response)
    assert (answer.tier, answer.reason, answer.status) == (Tier.EDGE, Reason.CONFIDENT, Status.FINAL)
    assert outcomes(response) == [("edge", "ok"), ("cloud", "hedge")]
    await settle()
    assert (stage.scene.cloud.cancelled, stage.counts) == (1, (0, 1))


async def test_an_answer_that_is_not_needed_is_kept_as_the_full_models(stage: Stage) -> None:
    response = await stage.end(await stage.begin(SURE))
    assert (answer_of(response).tier, yes(response)) == (Tier.EDGE, [SURE])
    again = await stage.scene.infer(SURE, route=Route.CLOUD)
    assert (answer_of(again).tier, yes(again), len(stage.scene.cloud.requests)) == (Tier.CACHE, [0.01], 1)


async def test_a_request_that_joined_an_unneeded_hedge_gets_its_answer(stage: Stage) -> None:
    stage.scene.cloud.gate = asyncio.Event()
    first = await stage.begin(SURE)
    other = await begun(stage.scene.infer(SURE, route=Route.CLOUD))
    assert answer_of(await stage.end(first)).tier is Tier.EDGE
    await settle()
    stage.scene.cloud.gate.set()
    assert yes(await other) == [0.01]
    assert (stage.scene.cloud.cancelled, len(stage.scene.cloud.requests)) == (0, 1)


async def test_each_row_is_decided_and_all_escalations_travel_once(stage: Stage) -> None:
    response = await stage.end(await stage.begin(SURE, UNSURE, deadline_s=1.0))
    assert tiers(answer_of(response).rows) == [Tier.EDGE, Tier.CLOUD]
    assert yes(response) == [SURE, 0.01]
    assert (stage.scene.sent_rows, stage.counts) == ([[SURE, UNSURE]], (1, 0))


class TestSeveralInputs:
    """The edge model reads x, the full model y."""

    @pytest.fixture
    async def scene(self, make_scene: MakeScene) -> Scene:
        built = make_scene(clock=SimulatedClock(), row_ms=300.0, hedge=OFTEN, full_reads=("y",))
        for value in OFTEN_UNSURE:
            await built.answer(with_y((value, value), deadline_s=100.0))
        built.cloud.p95_s = 0.5
        built.cloud.requests.clear()
        built.echo.gate.clear()
        return built

    async def begin(self, scene: Scene, infer_request: InferRequest) -> asyncio.Task[InferResponse]:
        return await begun(scene.answer(infer_request))

    async def test_rows_travel_and_are_answered_by_the_full_models_input(self, scene: Scene) -> None:
        scene.cloud.agrees = lambda y: y == 2
        task = await self.begin(scene, with_y((UNSURE, 1), (SURE, 3), (UNSURE, 2), deadline_s=1.3))
        (sent,) = scene.cloud.requests  # before the edge model has answered
        assert {name: array.ravel().tolist() for name, array in sent.arrays.items()} == {"y": [1, 3, 2]}
        await settle()
        scene.echo.gate.set()
        response = await task
        assert tiers(answer_of(response).rows) == [Tier.CLOUD, Tier.EDGE, Tier.CLOUD]
        assert yes(response) == [0.01, SURE, 0.99]  # two rows with the same x, and answers of their own
        assert len(scene.cloud.requests) == 1
        assert (scene.hedging.used, scene.hedging.unneeded) == (1, 0)

    async def test_an_unneeded_hedge_is_cancelled(self, scene: Scene) -> None:
        scene.cloud.gate = asyncio.Event()
        task = await self.begin(scene, with_y((SURE, 1), deadline_s=0.7))
        scene.echo.gate.set()
        assert outcomes(await task) == [("edge", "ok"), ("cloud", "hedge")]
        await settle()
        assert (scene.cloud.cancelled, scene.hedging.unneeded) == (1, 1)

    async def test_a_request_without_the_full_models_input_is_not_hedged(self, scene: Scene) -> None:
        task = await self.begin(scene, request(UNSURE, deadline_s=0.7))
        scene.echo.gate.set()
        assert answer_of(await task).reason is Reason.PARTIAL_INPUTS
        assert (scene.cloud.requests, scene.hedging.used, scene.hedging.unneeded) == ([], 0, 0)


def with_y(*rows: tuple[float, float], deadline_s: float) -> InferRequest:
    """A request of rows (x, y)."""
    x, y = np.array(rows, np.float32).T.reshape(2, -1, 1)
    return request(0.5, deadline_s=deadline_s).with_inputs({"x": x, "y": y})


async def test_it_serves_where_the_edge_model_fails(stage: Stage) -> None:
    response = await stage.end(await stage.begin(2.0))
    assert (answer_of(response).tier, answer_of(response).reason) == (Tier.CLOUD, Reason.HEAVY)
    assert len(stage.scene.cloud.requests) == 1


async def test_it_serves_where_the_edge_model_is_not_done_in_time(stage: Stage) -> None:
    stage.scene.cloud.gate = asyncio.Event()
    task = await stage.begin(0.61)
    await stage.clock.advance(0.5)
    stage.scene.cloud.gate.set()
    await settle()
    assert not task.done()  # the edge model may still be the first
    await stage.clock.advance(0.19)  # all but what is kept back of the deadline
    response = await task
    assert (answer_of(response).tier, answer_of(response).certified, yes(response)) == (Tier.CLOUD, True, [0.01])
    assert outcomes(response) == [("edge", "deadline_exceeded"), ("cloud", "ok")]
    assert (len(stage.scene.cloud.requests), stage.counts) == (1, (1, 0))


async def test_sole_edge_answer_counts_to_the_last_moment(stage: Stage) -> None:
    stage.scene.cloud.gate = asyncio.Event()
    task = await stage.begin(SURE)
    await stage.clock.advance(0.69)
    assert not task.done()
    assert answer_of(await stage.end(task)).tier is Tier.EDGE


async def test_a_call_has_as_much_time_as_an_escalation_that_joins_it(stage: Stage) -> None:
    """Otherwise it would be late by itself, and the rows be asked for again."""
    await stage.end(await stage.begin(UNSURE, deadline_s=0.53))
    assert stage.scene.cloud.deadlines_s[-1] == 0.53


@pytest.mark.parametrize("value", [-1.0, SURE])
async def test_a_request_that_ends_in_an_error_ends_its_call(stage: Stage, value: float) -> None:
    stage.scene.cloud.gate = asyncio.Event()
    task = await stage.begin(value)
    if value == SURE:
        task.cancel()
    stage.scene.echo.gate.set()
    await asyncio.gather(task, return_exceptions=True)
    await settle()
    assert (stage.scene.cloud.cancelled, stage.counts) == (1, (0, 1))


async def test_a_call_that_fails_leaves_the_edge_answer(stage: Stage) -> None:
    stage.scene.cloud.error = LinkDownError("down")
    answer = answer_of(await stage.end(await stage.begin(UNSURE, deadline_s=0.5001)))
    assert (answer.tier, answer.status) == (Tier.EDGE, Status.PROVISIONAL)
    answer = answer_of(await stage.end(await stage.begin(SURE)))
    assert (answer.tier, answer.status) == (Tier.EDGE, Status.FINAL)


async def test_no_more_than_the_budget_allows(stage: Stage) -> None:
    for value in (0.61, 0.62, 0.63, 0.64, 0.65):
        await stage.end(await stage.begin(value))
    assert stage.counts == (3, 0)
    assert len(stage.scene.cloud.requests) == 5  # on this clock no time passes, so that all are asked in the end


async def test_a_share_of_the_traffic_earns_more(make_scene: MakeScene) -> None:
    hedge = HedgeSection(share=0.25, burst=1.0, min_escalation_rate=0.0)
    stage = await Stage(make_scene, hedge).practise(*OFTEN_UNSURE)
    for count in range(9):
        await stage.end(await stage.begin(0.6 + count / 1000))
    assert stage.counts[0] == 3  # the saved one, and one for each four requests


@pytest.mark.parametrize(
    "fields",
    [
        {"privacy": Privacy.LOCAL_ONLY},
        {"route": Route.EDGE},
        {"wait": Wait.FIRST},
        {"deadline_s": 2.0},  # time enough for one after the other
        {"deadline_s": 0.4},  # not even enough for the cloud alone
    ],
)
async def test_never_where_it_is_not_wanted_or_of_no_use(stage: Stage, fields: dict[str, Any]) -> None:
    task = await stage.begin(SURE, **fields)
    assert stage.scene.cloud.requests == []
    assert answer_of(await stage.end(task)).tier is Tier.EDGE
    assert stage.counts == (0, 0)


async def test_never_where_the_link_is_down_or_unknown(stage: Stage) -> None:
    stage.scene.cloud.p95_s = None
    task = await stage.begin(UNSURE)
    assert stage.scene.cloud.requests == []
    await stage.end(task)


@pytest.mark.parametrize(
    ("hedge", "seen"),
    [(OFTEN, (0.51, 0.52)), (OFTEN, (0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.51)), (None, OFTEN_UNSURE)],
    ids=["few escalations", "a low escalation rate", "switched off"],
)
async def test_never_without_a_high_escalation_rate_or_if_switched_off(
    make_scene: MakeScene, hedge: HedgeSection | None, seen: tuple[float, ...]
) -> None:
    stage = await Stage(make_scene, hedge).practise(*seen)
    task = await stage.begin(UNSURE)
    assert stage.scene.cloud.requests == []
    await stage.end(task)


async def test_waiting_for_a_thread_counts_as_run_time(make_scene: MakeScene) -> None:
    scene = make_scene(clock=SimulatedClock(), row_ms=50.0, hedge=OFTEN)
    for value in OFTEN_UNSURE:
        await scene.infer(value, deadline_s=100.0)
    scene.cloud.p95_s = 0.5
    scene.cloud.requests.clear()
    scene.echo.gate.clear()
    tasks = []
    for value in (0.61, 0.62, 0.63, 0.64):  # with 0.05 s each, and 0.2 s for all that comes before the full model
        tasks.append(asyncio.create_task(scene.infer(value, **SHORT)))
        await settle()
        assert scene.sent_rows == ([[0.64]] if value == 0.64 else [])
    scene.echo.gate.set()
    await asyncio.gather(*tasks)


async def test_a_run_whose_deadline_passes_in_the_queue_does_not_start(make_scene: MakeScene) -> None:
    clock = SimulatedClock()
    scene = make_scene(clock=clock, row_ms=50.0)
    scene.echo.gate.clear()
    running = asyncio.create_task(scene.infer(SURE, deadline_s=10.0))
    await until(lambda: scene.echo.runs)
    late = asyncio.create_task(scene.infer(0.94, deadline_s=1.0))
    waiting = await begun(scene.infer(0.93, deadline_s=10.0))
    await clock.advance(1.5)
    scene.echo.gate.set()
    await asyncio.gather(running, waiting)
    with pytest.raises(Exception, match="deadline"):
        await late
    assert scene.echo.runs == [[SURE], [0.93]]


async def test_an_equal_request_with_more_time_gets_its_own_run(make_scene: MakeScene) -> None:
    clock = SimulatedClock()
    scene = make_scene(clock=clock, row_ms=50.0)
    scene.echo.gate.clear()
    running = asyncio.create_task(scene.infer(SURE, deadline_s=10.0))
    await until(lambda: scene.echo.runs)
    hurried = asyncio.create_task(scene.answer(request(0.94, deadline_s=1.0)))
    patient = await begun(scene.answer(request(0.94, deadline_s=10.0)))
    await clock.advance(1.5)
    scene.echo.gate.set()
    assert yes(await patient) == [0.94]
    with pytest.raises(Exception, match="deadline"):
        await hurried
    await running


@pytest.mark.parametrize("seed", range(8))
async def test_no_row_is_accepted_and_escalated_or_sent_twice(make_scene: MakeScene, seed: int) -> None:
    rng = random.Random(seed)
    stage = Stage(make_scene, HedgeSection(share=1.0, burst=3.0, min_escalation_rate=0.0))
    await stage.practise(*OFTEN_UNSURE)
    fresh = iter(rng.sample(range(600, 1000), 60))
    for _ in range(12):
        values = [next(fresh) / 1000 for _ in range(rng.randint(1, 4))]
        stage.scene.cloud.gate = asyncio.Event() if rng.random() < 0.5 else None
        stage.scene.cloud.requests.clear()
        task = await stage.begin(*values, deadline_s=0.5 + 0.3 * len(values) * rng.random())
        stage.scene.echo.gate.set()
        if stage.scene.cloud.gate is not None:
            await until(lambda: len(stage.scene.echo.runs[-1]) == len(values))  # noqa: B023 (awaited in this turn)
            stage.scene.cloud.gate.set()
        response = await task
        answer = answer_of(response)
        rows = answer.rows or (answer,)
        assert [row.tier is Tier.EDGE for row in rows] == [row.model_digest == stage.scene.echo.digest for row in rows]
        expected = [value if row.tier is Tier.EDGE else 0.01 for value, row in zip(values, rows, strict=True)]
        assert yes(response) == pytest.approx(expected)
        travelled = [value for sent in stage.scene.sent_rows for value in sent]
        assert len(travelled) == len(set(travelled))
        assert ("cloud", "hedge") not in outcomes(response) or all(row.tier is Tier.EDGE for row in rows)
    assert sum(stage.counts) > 0


class CountedContent(bytes):
    """The content of a row; counts comparisons with other contents."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedContent.compared += 1
        return bytes.__eq__(self, other)

    __hash__ = bytes.__hash__


async def test_rows_are_found_without_comparing_each_with_all(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows_of(*arguments: Any) -> list[Row]:
        rows = context.rows_of(*arguments)
        for row in rows:
            row.content = CountedContent(row.content)
        return rows

    monkeypatch.setattr(cascade, "rows_of", rows_of)
    values = np.linspace(0.4, 0.5, 16).tolist()
    response = await stage.end(await stage.begin(*values, deadline_s=5.1))
    assert {row.tier for row in answer_of(response).rows} == {Tier.CLOUD} and stage.counts == (1, 0)
    assert CountedContent.compared <= 4 * len(values)
