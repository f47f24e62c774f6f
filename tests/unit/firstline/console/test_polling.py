"""The gateway is asked at a bounded pace, however many pages ask; and what is old says how old."""

import asyncio
import threading

import pytest

from firstline.console import polling
from firstline.console.polling import PACE_S, Watch
from firstline.fleet.client import Fleet
from firstline_core import errors
from firstline_core.fleet.persons import Person, Role


class PolledGateway:
    """A watch on a clock that a test moves, and a gateway that says its number of answers."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.asked = 0
        self.takes_s = 0.0
        self.error: errors.FirstlineError | None = None
        self.watch = Watch(self, monotonic=lambda: self.now_s, wall=lambda: 1e9 + self.now_s)

    def fetch(self, fleet: Fleet) -> int:
        assert fleet is self
        self.asked += 1
        self.now_s += self.takes_s
        if self.error is not None:
            raise self.error
        return self.asked

    async def ask(self, *question: str) -> polling.Answer[int]:
        return await self.watch.ask(question or ("devices",), self.fetch)


async def test_pages_with_the_same_question_share_a_request() -> None:
    gateway = PolledGateway()
    answers = await asyncio.gather(*(gateway.ask() for _ in range(50)))
    assert gateway.asked == 1 and {answer.value for answer in answers} == {1}
    gateway.now_s += PACE_S - 0.1
    assert (await gateway.ask()).value == 1
    gateway.now_s += 0.2
    assert (await gateway.ask()).value == 2
    assert (await gateway.ask("another")).value == 3


async def test_a_slow_gateway_is_polled_less_often() -> None:
    gateway = PolledGateway()
    gateway.takes_s = 1.5
    await gateway.ask()
    gateway.now_s += 14.9
    assert (await gateway.ask()).value == 1
    gateway.now_s += 0.2
    assert (await gateway.ask()).value == 2


async def test_the_last_answer_stays_with_its_time_until_the_gateway_returns() -> None:
    gateway = PolledGateway()
    assert (await gateway.ask()).heard_s == 1e9 + 100
    gateway.now_s, gateway.error = 200.0, errors.LinkDownError("away")
    for _ in range(2):
        answer = await gateway.ask()
        assert answer.stale and answer.value == 1 and answer.heard_s == 1e9 + 100 and answer.error is gateway.error
        gateway.now_s += 100
    # Another question has no answer of its own: it is as old as the gateway's latest word.
    other = await gateway.ask("another")
    assert other.stale and other.value is None and other.heard_s == 1e9 + 100
    gateway.error = None
    gateway.now_s += 100
    back = await gateway.ask()
    assert not back.stale and back.heard_s == 1e9 + gateway.now_s


@pytest.mark.parametrize(
    ("error", "stale"),
    [
        (errors.LinkDownError("away"), True),
        (errors.StoreUnavailableError("no store"), True),
        (errors.UnauthorizedError("who?"), True),
        (errors.ForbiddenError("not you"), True),
        (errors.NotFoundError("no such rollout"), False),
        (errors.RequestError("no such selector"), False),
    ],
)
async def test_a_refused_question_is_not_an_unreachable_gateway(error: errors.FirstlineError, stale: bool) -> None:
    gateway = PolledGateway()
    gateway.error = error
    assert (await gateway.ask()).stale is stale


async def test_a_denied_question_is_not_polled() -> None:
    gateway = PolledGateway()
    gateway.error = errors.ForbiddenError("not you")
    for _ in range(20):
        await gateway.ask()
        gateway.now_s += PACE_S + 1
    assert gateway.asked == 1


async def test_a_command_makes_all_answers_due() -> None:
    gateway = PolledGateway()
    await gateway.ask()
    assert await gateway.watch.do(lambda fleet: "done") == "done"
    assert (await gateway.ask()).value == 2

    def refused(fleet: Fleet) -> None:
        raise errors.RequestError("no")

    with pytest.raises(errors.RequestError):
        await gateway.watch.do(refused)
    assert (await gateway.ask()).value == 3


async def test_a_lasting_answer_is_fetched_once() -> None:
    gateway = PolledGateway()
    gateway.error = errors.LinkDownError("away")
    for expected in (None, None, 3, 3):
        gateway.error = None if expected else errors.LinkDownError("away")
        gateway.now_s += 100
        assert (await gateway.watch.ask(("evidence", "7"), gateway.fetch, lasting=True)).value == expected
    assert gateway.asked == 3


async def test_an_answer_that_does_not_end_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "_LONG_S", 0.01)
    watch, end = Watch(None), threading.Event()
    answer = await watch.ask(("devices",), lambda _: end.wait(30))
    assert answer.stale and answer.value is None
    end.set()
    while (await watch.ask(("devices",), lambda _: end.wait(30))).error is not None:
        pass


async def test_unused_answers_are_deleted_and_their_number_is_bounded() -> None:
    gateway = PolledGateway()
    for number in range(2 * polling._MOST):
        await gateway.ask(str(number))
        assert len(gateway.watch._held) <= polling._MOST
    gateway.now_s += 61
    await gateway.ask("late")
    assert set(gateway.watch._held) == {(None, ("late",))}


async def test_persons_may_ask_at_the_same_moment() -> None:
    gateway = PolledGateway()
    persons = iter([Person("anna", Role.VIEWER), Person("ben", Role.VIEWER), None])
    gateway.watch = Watch(gateway, lambda: next(persons), monotonic=lambda: gateway.now_s)
    assert [(await gateway.ask()).value for _ in range(3)] == [1, 2, 3]
