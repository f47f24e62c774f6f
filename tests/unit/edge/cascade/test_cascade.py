"""The cascade, decision by decision: the tier, the fields of the answer, and the requests sent."""

import asyncio
import dataclasses
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.edge import SURE, UNSURE, MakeScene, Scene, answer_of, outcomes, request, tiers, yes
from support.escalations import begun, settle

from firstline_core import errors
from firstline_core.clock import SimulatedClock
from firstline_core.ids import new_request_id
from firstline_core.routing import policy
from firstline_core.types import InferResponse, Privacy, Reason, RequestedOutput, Route, Status, Tensor, Tier, Wait
from firstline_edge.cloud.client import BUNDLE_GRACE_S


def with_probabilities(response: InferResponse, probabilities: Any) -> InferResponse:
    return replace(response, outputs=(Tensor("probabilities", np.array(probabilities, np.float32)),))


async def test_a_confident_answer_is_accepted_and_nothing_is_sent(scene: Scene) -> None:
    response = await scene.infer(SURE, id="mine")
    answer = answer_of(response)
    assert yes(response) == [SURE]
    assert (answer.tier, answer.reason, answer.status) == (Tier.EDGE, Reason.CONFIDENT, Status.FINAL)
    assert answer.confidence == pytest.approx(SURE)
    assert answer.model_digest == scene.echo.digest
    assert not answer.certified and not answer.durable
    assert outcomes(response) == [("edge", "ok")]
    assert (response.id, response.version, scene.cloud.requests) == ("mine", "3", [])


async def test_an_unsure_answer_comes_from_the_full_model(scene: Scene) -> None:
    original = request(UNSURE, id="mine", outputs=(RequestedOutput("probabilities"),))
    response = await scene.answer(original)
    answer = answer_of(response)
    assert yes(response) == [0.01]
    assert (answer.tier, answer.reason, answer.status) == (Tier.CLOUD, Reason.UNCERTAIN, Status.FINAL)
    assert answer.certified
    assert answer.confidence == pytest.approx(UNSURE)
    assert answer.model_digest == scene.cloud.digest
    assert outcomes(response) == [("edge", "ok"), ("cloud", "ok")]
    (sent,) = scene.cloud.requests
    assert (sent.request_id, sent.version, sent.full_model_digest) == (original.request_id, "3", scene.cloud.digest)
    assert (sent.id, sent.outputs) == ("", ())


async def test_a_batch_is_decided_row_by_row_and_keeps_its_order(scene: Scene) -> None:
    response = await scene.infer(0.6, 0.95, 0.7, 0.9)
    answer = answer_of(response)
    assert yes(response) == [0.01, 0.95, 0.01, 0.9]
    assert scene.sent_rows == [[0.6, 0.7]]
    assert tiers(answer.rows) == [Tier.CLOUD, Tier.EDGE, Tier.CLOUD, Tier.EDGE]
    assert [row.certified for row in answer.rows] == [True, False, True, False]
    assert (answer.tier, answer.reason, answer.certified) == (Tier.CLOUD, Reason.UNCERTAIN, False)
    assert answer.confidence == pytest.approx(0.6)


async def test_a_score_that_is_no_number_is_never_kept(scene: Scene) -> None:
    assert answer_of(await scene.infer(float("nan"))).tier is Tier.CLOUD


class TestCertificate:
    async def test_a_kept_answer_is_certified_and_stays_so_from_the_cache(self, make_scene: MakeScene) -> None:
        scene = make_scene(certified=0.7)
        first, again = answer_of(await scene.infer(0.75)), answer_of(await scene.infer(0.75))
        assert [(a.tier, a.reason, a.certified) for a in (first, again)] == [
            (Tier.EDGE, Reason.CONFIDENT, True),
            (Tier.CACHE, Reason.CONFIDENT, True),
        ]
        assert scene.cloud.requests == []  # though the policy's own threshold is above it

    async def test_its_threshold_also_tightens(self, make_scene: MakeScene) -> None:
        scene = make_scene(certified=0.97)
        assert answer_of(await scene.infer(SURE)).reason is Reason.UNCERTAIN

    async def test_a_row_below_goes_to_the_full_model(self, make_scene: MakeScene) -> None:
        answer = answer_of(await make_scene(certified=0.9).infer(0.95, 0.6))
        assert [(row.reason, row.certified) for row in answer.rows] == [
            (Reason.CONFIDENT, True),
            (Reason.UNCERTAIN, True),
        ]
        assert answer.certified

    @pytest.mark.parametrize("bound", [{"privacy": Privacy.LOCAL_ONLY}, {"route": Route.EDGE}])
    async def test_answers_bound_to_devices_are_uncertified(self, make_scene: MakeScene, bound: dict[str, Any]) -> None:
        answer = answer_of(await make_scene(certified=0.7).infer(SURE, **bound))
        assert (answer.tier, answer.certified) == (Tier.EDGE, False)

    async def test_a_replacement_answer_is_not_certified(self, make_scene: MakeScene) -> None:
        scene = make_scene(certified=0.7)
        for error in (errors.LinkDownError("down"), errors.DeadlineExceededError("late")):
            scene.cloud.error = error
            answers = [answer_of(await scene.infer(UNSURE)), answer_of(await scene.infer(SURE, route=Route.CLOUD))]
            assert [(a.model_digest, a.certified) for a in answers] == [(scene.echo.digest, False)] * 2
        first = answer_of(await scene.infer(SURE, route=Route.CLOUD, wait=Wait.FIRST))
        assert (first.reason, first.certified) == (Reason.REQUESTED, False)

    async def test_a_tightened_device_serves_nothing_below_from_the_cache(self, make_scene: MakeScene) -> None:
        before = make_scene(certified=0.7)
        assert answer_of(await before.infer(0.9)).certified
        after = make_scene(certified=0.7, cache=before.cache, min_threshold=0.93)
        answer = answer_of(await after.infer(0.9))
        assert (answer.tier, answer.reason) == (Tier.CLOUD, Reason.UNCERTAIN)

    async def test_a_more_careful_device_does_not_lose_its_certificate(self, make_scene: MakeScene) -> None:
        scene = make_scene(certified=0.7, min_threshold=0.93)
        answer = answer_of(await scene.infer(SURE))
        assert (answer.reason, answer.certified) == (Reason.CONFIDENT, True)


class TestCache:
    async def test_a_cache_hit_keeps_the_reason(self, scene: Scene) -> None:
        await scene.infer(SURE)
        response = await scene.infer(SURE)
        assert (answer_of(response).tier, answer_of(response).reason) == (Tier.CACHE, Reason.CONFIDENT)
        assert yes(response) == [SURE]
        assert outcomes(response) == [("cache", "ok")]
        assert len(scene.echo.runs) == 1

    async def test_the_full_models_answer_is_reused_for_an_uncertain_row(self, scene: Scene) -> None:
        await scene.infer(UNSURE)
        response = await scene.infer(UNSURE)
        answer = answer_of(response)
        assert (answer.tier, answer.reason, answer.certified) == (Tier.CACHE, Reason.UNCERTAIN, True)
        assert (yes(response), answer.model_digest, len(scene.cloud.requests)) == ([0.01], scene.cloud.digest, 1)

    async def test_only_the_new_rows_of_a_batch_run_and_travel(self, scene: Scene) -> None:
        await scene.infer(0.95, 0.6)
        response = await scene.infer(0.7, 0.95, 0.6)
        assert scene.echo.runs[1:] == [[0.7]]
        assert scene.sent_rows[1:] == [[0.7]]
        assert tiers(answer_of(response).rows) == [Tier.CLOUD, Tier.CACHE, Tier.CACHE]
        assert yes(response) == [0.01, 0.95, 0.01]

    async def test_a_tightened_threshold_is_not_answered_from_yesterday(self, make_scene: MakeScene) -> None:
        before = make_scene()
        assert answer_of(await before.infer(0.9)).tier is Tier.EDGE
        after = make_scene(cache=before.cache, min_threshold=0.93)
        assert answer_of(await after.infer(0.9)).tier is Tier.CLOUD
        assert after.echo.runs == []  # the evidence was good, the decision was not

    async def test_min_threshold_never_loosens(self, make_scene: MakeScene) -> None:
        scene = make_scene(min_threshold=0.1)
        assert answer_of(await scene.infer(UNSURE)).tier is Tier.CLOUD

    async def test_a_provisional_answer_is_not_cached(self, scene: Scene) -> None:
        scene.cloud.error = errors.LinkDownError("down")
        assert answer_of(await scene.infer(UNSURE)).status is Status.PROVISIONAL
        scene.cloud.error = None
        response = await scene.infer(UNSURE)
        assert (answer_of(response).status, answer_of(response).tier, yes(response)) == (
            Status.FINAL,
            Tier.CLOUD,
            [0.01],
        )

    async def test_without_a_full_model_nothing_is_certified_or_cached(self, make_scene: MakeScene) -> None:
        scene = make_scene(full=False)
        assert [answer_of(await scene.infer(UNSURE)).certified for _ in range(2)] == [False, False]
        assert len(scene.cloud.requests) == 2


class TestTheFarSide:
    """An answer of the gateway is checked before it is used."""

    @pytest.mark.parametrize(
        "spoil",
        [
            pytest.param(lambda r: replace(r, id=new_request_id()), id="another request"),
            pytest.param(lambda r: replace(r, id=""), id="no id"),
            pytest.param(lambda r: replace(r, answer=None), id="no answer's parameters"),
            pytest.param(lambda r: replace(r, answer=replace(r.answer, model_digest="f" * 64)), id="another model"),
            pytest.param(lambda r: replace(r, answer=replace(r.answer, model_digest="")), id="no digest"),
            pytest.param(lambda r: replace(r, answer=replace(r.answer, status=Status.PROVISIONAL)), id="provisional"),
            pytest.param(lambda r: replace(r, outputs=()), id="no output"),
            pytest.param(lambda r: with_probabilities(r, np.ones((1, 3))), id="other labels"),
            pytest.param(lambda r: with_probabilities(r, [[np.nan, 1]]), id="not a number"),
            pytest.param(lambda r: with_probabilities(r, [[-0.5, -0.5]]), id="negative"),
            pytest.param(lambda r: with_probabilities(r, [[0.9, 0.9]]), id="sum of 1.8"),
        ],
    )
    async def test_a_wrong_answer_is_a_failure_of_the_link(
        self, scene: Scene, spoil: Callable[[InferResponse], InferResponse]
    ) -> None:
        scene.cloud.spoil = spoil
        response = await scene.infer(UNSURE)
        answer = answer_of(response)
        assert (answer.tier, answer.reason, answer.status) == (Tier.EDGE, Reason.LINK_DOWN, Status.PROVISIONAL)
        assert (answer.certified, yes(response), len(scene.promises.items)) == (False, [UNSURE], 1)
        assert outcomes(response)[-1] == ("cloud", "protocol_error")
        scene.cloud.spoil = None
        assert answer_of(await scene.infer(UNSURE)).tier is Tier.CLOUD  # nothing of it was remembered

    @pytest.mark.parametrize(
        ("spoil", "message"),
        [
            (lambda r: replace(r, id=new_request_id()), "It answers request"),
            (lambda r: replace(r, answer=replace(r.answer, status=Status.PROVISIONAL)), "not final"),
            (lambda r: with_probabilities(r, [[np.inf, 1]]), "has NaN or infinity"),
            (lambda r: with_probabilities(r, np.ones((2, 2))), "for 1 row"),
        ],
    )
    async def test_a_wrong_answer_is_not_passed_on(
        self, scene: Scene, spoil: Callable[[InferResponse], InferResponse], message: str
    ) -> None:
        scene.cloud.spoil = spoil
        with pytest.raises(errors.ProtocolError, match=message):
            await scene.infer(SURE, model="other")


class TestOffline:
    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (errors.LinkDownError("down"), Reason.LINK_DOWN),
            (errors.ProtocolError("babble"), Reason.LINK_DOWN),
            (errors.QueueFullError("full"), Reason.LINK_DOWN),
            (errors.UnauthorizedError("who?"), Reason.LINK_DOWN),
            (errors.RemoteTimeoutError("late"), Reason.DEADLINE),
            (errors.DeadlineExceededError("late"), Reason.DEADLINE),
        ],
    )
    async def test_the_edge_answer_now_and_a_promise(
        self, scene: Scene, error: errors.FirstlineError, reason: Reason
    ) -> None:
        scene.cloud.error = error
        infer_request = request(0.95, 0.6, deadline_s=None)
        response = await scene.answer(infer_request)
        answer = answer_of(response)
        assert yes(response) == [0.95, 0.6]
        assert (answer.status, answer.reason, answer.durable) == (Status.PROVISIONAL, reason, True)
        assert [row.status for row in answer.rows] == [Status.FINAL, Status.PROVISIONAL]
        (item,) = scene.promises.items
        assert (item.rows, item.provisional, item.request.rows) == ((1,), response, 1)
        assert (item.request.request_id, item.request.principal) == (infer_request.request_id, "local")
        assert (item.request.version, item.request.full_model_digest) == ("3", scene.cloud.digest)

    @pytest.mark.parametrize(
        "error", [errors.RequestError("no"), errors.InferenceError("no"), errors.FirstlineError("broken")]
    )
    async def test_a_refusal_is_final(self, scene: Scene, error: errors.FirstlineError) -> None:
        scene.cloud.error = error
        answer = answer_of(await scene.infer(UNSURE))
        assert (answer.status, answer.reason, answer.durable) == (Status.FINAL, Reason.CLOUD_ERROR, False)
        assert not answer.certified
        assert answer.refusal == error.message
        assert scene.promises.items == []

    @pytest.mark.parametrize(
        ("value", "fields", "scene"),
        [
            (UNSURE, {}, {}),
            (SURE, {"route": Route.CLOUD}, {}),
            (SURE, {}, {"chosen": policy.make_policy("value")}),
            (UNSURE, {}, {"chosen": policy.make_policy("value"), "certified": 0.7}),
        ],
    )
    async def test_an_input_that_the_full_model_cannot_read_is_the_callers_error(
        self, make_scene: MakeScene, value: float, fields: dict[str, Any], scene: dict[str, Any]
    ) -> None:
        offline = make_scene(**scene)
        offline.cloud.error = errors.InvalidTensorError("Row 0 is not an image.")
        with pytest.raises(errors.InvalidTensorError, match="Row 0 is not an image"):
            await offline.infer(value, **fields)

    async def test_a_certified_answer_outlives_a_refused_input(self, make_scene: MakeScene) -> None:
        scene = make_scene(chosen=policy.make_policy("value"), certified=0.7)
        scene.cloud.error = errors.InvalidTensorError("Row 0 is not an image.")
        answer = answer_of(await scene.infer(SURE))
        assert (answer.tier, answer.status, answer.reason) == (Tier.EDGE, Status.FINAL, Reason.CLOUD_ERROR)
        assert answer.refusal == "Row 0 is not an image."

    @pytest.mark.parametrize("error", [errors.ModelMismatchError("no"), errors.UnknownModelError("no")])
    async def test_gateway_may_get_the_bundle_later(self, make_scene: MakeScene, error: errors.FirstlineError) -> None:
        clock = SimulatedClock()
        scene = make_scene(clock=clock)
        scene.cloud.error = error
        expected = [(Status.PROVISIONAL, True), (Status.FINAL, False)]
        for status, durable in expected:
            answer = answer_of(await scene.infer(UNSURE))
            assert (answer.status, answer.reason, answer.durable) == (status, Reason.CLOUD_ERROR, durable)
            assert answer.refusal == "no"
            await clock.advance(BUNDLE_GRACE_S)

    @pytest.mark.parametrize("error", [errors.QueueFullError("full"), errors.CapacityError("the disk refuses")])
    async def test_a_full_outbox_promises_nothing(self, scene: Scene, error: errors.FirstlineError) -> None:
        scene.cloud.error = errors.LinkDownError("down")
        scene.promises.error = error
        answer = answer_of(await scene.infer(UNSURE))
        assert (answer.status, answer.reason, answer.durable) == (Status.FINAL, Reason.OUTBOX_FULL, False)

    async def test_a_request_for_the_gateway_alone_fails_clearly(self, scene: Scene) -> None:
        scene.cloud.error = errors.LinkDownError("down", retry_after_s=7)
        with pytest.raises(errors.LinkDownError) as raised:
            await scene.infer(*[SURE] * 20)  # 80 bytes, over the limit of 64
        assert raised.value.retry_after_s == 7
        assert scene.promises.items == [] and scene.echo.runs == []

    async def test_without_links_the_edge_answer_is_all_there_is(self, make_scene: MakeScene) -> None:
        scene = make_scene(linked=False)
        answer = answer_of(await scene.infer(UNSURE))
        assert (answer.status, answer.reason, answer.durable) == (Status.FINAL, Reason.LINK_DOWN, False)
        with pytest.raises(errors.LinkDownError, match="trying again does not help") as raised:
            await scene.infer(*[SURE] * 20)
        assert raised.value.retry_after_s is None
        with pytest.raises(errors.UnknownModelError, match=r"'other'; it holds: m\. To ask a gateway for it, add a"):
            await scene.infer(SURE, model="other", version="9")

    async def test_no_correction_is_promised_for_a_bundle_without_a_full_model(self, make_scene: MakeScene) -> None:
        scene = make_scene(full=False)
        scene.cloud.error = errors.LinkDownError("down")
        assert answer_of(await scene.infer(UNSURE)).status is Status.FINAL
        assert scene.promises.items == []

    async def test_a_refused_token_is_not_the_callers_fault(self, scene: Scene) -> None:
        scene.cloud.error = errors.UnauthorizedError("who?")
        with pytest.raises(errors.LinkError, match="refuses this device"):
            await scene.infer(*[SURE] * 20)


class TestWishes:
    async def test_route_edge_keeps_an_unsure_answer(self, scene: Scene) -> None:
        answer = answer_of(await scene.infer(UNSURE, route=Route.EDGE))
        assert (answer.tier, answer.reason, answer.status) == (Tier.EDGE, Reason.REQUESTED, Status.FINAL)
        assert scene.cloud.requests == []

    async def test_route_cloud_does_not_run_the_edge_model(self, scene: Scene) -> None:
        answer = answer_of(await scene.infer(SURE, route=Route.CLOUD))
        assert (answer.tier, answer.reason, answer.confidence) == (Tier.CLOUD, Reason.REQUESTED, None)
        assert scene.echo.runs == []
        assert answer_of(await scene.infer(SURE, route=Route.CLOUD)).tier is Tier.CACHE

    async def test_route_cloud_falls_back_to_the_edge(self, scene: Scene) -> None:
        scene.cloud.error = errors.LinkDownError("down")
        response = await scene.infer(SURE, route=Route.CLOUD)
        answer = answer_of(response)
        assert (answer.tier, answer.reason, answer.status) == (Tier.EDGE, Reason.LINK_DOWN, Status.PROVISIONAL)
        assert yes(response) == [SURE]

    async def test_wait_first_does_not_wait(self, scene: Scene) -> None:
        answer = answer_of(await scene.infer(UNSURE, wait=Wait.FIRST))
        assert (answer.status, answer.reason, answer.durable) == (Status.PROVISIONAL, Reason.REQUESTED, True)
        assert scene.cloud.requests == [] and len(scene.promises.items) == 1
        assert answer_of(await scene.infer(SURE, wait=Wait.FIRST)).status is Status.FINAL

    async def test_wait_first_asks_the_full_model_if_no_correction_can_be_promised(self, scene: Scene) -> None:
        scene.promises.error = errors.QueueFullError("full")
        answer = answer_of(response := await scene.infer(UNSURE, wait=Wait.FIRST))
        assert (answer.status, answer.tier, answer.reason) == (Status.FINAL, Tier.CLOUD, Reason.UNCERTAIN)
        assert answer.certified and not answer.durable and yes(response) != [UNSURE]
        await scene.infer(SURE, 0.58, wait=Wait.FIRST)
        assert len(scene.cloud.requests) == 2
        scene.cloud.error = errors.LinkDownError("down")
        answer = answer_of(await scene.infer(0.57, wait=Wait.FIRST))
        assert (answer.status, answer.tier, answer.reason) == (Status.FINAL, Tier.EDGE, Reason.OUTBOX_FULL)
        answer = answer_of(await scene.infer(0.56, wait=Wait.FIRST, route=Route.CLOUD))
        assert (answer.status, answer.tier, answer.reason) == (Status.FINAL, Tier.EDGE, Reason.OUTBOX_FULL)

    async def test_wait_first_takes_a_final_answer_that_is_there(self, scene: Scene) -> None:
        await scene.infer(UNSURE)
        answer = answer_of(await scene.infer(UNSURE, wait=Wait.FIRST))
        assert (answer.status, answer.tier) == (Status.FINAL, Tier.CACHE)

    async def test_wait_first_waits_where_nothing_comes_first(self, scene: Scene) -> None:
        assert answer_of(await scene.infer(*[SURE] * 20, wait=Wait.FIRST)).reason is Reason.HEAVY

    async def test_local_only_never_leaves(self, scene: Scene) -> None:
        scene.cloud.error = errors.LinkDownError("down")
        answer = answer_of(await scene.infer(UNSURE, privacy=Privacy.LOCAL_ONLY))
        assert (answer.tier, answer.reason, answer.status) == (Tier.EDGE, Reason.LOCAL_ONLY, Status.FINAL)
        assert not answer.certified
        assert scene.cloud.requests == [] and scene.promises.items == []

    async def test_local_only_never_gets_the_full_models_cached_answer(self, scene: Scene) -> None:
        await scene.infer(UNSURE)
        answer = answer_of(await scene.infer(UNSURE, privacy=Privacy.LOCAL_ONLY))
        assert (answer.model_digest, answer.certified) == (scene.echo.digest, False)

    async def test_heavy_and_local_only_is_refused(self, make_scene: MakeScene) -> None:
        with pytest.raises(errors.RequestError, match="local_only"):
            await make_scene().infer(*[SURE] * 20, privacy=Privacy.LOCAL_ONLY)


class TestHeavy:
    async def test_over_the_limit(self, scene: Scene) -> None:
        answer = answer_of(await scene.infer(*[SURE] * 20))
        assert (answer.tier, answer.reason) == (Tier.CLOUD, Reason.HEAVY)
        assert scene.echo.runs == []

    async def test_a_bundle_whose_edge_model_does_not_load(self, make_scene: MakeScene) -> None:
        scene = make_scene(loads=False)
        answer = answer_of(await scene.infer(SURE))
        assert (answer.tier, answer.reason, answer.model_digest) == (Tier.CLOUD, Reason.HEAVY, scene.cloud.digest)
        assert scene.cloud.requests[0].version == "3"

    async def test_a_model_that_is_not_held_is_passed_on_as_it_is(self, scene: Scene) -> None:
        infer_request = request(SURE, SURE, model="other", id="mine")
        response = await scene.answer(infer_request)
        answer = answer_of(response)
        assert (answer.tier, answer.reason, answer.certified) == (Tier.CLOUD, Reason.HEAVY, True)
        assert (answer.request_id, response.id) == (infer_request.request_id, "mine")
        assert (scene.cloud.requests[0].version, scene.cloud.requests[0].full_model_digest) == ("", "")

    @pytest.mark.parametrize("bound", [{"route": Route.EDGE}, {"privacy": Privacy.LOCAL_ONLY}])
    async def test_a_bound_request_for_another_model_never_leaves(self, scene: Scene, bound: dict[str, Any]) -> None:
        with pytest.raises(errors.RequestError, match="device"):
            await scene.answer(request(SURE, model="other", **bound))
        assert scene.cloud.requests == []

    async def test_another_version_is_not_held(self, scene: Scene) -> None:
        assert answer_of(await scene.infer(SURE, version="2")).reason is Reason.HEAVY
        assert scene.cloud.requests[0].version == "2"
        assert answer_of(await scene.infer(SURE, version="3")).reason is Reason.CONFIDENT

    async def test_an_edge_model_that_breaks_is_replaced_by_the_full_one(self, scene: Scene) -> None:
        response = await scene.infer(2.0)
        assert (answer_of(response).tier, answer_of(response).reason) == (Tier.CLOUD, Reason.HEAVY)
        assert outcomes(response) == [("edge", "inference_failed"), ("cloud", "ok")]
        with pytest.raises(errors.InferenceError):
            await scene.infer(2.0, route=Route.EDGE)

    async def test_a_busy_device_escalates_requests_that_may_leave(self, make_scene: MakeScene) -> None:
        scene = make_scene(row_ms=50.0, queue_limit=0)
        scene.echo.gate.clear()
        running = await begun(scene.infer(SURE))
        response = await scene.infer(0.9)
        assert (answer_of(response).tier, answer_of(response).reason) == (Tier.CLOUD, Reason.HEAVY)
        assert outcomes(response) == [("edge", "queue_full"), ("cloud", "ok")]
        with pytest.raises(errors.QueueFullError):
            await scene.infer(0.9, privacy=Privacy.LOCAL_ONLY)
        scene.echo.gate.set()
        assert answer_of(await running).tier is Tier.EDGE
        assert answer_of(await scene.infer(0.91)).tier is Tier.EDGE

    async def test_a_busy_device_answers_from_its_cache(self, make_scene: MakeScene) -> None:
        scene = make_scene(row_ms=50.0, queue_limit=0)
        await scene.infer(SURE, UNSURE, route=Route.EDGE)
        scene.echo.gate.clear()
        running = await begun(scene.infer(0.91))
        response = await scene.infer(SURE, 0.92, UNSURE)
        assert [row.reason for row in answer_of(response).rows] == [Reason.CONFIDENT, Reason.HEAVY, Reason.UNCERTAIN]
        assert scene.sent_rows == [[0.92, 0.6]]
        scene.echo.gate.set()
        await running


class TestInvalid:
    @pytest.mark.parametrize("fields", [{}, {"model": "other"}, {"route": Route.CLOUD}])
    async def test_no_rows(self, scene: Scene, fields: dict[str, Any]) -> None:
        with pytest.raises(errors.InvalidTensorError, match="has no rows; send one at least"):
            await scene.infer(**fields)
        with pytest.raises(errors.InvalidTensorError, match="no rows"):
            await scene.answer(replace(request(SURE, **fields), inputs=()))
        assert scene.cloud.requests == []

    async def test_a_bad_row(self, make_scene: MakeScene) -> None:
        with pytest.raises(errors.InvalidTensorError, match="Row 0"):
            await make_scene().infer(-1.0)

    async def test_an_unknown_input(self, make_scene: MakeScene) -> None:
        infer_request = request(SURE)
        extra = Tensor("y", np.zeros((1, 1), np.float32))
        scene = make_scene()
        with pytest.raises(errors.InvalidTensorError, match="takes one input, 'x'; the request has: 'x', 'y'"):
            await scene.answer(replace(infer_request, inputs=(*infer_request.inputs, extra)))

    async def test_an_unknown_output(self, make_scene: MakeScene) -> None:
        with pytest.raises(errors.InvalidTensorError, match="no output 'logits'; it has: probabilities"):
            await make_scene().infer(SURE, outputs=(RequestedOutput("logits"),))


class TestDeadline:
    async def test_the_edge_answer_at_the_deadline(self, make_scene: MakeScene) -> None:
        clock = SimulatedClock()
        scene = make_scene(clock=clock)
        scene.cloud.gate = asyncio.Event()
        task = await begun(scene.infer(UNSURE, deadline_s=0.5))
        assert scene.cloud.deadlines_s == [pytest.approx(0.48)]  # what the promise and the answer need is kept back
        await clock.advance(0.47)
        assert not task.done()
        await clock.advance(0.02)
        answer = answer_of(await task)
        assert (answer.status, answer.reason, answer.durable) == (Status.PROVISIONAL, Reason.DEADLINE, True)
        assert outcomes(task.result()) == [("edge", "ok"), ("cloud", "deadline_exceeded")]

    async def test_a_late_answer_is_still_remembered(self, make_scene: MakeScene) -> None:
        clock = SimulatedClock()
        scene = make_scene(clock=clock)
        scene.cloud.gate = asyncio.Event()
        task = await begun(scene.infer(UNSURE, deadline_s=0.5))
        await clock.advance(1)
        await task
        scene.cloud.gate.set()
        await settle()
        assert answer_of(await scene.infer(UNSURE)).tier is Tier.CACHE

    async def test_a_passed_deadline_runs_no_model(self, make_scene: MakeScene) -> None:
        scene = make_scene(clock=SimulatedClock(start_s=10))
        assert answer_of(await scene.infer(UNSURE, deadline_s=9.0)).reason is Reason.DEADLINE
        with pytest.raises(errors.DeadlineExceededError):
            await scene.infer(*[SURE] * 20, deadline_s=9.0)
        assert scene.cloud.requests == []

    async def test_a_slow_edge_model_ends_at_the_deadline_too(self, make_scene: MakeScene) -> None:
        clock = SimulatedClock()
        scene = make_scene(clock=clock, row_ms=50.0)
        scene.echo.gate.clear()
        tasks = [asyncio.create_task(scene.infer(value, deadline_s=0.2)) for value in (0.95, 0.94, 0.93)]
        await settle()
        await clock.advance(0.21)
        outcome = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in outcome] == [errors.DeadlineExceededError] * 3
        assert "This device's model was not done" in str(outcome[0])

    async def test_a_request_too_late_for_the_edge_model_is_escalated_at_once(self, make_scene: MakeScene) -> None:
        scene = make_scene(clock=SimulatedClock(), row_ms=100.0)
        scene.echo.gate.clear()
        first = await begun(scene.infer(0.95, deadline_s=0.25))
        second = await begun(scene.infer(0.94, deadline_s=0.25))
        third = answer_of(await scene.infer(0.93, deadline_s=0.25))
        assert third.tier is Tier.CLOUD
        with pytest.raises(errors.QueueFullError) as refusal:  # bound to this device
            await scene.infer(0.92, deadline_s=0.25, route=Route.EDGE)
        assert refusal.value.retry_after_s == 1.0
        scene.echo.gate.set()
        assert [answer_of(await task).tier for task in (first, second)] == [Tier.EDGE, Tier.EDGE]

    @pytest.mark.parametrize(
        ("row_ms", "asked_until_s"),
        [(300.0, 0.68), (float("inf"), 0.48), (5000.0, 0.98)],  # measured, not measured, hopeless
    )
    async def test_time_is_kept_for_an_edge_answer_to_compute(
        self, make_scene: MakeScene, row_ms: float, asked_until_s: float
    ) -> None:
        clock = SimulatedClock()
        scene = make_scene(clock=clock, row_ms=row_ms)
        scene.cloud.gate = asyncio.Event()
        task = await begun(scene.infer(UNSURE, route=Route.CLOUD, deadline_s=1.0))
        assert scene.cloud.deadlines_s == [pytest.approx(asked_until_s)]
        await clock.advance(asked_until_s + 0.01)
        answer = answer_of(await task)
        assert (answer.reason, answer.tier, answer.durable) == (Reason.DEADLINE, Tier.EDGE, True)

    async def test_a_request_without_an_edge_answer_ends_at_the_deadline(self, make_scene: MakeScene) -> None:
        clock = SimulatedClock()
        scene = make_scene(clock=clock)
        scene.cloud.gate = asyncio.Event()
        task = await begun(scene.infer(SURE, model="other"))
        await clock.advance(2)
        with pytest.raises(errors.DeadlineExceededError):
            await task


class TestLatenessGate:
    """The full model is asked only where its answer can be expected before the deadline."""

    async def test_an_escalation_that_would_be_late_is_promised(self, make_scene: MakeScene) -> None:
        scene = make_scene(clock=SimulatedClock())
        scene.cloud.p95_s = 0.6
        context = scene.context(request(SURE, UNSURE, deadline_s=0.6))
        response = await scene.cascade.infer(context)
        answer = answer_of(response)
        assert (answer.status, answer.reason, answer.durable) == (Status.PROVISIONAL, Reason.DEADLINE, True)
        assert yes(response) == [SURE, UNSURE]
        assert scene.cloud.requests == [] and len(scene.promises.items) == 1
        assert outcomes(response) == [("edge", "ok")]
        assert context.cause.startswith("Asking the full model takes up to 600 ms at the moment, and 580 ms are left")

    async def test_an_escalation_in_time_is_sent(self, make_scene: MakeScene) -> None:
        scene = make_scene(clock=SimulatedClock())
        scene.cloud.p95_s = 0.6
        assert answer_of(await scene.infer(UNSURE, deadline_s=0.63)).tier is Tier.CLOUD
        assert scene.gateway.lateness.held_back == 0

    async def test_without_a_deadline_the_devices_own_holds(self, make_scene: MakeScene) -> None:
        scene = make_scene(clock=SimulatedClock())
        scene.cloud.p95_s = 1.99
        assert answer_of(await scene.infer(UNSURE)).reason is Reason.DEADLINE
        scene.cloud.p95_s = 1.97
        assert answer_of(await scene.infer(UNSURE)).tier is Tier.CLOUD

    async def test_an_unmeasured_link_is_tried(self, make_scene: MakeScene) -> None:
        scene = make_scene(clock=SimulatedClock())
        assert answer_of(await scene.infer(UNSURE, deadline_s=0.01)).tier is Tier.CLOUD

    async def test_a_request_without_an_edge_answer_is_always_sent(self, make_scene: MakeScene) -> None:
        for scene in (make_scene(clock=SimulatedClock()), make_scene(clock=SimulatedClock(), loads=False)):
            scene.cloud.p95_s = 10.0
            assert answer_of(await scene.infer(*[UNSURE] * 20)).tier is Tier.CLOUD
        slow = make_scene(clock=SimulatedClock(), row_ms=5000.0)
        slow.cloud.p95_s = 10.0
        assert answer_of(await slow.infer(SURE, route=Route.CLOUD, deadline_s=1.0)).tier is Tier.CLOUD

    async def test_a_row_in_flight_is_awaited(self, make_scene: MakeScene) -> None:
        scene = make_scene(clock=SimulatedClock())
        scene.cloud.gate = asyncio.Event()
        first = await begun(scene.infer(UNSURE))
        scene.cloud.p95_s = 10.0
        second = await begun(scene.infer(UNSURE))
        scene.cloud.gate.set()
        assert {answer_of(answer).tier for answer in await asyncio.gather(first, second)} == {Tier.CLOUD}
        assert len(scene.cloud.requests) == 1

    async def test_only_the_rows_that_would_travel_count(self, make_scene: MakeScene) -> None:
        scene = make_scene(clock=SimulatedClock())
        sizes: list[int] = []

        def predicted_s(size_bytes: int) -> float:
            sizes.append(size_bytes)
            return 0.0

        scene.cloud.predicted_s = predicted_s  # type: ignore[method-assign]
        await scene.infer(SURE, UNSURE, SURE, 0.7)
        assert sizes == [8]


class TestTogether:
    async def test_equal_requests_cross_the_link_once(self, scene: Scene) -> None:
        scene.cloud.gate = asyncio.Event()
        tasks = [asyncio.create_task(scene.infer(UNSURE, UNSURE)) for _ in range(5)]
        await settle()
        scene.cloud.gate.set()
        responses = await asyncio.gather(*tasks)
        assert scene.sent_rows == [[0.6]]
        assert all(yes(response) == [0.01] * 2 and answer_of(response).tier is Tier.CLOUD for response in responses)
        assert len({answer_of(response).request_id for response in responses}) == 5
        assert all(("cloud", "ok") in outcomes(response) for response in responses)

    async def test_models_without_a_full_digest_are_not_mixed_up(self, make_scene: MakeScene) -> None:
        scene = make_scene(full=False)
        scene.hold_also("other")
        scene.cloud.digest = ""
        scene.cloud.gate = asyncio.Event()
        tasks = [asyncio.create_task(scene.infer(UNSURE, model=model)) for model in ("m", "other", "m")]
        await settle()
        assert [sent.model for sent in scene.cloud.requests] == ["m", "other"]
        scene.cloud.gate.set()
        assert [(await task).model for task in tasks] == ["m", "other", "m"]

    async def test_a_joined_answer_is_not_more_certified_than_the_first(self, make_scene: MakeScene) -> None:
        scene = make_scene(full=False)  # the gateway need not say which model answered
        scene.cloud.gate = asyncio.Event()
        tasks = [asyncio.create_task(scene.infer(UNSURE)) for _ in range(2)]
        await settle()
        scene.cloud.gate.set()
        answers = [answer_of(response) for response in await asyncio.gather(*tasks)]
        assert [(answer.certified, answer.model_digest) for answer in answers] == [(False, "")] * 2
        assert len(scene.cloud.requests) == 1

    @pytest.mark.parametrize("value", [0.95, 0.6, 1.5], ids=["kept", "escalated", "failed"])
    async def test_a_quick_model_runs_once(self, value: float, scene: Scene) -> None:
        found = await scene.infer(value)
        assert scene.echo.runs == [[value]]
        assert [tried.tier for tried in found.answer.attempts].count(Tier.EDGE) == 1

    @pytest.mark.parametrize(
        ("values", "sample_bytes", "row_ms"),
        [((0.9,), 4, 0.4), ((0.9, 0.91, 0.92), 4, 0.4), ((0.9,), 1, 1.6)],
        ids=["small", "many rows", "large rows"],
    )
    async def test_only_small_requests_run_on_the_event_loop(
        self, make_scene: MakeScene, values: tuple[float, ...], sample_bytes: int, row_ms: float
    ) -> None:
        scene, threads, expected_s = make_scene(row_ms=0.4), list[threading.Thread](), list[float]()
        pace = SimpleNamespace(
            factor=1.0, sure=1.0, off_loop=0, ran=lambda _took_s, measured_s: expected_s.append(measured_s)
        )
        edge = dataclasses.replace(scene.held.edge, sample_bytes=sample_bytes, pace=pace)
        scene.models.put(dataclasses.replace(scene.held, edge=edge))
        scene.echo.gate.wait = lambda: threads.append(threading.current_thread())
        await scene.infer(*values)
        expected_ms = row_ms * len(values)
        assert [thread is threading.main_thread() for thread in threads] == [expected_ms < 1]
        assert expected_s == [pytest.approx(expected_ms / 1000)]

    async def test_a_slow_model_runs_equal_rows_once(self, make_scene: MakeScene) -> None:
        scene = make_scene(row_ms=50.0)
        responses = await asyncio.gather(*(scene.infer(SURE) for _ in range(4)))
        assert scene.echo.runs == [[0.95]]
        assert [yes(response) for response in responses] == [[SURE]] * 4
