"""`infer_many`, and jobs through both clients, against a gateway in this process."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.asker import Asker
from support.digits import scan
from support.gateway import serving_gateway

import firstline
from firstline import AsyncClient, Classification, Client, FirstlineError, Outcome, errors
from firstline.client.calls import Call, ready
from firstline.client.retries import final_answer, job_result, retried
from firstline_core.types import InferResponse

ROWS = 40


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (ROWS, 1, 8, 8, 1), dtype=np.uint8)


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with serving_gateway(tmp_path, auth__mode="off", execution__queue_requests=2) as (_, found):
        yield found


@pytest.fixture(params=["sync", "async"])
async def ask(request: pytest.FixtureRequest, url: str) -> AsyncIterator[Asker]:
    async with Asker(request.param, url) as found:
        yield found


@pytest.mark.parametrize("ordered", [True, False])
async def test_many_requests_are_answered_despite_a_full_queue(ask: Asker, pixels: np.ndarray, ordered: bool) -> None:
    done: list[int] = []
    found = await ask.all(
        "infer_many",
        "digits",
        ({"image": row} for row in pixels),
        in_flight=24,
        ordered=ordered,
        on_progress=done.append,
    )
    positions = [outcome.position for outcome in found]
    assert (positions == sorted(positions)) or not ordered
    assert sorted(positions) == list(range(ROWS))
    assert done == list(range(1, ROWS + 1))
    expected = (await ask("infer", "digits", {"image": pixels[:, 0]})).output("probabilities")
    for outcome in found:
        (answered,) = outcome.result().output("probabilities")
        np.testing.assert_allclose(answered, expected[outcome.position], atol=1e-5)


async def test_one_failed_request_does_not_affect_others(ask: Asker, pixels: np.ndarray) -> None:
    first, wrong, last = await ask.all(
        "infer_many", "digits", [{"image": pixels[0]}, {"picture": pixels[1]}, {"image": pixels[2]}]
    )
    assert isinstance(wrong.error, errors.InvalidTensorError)
    with pytest.raises(errors.InvalidTensorError, match="picture"):
        wrong.result()
    assert first.response is not None
    assert last.response is not None
    assert await ask.all("infer_many", "digits", []) == []


async def test_requests_are_read_only_as_needed(ask: Asker, pixels: np.ndarray) -> None:
    read: list[int] = []

    def requests() -> Iterator[dict[str, np.ndarray]]:
        for number, row in enumerate(pixels):
            read.append(number)
            yield {"image": row}

    if isinstance(ask.client, AsyncClient):
        coming = ask.client.infer_many("digits", requests(), in_flight=3)
        assert (await anext(coming)).position == 0
        await coming.aclose()  # type: ignore[attr-defined]
    else:
        running = ask.client.infer_many("digits", requests(), in_flight=3)
        assert (await asyncio.to_thread(next, running)).position == 0
        running.close()  # type: ignore[attr-defined]
    assert len(read) == 3
    with pytest.raises(ValueError, match="in_flight is 0"):
        await ask.all("infer_many", "digits", requests(), in_flight=0)


def test_no_request_is_retried_once_the_outcomes_are_no_longer_taken(unused_tcp_port: int) -> None:
    with Client(f"http://127.0.0.1:{unused_tcp_port}") as client:
        outcomes = client.infer_files("digits", [b"a", b"b", Path("absent.png")], ordered=False, patience_s=600)
        assert isinstance(next(outcomes).error, errors.InvalidTensorError)
        threads = [each for each in threading.enumerate() if each.name.startswith("infer-many")]
        assert threads
        outcomes.close()
        for each in threads:
            each.join(10)
            assert not each.is_alive()


def test_temporary_errors_are_retried_within_the_patience() -> None:
    full = firstline.errors.QueueFullError("no room", retry_after_s=2.0)
    steps = retried(7, ready, patience_s=60)
    restarts = errors.LinkError("a proxy answered 502")
    for error, least_s, most_s in ((full, 2, 2.1), (errors.LinkDownError("gone"), 0, 0.2), (restarts, 0, 0.4)):
        assert isinstance(next(steps), Call)
        assert least_s <= steps.throw(error) <= most_s
    next(steps)
    with pytest.raises(StopIteration) as end:
        steps.send(True)
    assert end.value.value == Outcome(7, True)
    late, wrong, broken, garbled = (
        errors.DeadlineExceededError("late"),
        errors.InvalidTensorError("wrong"),
        FirstlineError("broken"),
        errors.ProtocolError("not HTTP"),
    )
    for final, patience_s in ((late, 60), (wrong, 60), (broken, 60), (garbled, 60), (full, 1)):
        steps = retried(0, ready, patience_s)
        next(steps)
        with pytest.raises(StopIteration) as end:
            steps.throw(final)
        assert end.value.value == Outcome(0, error=final)


def test_a_job_is_waited_for_while_its_gateway_restarts() -> None:
    steps = job_result(ready(), "an id", timeout_s=60, silence_s=15)
    assert isinstance(next(steps), Call)
    for error in (errors.LinkError("a proxy answered 502"), errors.LinkDownError("gone"), errors.NotReadyError("busy")):
        assert isinstance(steps.throw(error), float)
        assert isinstance(next(steps), Call)
    with pytest.raises(errors.ProtocolError):
        steps.throw(errors.ProtocolError("not HTTP"))


def test_a_final_answer_is_waited_for_while_its_agent_restarts() -> None:
    away = errors.LinkDownError("gone")
    steps = final_answer("an id", timeout_s=60)
    assert isinstance(next(steps), Call)
    for error in (away, errors.QueueFullError("busy")):
        assert isinstance(steps.throw(error), float)
        assert isinstance(next(steps), Call)
    with pytest.raises(errors.UnknownAnswerError):
        steps.throw(errors.UnknownAnswerError("none"))
    steps = final_answer("an id", timeout_s=0)
    next(steps)
    with pytest.raises(errors.LinkDownError):
        steps.throw(away)


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("method", ["result", "result_file", "wait_for_final"])
async def test_a_silent_server_is_waited_for_no_longer_than_asked(
    kind: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firstline.client.calls._ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with asyncio.timeout(10), Asker(kind, f"http://127.0.0.1:{silent.getsockname()[1]}") as ask:
            with pytest.raises(errors.RemoteTimeoutError):
                await ask(method, "an id", timeout_s=0.1)


async def test_jobs_are_submitted_fetched_and_forgotten(ask: Asker, pixels: np.ndarray) -> None:
    job = await ask("submit", "digits", {"image": pixels[0]}, id="mine")
    found: InferResponse = await ask("result", job)
    assert found.id == "mine"
    at_once = await ask("infer", "digits", {"image": pixels[0]})
    np.testing.assert_allclose(found.output("probabilities"), at_once.output("probabilities"), atol=1e-6)
    picture = scan()
    job = await ask("submit_file", "digits", picture)
    words: Classification = await ask("result_file", job)
    assert words.label == (await ask("infer_file", "digits", picture)).label
    await ask("forget", job)
    for call in ("result", "forget"):
        with pytest.raises(errors.UnknownAnswerError):
            await ask(call, job)
    failing = await ask("submit", "digits", {"image": pixels[:1]})
    with pytest.raises(errors.InvalidTensorError):
        await ask("result", failing)
    with pytest.raises(errors.InvalidTensorError, match="picture"):
        await ask("submit", "digits", {"picture": pixels[0]})
    late = await ask("submit", "digits", {"image": pixels[0]}, timeout_ms=0.001)
    with pytest.raises(errors.DeadlineExceededError):  # the job's own, and no reason to ask again
        await ask("result", late, timeout_s=1e9)
