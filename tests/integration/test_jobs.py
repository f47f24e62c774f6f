"""Jobs over HTTP: an accepted job is answered, whatever process ends and whichever runs it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from sqlalchemy import select, update
from support.audits import note_of, request_from
from support.databases import POSTGRESQL, PostgreSql
from support.gateway import GatedExecutor, gateway_of, gateway_settings, serving
from support.keys import bearer, create_key, revoke_key
from support.waiting import until

from firstline.client.async_client import AsyncClient
from firstline_core import errors
from firstline_core.protocol.oip import encode_request
from firstline_core.types import InferRequest, InferResponse
from firstline_gateway.app import Gateway, open_gateway
from firstline_gateway.jobs import jobs as jobs_module
from firstline_gateway.jobs import records
from firstline_gateway.jobs.records import JOBS
from firstline_gateway.settings.settings import Settings

INFER = "/v2/models/digits/infer"
ASYNC = {"Prefer": "respond-async"}
ROW = {"id": "mine", "inputs": [{"name": "image", "datatype": "UINT8", "shape": [1, 8, 8, 1], "data": [0] * 64}]}


def settings_of(folder: Path, **overrides: object) -> Settings:
    return gateway_settings(folder, **({"auth__mode": "off"} | overrides))


@asynccontextmanager
async def running(
    settings: Settings, executor: GatedExecutor | None = None
) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    gateway = open_gateway(settings) if executor is None else gateway_of(settings, executor)
    async with serving(gateway) as url, httpx.AsyncClient(base_url=url, timeout=20) as client:
        yield gateway, client


async def submit(client: httpx.AsyncClient, body: object = ROW, path: str = INFER, **headers: str) -> str:
    reply = await client.post(path, content=json.dumps(body), headers=ASYNC | headers)
    assert reply.status_code == 202, reply.text
    document = reply.json()
    assert reply.headers["Location"] == f"/firstline/v1/answers/{document['request_id']}"
    assert (document["status"], document["durable"]) == ("pending", True)
    return str(document["request_id"])


async def fetch(client: httpx.AsyncClient, job_id: str, form: str = "v2", **headers: str) -> httpx.Response:
    """What came of it."""
    async with asyncio.timeout(20):
        while True:
            reply = await client.get(f"/firstline/v1/answers/{job_id}", params={"form": form}, headers=headers)
            if reply.status_code != 202:
                return reply
            assert reply.headers["Retry-After"] == "1"
            await asyncio.sleep(0.01)


async def let_go(executor: GatedExecutor, client: httpx.AsyncClient, jobs: list[str], **headers: str) -> None:
    """Has batches end until these jobs have."""
    fetched = asyncio.gather(*(fetch(client, job, **headers) for job in jobs))
    while not fetched.done():
        if executor.held:
            executor.release()
        await asyncio.sleep(0.001)
    assert [reply.status_code for reply in fetched.result()] == [200] * len(jobs)


async def test_job_has_the_answer_of_a_direct_request(tmp_path: Path) -> None:
    async with running(settings_of(tmp_path)) as (gateway, client):
        at_once = (await client.post(INFER, content=json.dumps(ROW))).json()
        document = (await fetch(client, job_id := await submit(client))).json()
        assert document["outputs"] == at_once["outputs"]
        assert (document["id"], document["parameters"]["request_id"]) == ("mine", job_id)
        words = (await fetch(client, job_id, form="short")).json()
        assert words["label"] == words["top"][0]["label"]
        classes = ROW | {"outputs": [{"name": "probabilities", "parameters": {"classification": 2}}]}
        classified = await submit(client, classes, Prefer="wait=5, Respond-Async; x=1")
        (output,) = (await fetch(client, classified)).json()["outputs"]
        assert (output["datatype"], output["shape"]) == ("BYTES", [1, 2])
        assert len((await fetch(client, classified, form="short")).json()["outputs"]["probabilities"][0]) == 2
        registry = gateway.metrics.registry  # a job is counted after its answer is stored
        await until(lambda: registry.get_sample_value("firstline_gateway_jobs_total", {"event": "answered"}) == 2)
        assert (await client.delete(f"/firstline/v1/answers/{job_id}")).json()["deleted"]
        assert (await fetch(client, job_id)).status_code == 404
        assert (await client.delete(f"/firstline/v1/answers/{job_id}")).status_code == 404
        assert (await fetch(client, job_id, form="other")).status_code == 400


async def test_preferences_may_be_on_several_lines(tmp_path: Path) -> None:
    async with running(settings_of(tmp_path)) as (_, client):
        lines = [("Prefer", "wait=5"), *ASYNC.items()]
        assert (await client.post(INFER, content=json.dumps(ROW), headers=lines)).status_code == 202


async def test_job_of_an_audit_is_answered_as_another(tmp_path: Path) -> None:
    async with running(settings_of(tmp_path)) as (gateway, client):
        audit = request_from("", note_of(gateway.repository.resolve("digits", "")))
        body = json.loads(encode_request(audit, binary=False).body)
        assert (await fetch(client, await submit(client, body))).json()["outputs"]
        await asyncio.wrap_future(gateway.contracts.refresh())
        assert gateway.contracts.pools() == []


async def test_invalid_jobs_are_refused_and_not_stored(tmp_path: Path) -> None:
    async with running(settings_of(tmp_path)) as (gateway, client):
        wrong = {"inputs": [{"name": "picture", "datatype": "UINT8", "shape": [1], "data": [1]}]}
        for body, path, status in (
            (wrong, INFER, 400),
            (ROW, "/v2/models/nobody/infer", 404),
            (ROW | {"parameters": {"privacy": "local_only"}}, INFER, 400),
        ):
            reply = await client.post(path, content=json.dumps(body), headers=ASYNC)
            assert reply.status_code == status
        with gateway.store.database.reading() as connection:
            assert connection.execute(select(JOBS.c.job_id)).all() == []
        pixels = {"inputs": [{"name": "image", "datatype": "UINT8", "shape": [1, 3, 8, 8, 1], "data": [0] * 192}]}
        failed = await fetch(client, await submit(client, pixels))
        assert failed.status_code == 400
        assert failed.json()["code"] == "invalid_tensor"


async def test_jobs_are_private_and_limited_per_caller(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, auth__mode="tokens", auth__refresh_s=0.1, jobs__limit=4)
    executor = GatedExecutor()
    async with running(settings, executor) as (_, client):
        anna, bob = (bearer(create_key(settings.store, name)) for name in ("anna", "bob"))
        mine = [await submit(client, **anna), await submit(client, **anna)]
        full = await client.post(INFER, content=json.dumps(ROW), headers=ASYNC | anna)
        assert (full.status_code, full.json()["code"]) == (503, "queue_full")
        assert full.headers["Retry-After"]
        await submit(client, **bob)  # what is left free
        assert (await client.get(f"/firstline/v1/answers/{mine[0]}", headers=anna)).status_code == 202
        assert (await client.get(f"/firstline/v1/answers/{mine[0]}", headers=bob)).status_code == 404
        assert (await client.delete(f"/firstline/v1/answers/{mine[0]}", headers=bob)).status_code == 404
        assert (await client.get(f"/firstline/v1/answers/{mine[0]}")).status_code == 401
        await let_go(executor, client, mine, **anna)


async def test_direct_requests_run_before_jobs(tmp_path: Path) -> None:
    executor = GatedExecutor()
    async with running(settings_of(tmp_path, execution__max_batch_rows=1), executor) as (gateway, client):
        jobs = [await submit(client) for _ in range(3)]
        await until(lambda: executor.held > 0)
        two = {"inputs": [{"name": "image", "datatype": "UINT8", "shape": [2, 8, 8, 1], "data": [0] * 128}]}
        waiting = asyncio.create_task(client.post(INFER, content=json.dumps(two)))
        await until(lambda: gateway.plane.under_way.count == 4)
        await let_go(executor, client, jobs)
        rows = [len(batch[0]) for _, batch in executor.batches]
        assert rows == [1, 2, 1, 1]
        assert (await waiting).status_code == 200


async def test_job_survives_a_restart(tmp_path: Path) -> None:
    settings, executor = settings_of(tmp_path), GatedExecutor()
    async with running(settings, executor) as (gateway, client):
        jobs = [await submit(client) for _ in range(3)]
        await until(lambda: executor.held > 0)
        await gateway.drain(0.1)
        with gateway.store.database.reading() as connection:
            rows = connection.execute(select(JOBS.c.status, JOBS.c.holder, JOBS.c.attempts)).all()
        assert [tuple(row) for row in rows] == [(0, "", 0)] * 3
        executor.release()
    async with running(settings) as (_, client):
        for job in jobs:
            assert (await fetch(client, job)).status_code == 200


async def test_jobs_of_a_killed_gateway_are_retried_five_times(tmp_path: Path) -> None:
    settings, executor = settings_of(tmp_path), GatedExecutor()
    async with running(settings, executor) as (gateway, client):
        jobs = [await submit(client), await submit(client)]
        await gateway.jobs.close()
        with gateway.store.database.begin() as connection:
            for job, attempts in zip(jobs, (1, jobs_module._ATTEMPTS), strict=True):
                connection.execute(
                    update(JOBS)
                    .where(JOBS.c.job_id == job)
                    .values(holder="killed", lease_service_s=1e9, attempts=attempts)
                )
        while executor.held:
            executor.release()
    async with running(settings) as (_, client):
        assert (await fetch(client, jobs[0])).status_code == 200
        given_up = await fetch(client, jobs[1])
        assert (given_up.status_code, "is given up" in given_up.json()["error"]) == (500, True)


async def test_retried_jobs_run_one_at_a_time(tmp_path: Path) -> None:
    executor = GatedExecutor(slots=4)
    async with running(settings_of(tmp_path, execution__max_batch_rows=1), executor) as (gateway, client):
        await gateway.jobs.close()
        jobs = [await submit(client) for _ in range(3)]
        with gateway.store.database.begin() as connection:
            connection.execute(update(JOBS).values(attempts=1))
        fresh = [await submit(client), await submit(client)]
        await gateway.jobs.start()
        await until(lambda: executor.held == 3)
        await gateway.jobs._claim()
        with gateway.store.database.reading() as connection:
            begun = connection.execute(select(JOBS.c.job_id).where(JOBS.c.holder != "").order_by(JOBS.c.sequence))
            assert [job for (job,) in begun] == [jobs[0], *fresh]
        await let_go(executor, client, jobs + fresh)


async def test_deadline_counts_from_submission(tmp_path: Path) -> None:
    executor = GatedExecutor()
    async with running(settings_of(tmp_path), executor) as (gateway, client):
        await gateway.jobs.close()
        late = await submit(client, ROW | {"parameters": {"timeout": 1}})
        await gateway.jobs.start()
        reply = await fetch(client, late)
        assert (reply.status_code, reply.json()["code"]) == (504, "deadline_exceeded")


async def test_damaged_jobs_and_answers_are_not_returned(tmp_path: Path) -> None:
    async with running(settings_of(tmp_path)) as (gateway, client):
        await gateway.jobs.close()
        damaged, whole = await submit(client), await submit(client)
        with gateway.store.database.begin() as connection:
            connection.execute(update(JOBS).where(JOBS.c.job_id == damaged).values(content=b"damaged"))
        await gateway.jobs.start()
        assert (await fetch(client, whole)).status_code == 200
        assert "The disk has damaged what was asked" in (await fetch(client, damaged)).json()["error"]
        with gateway.store.database.begin() as connection:
            connection.execute(update(JOBS).values(content=b"damaged"))
        assert (await fetch(client, whole)).status_code == 404


async def test_job_over_the_store_limit_is_refused(tmp_path: Path) -> None:
    async with running(settings_of(tmp_path, jobs__bytes_limit=200)) as (_, client):
        reply = await client.post(INFER, content=json.dumps(ROW), headers=ASYNC)
        assert (reply.status_code, reply.json()["code"]) == (413, "payload_too_large")


async def test_expired_job_states_the_outage(tmp_path: Path) -> None:
    executor = GatedExecutor()
    executor.away = "The servers behind are away."
    async with running(settings_of(tmp_path, jobs__age_s=0.5), executor) as (gateway, client):
        assert not gateway.plane.ready()
        job = await submit(client)
        reply = await fetch(client, job)
        assert (reply.status_code, reply.json()["code"]) == (504, "deadline_exceeded")
        assert executor.away in reply.json()["error"]


async def test_expired_job_hides_what_only_the_operator_may_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: object) -> InferResponse:
        raise errors.StoreUnavailableError("10.0.0.7 refuses.", public="The gateway's store refuses.")

    async with running(settings_of(tmp_path, jobs__age_s=0.5)) as (gateway, client):
        monkeypatch.setattr(gateway.plane, "infer", refuse)
        ended = (await fetch(client, await submit(client))).json()["error"]
        assert ended == "The job could not be run within 0.5 s (jobs.age_s). The gateway's store refuses."


async def test_job_whose_answer_was_not_stored_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_LEASE_S", 0.5), ("_RENEW_S", 0.1), ("_LOOK_S", 0.1)):
        monkeypatch.setattr(jobs_module, name, seconds)
    executor = GatedExecutor(slots=2)
    async with running(settings_of(tmp_path, execution__max_batch_rows=1), executor) as (_, client):
        jobs = [await submit(client), await submit(client)]
        await until(lambda: executor.held == 2)
        with monkeypatch.context() as outage:
            refused = []

            def refuse(*_: object) -> None:
                refused.append(1)
                raise errors.StoreUnavailableError("The disk is full.")

            outage.setattr(records, "end", refuse)
            outage.setattr(records, "release", refuse)
            executor.release()
            await until(lambda: len(refused) >= 2)
        await until(lambda: executor.held == 2)  # the other runs on, and its lease is renewed
        await let_go(executor, client, jobs)


async def test_caller_may_wait_for_the_end_of_a_job(tmp_path: Path) -> None:
    executor = GatedExecutor()
    async with running(settings_of(tmp_path), executor) as (gateway, client):
        address = f"/firstline/v1/answers/{(job := await submit(client))}"
        for preference, applied in (("wait=0", None), ("wait=soon", None), ("wait=-1", None), ("wait=1", "wait=1")):
            reply = await client.get(address, headers={"Prefer": preference})
            assert (reply.status_code, reply.headers.get("Preference-Applied")) == (202, applied), preference
        waiting = asyncio.create_task(client.get(address, headers={"Prefer": "handling=strict, wait=99999"}))
        await until(lambda: bool(gateway.jobs.waiters._waiting) and executor.held > 0)
        executor.release()
        reply = await waiting
        assert (reply.status_code, reply.headers["Preference-Applied"]) == (200, "wait=60")
        assert reply.json()["request_id"] == job
        assert not gateway.jobs.waiters._waiting
        unknown = await client.get("/firstline/v1/answers/nobody", headers={"Prefer": "wait=60"})
        assert unknown.status_code == 404


async def test_deleted_job_and_disconnected_caller_end_the_wait(tmp_path: Path) -> None:
    executor = GatedExecutor()
    async with running(settings_of(tmp_path, auth__refresh_s=0.1), executor) as (gateway, client):
        address = f"/firstline/v1/answers/{await submit(client)}"
        waiting, leaving = (asyncio.create_task(client.get(address, headers={"Prefer": "wait=60"})) for _ in range(2))
        await until(lambda: gateway.jobs.waiters._waits_of.total() == 2 and executor.held > 0)
        leaving.cancel()
        await until(lambda: gateway.jobs.waiters._waits_of.total() == 1)
        assert (await client.delete(address)).status_code == 200
        assert (await waiting).status_code == 404
        assert not gateway.jobs.waiters._waiting
        executor.release()


async def test_answer_of_a_job_is_an_event(tmp_path: Path) -> None:
    executor = GatedExecutor()
    async with running(settings_of(tmp_path), executor) as (gateway, client):
        address = f"/firstline/v1/answers/{(job := await submit(client))}/events"
        async with client.stream("GET", address, params={"form": "v2"}) as stream:
            assert stream.headers["Content-Type"].startswith("text/event-stream")
            pieces = stream.aiter_text()
            assert await anext(pieces) == ":\n\n"
            await until(lambda: executor.held > 0)
            executor.release()
            document = "".join([piece async for piece in pieces])
        first, data = document.removesuffix("\n\n").split("\n")
        assert first == "id: 2"
        assert json.loads(data.removeprefix("data: "))["parameters"]["request_id"] == job
        assert not gateway.jobs.waiters._waiting
        assert (await client.get(address)).text.startswith('id: 2\ndata: {"request_id"')
        assert (await client.get(address, headers={"Last-Event-ID": "2"})).status_code == 204
        assert (await client.get(address, headers={"Last-Event-ID": "3"})).status_code == 400
        assert (await client.get(address, params={"form": "other"})).status_code == 400
        assert (await client.get("/firstline/v1/answers/nobody/events")).status_code == 404


async def test_event_stream_ends_if_the_answer_has_no_such_view(tmp_path: Path) -> None:
    executor = GatedExecutor()
    async with running(settings_of(tmp_path), executor) as (gateway, client):
        address = f"/firstline/v1/answers/{await submit(client)}/events"
        async with client.stream("GET", address, params={"masks": "png"}) as stream:
            pieces = stream.aiter_text()
            assert await anext(pieces) == ":\n\n"
            await until(lambda: executor.held > 0)
            executor.release()
            assert [piece async for piece in pieces] == []
        refused = await client.get(address, params={"masks": "png"})
        assert refused.status_code == 400
        assert "does not apply to classification" in refused.json()["error"]
        assert not gateway.jobs.waiters._waiting


async def test_revoked_key_ends_the_wait_and_the_stream(tmp_path: Path) -> None:
    settings, executor = settings_of(tmp_path, auth__mode="tokens", auth__refresh_s=0.1), GatedExecutor()
    async with running(settings, executor) as (gateway, client):
        anna, bob = (bearer(create_key(settings.store, name)) for name in ("anna", "bob"))
        tasks = []
        for key in (anna, bob):
            address = f"/firstline/v1/answers/{await submit(client, **key)}"
            tasks.append(asyncio.create_task(client.get(address, headers={"Prefer": "wait=60"} | key)))
        streamed = f"/firstline/v1/answers/{await submit(client, **anna)}/events"
        async with client.stream("GET", streamed, headers=anna) as stream:
            pieces = stream.aiter_text()
            assert await anext(pieces) == ":\n\n"
            await until(lambda: gateway.jobs.waiters._waits_of.total() == 3)
            revoke_key(settings.store, "anna")
            async with asyncio.timeout(10):  # less than the wait, and than a heartbeat
                refused = await tasks[0]
                assert [piece async for piece in pieces] == []
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
        while not tasks[1].done():
            if executor.held:
                executor.release()
            await asyncio.sleep(0.001)
        assert (await tasks[1]).status_code == 200  # no other caller is
        assert not gateway.jobs.waiters._waiting


async def test_client_follows_events_of_a_job(tmp_path: Path) -> None:
    async with running(settings_of(tmp_path)) as (gateway, client):
        good = await submit(client, ROW)
        late = await submit(client, ROW | {"parameters": {"timeout": 1}})
        async with AsyncClient(str(client.base_url)) as firstline:
            (only,) = [event async for event in firstline.events(good)]
            assert only.answer.request_id == good
            with pytest.raises(errors.DeadlineExceededError):
                [event async for event in firstline.events(late, patience_s=60)]
            assert (await firstline.result(good)).output("probabilities").shape == (1, 10)
        assert not gateway.jobs.waiters._waiting


async def test_waiting_callers_are_limited_and_released_by_a_drain(tmp_path: Path) -> None:
    executor = GatedExecutor()
    async with running(settings_of(tmp_path, jobs__waiting_limit=4), executor) as (gateway, client):
        address = f"/firstline/v1/answers/{await submit(client)}"

        async def streamed() -> str:
            async with client.stream("GET", f"{address}/events") as stream:
                return "".join([piece async for piece in stream.aiter_text()])

        waiting = asyncio.create_task(client.get(address, headers={"Prefer": "wait=60"}))
        streaming = asyncio.create_task(streamed())
        await until(lambda: gateway.jobs.waiters._waits_of.total() == 2 and executor.held > 0)
        for path, headers in ((address, {"Prefer": "wait=60"}), (f"{address}/events", {})):
            refused = await client.get(path, headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (503, "queue_full")
            assert "half of jobs.waiting_limit" in refused.json()["error"]
        with ExitStack() as others:
            for principal in ("one", "another"):
                others.enter_context(gateway.jobs.waiters.watch("job", principal))
            with pytest.raises(errors.QueueFullError, match="4 callers wait"):
                others.enter_context(gateway.jobs.waiters.watch("job", "a third"))
        assert (await client.get(address)).status_code == 202
        await gateway.drain(5)
        assert (await waiting).status_code == 202
        assert await streaming == ":\n\n"
        assert (await client.get(address, headers={"Prefer": "wait=60"})).status_code == 202
        executor.release()


async def test_replicas_share_jobs_and_take_over_after_a_crash(
    tmp_path: Path, postgresql: PostgreSql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "_LEASE_S", 1.0)
    monkeypatch.setattr(jobs_module, "_LOOK_S", 0.1)
    url = postgresql.new_database()
    first, second = (settings_of(tmp_path / name, store__url=url, jobs__in_flight=2) for name in ("a", "b"))
    executor = GatedExecutor()
    async with running(first, executor) as (dying, client), running(second) as (_, other):
        jobs = [await submit(client) for _ in range(20)]
        await dying.jobs._tasks[1].close()  # it renews no lease any more, nor ends what it holds
        for job in jobs:
            ended = await client.get(f"/firstline/v1/answers/{job}", headers={"Prefer": "wait=30"})  # by the other
            assert ended.status_code == 200
            assert (await fetch(other, job)).status_code == 200
        nul = await other.get("/firstline/v1/answers/%00")
        assert (nul.status_code, "NUL" in nul.json()["error"]) == (400, True)
        while executor.running or dying.plane.under_way.count:
            if executor.held:
                executor.release()
            await asyncio.sleep(0.001)
    assert POSTGRESQL in url


async def test_a_job_keeps_its_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traces: list[object] = []
    async with running(settings_of(tmp_path)) as (gateway, client):
        infer = gateway.plane.infer

        async def noting(request: InferRequest) -> InferResponse:
            traces.append(request.trace and request.trace.trace_id)
            return await infer(request)

        monkeypatch.setattr(gateway.plane, "infer", noting)
        traced = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        await fetch(client, await submit(client, **traced))
        await fetch(client, await submit(client))
    assert traces == ["0af7651916cd43dd8448eb211c80319c", None]
