"""Wrong passwords: who has tried too often waits, and locks nobody else out."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from firstline.console.access import Guard
from firstline.console.password_attempts import IN_ALL, PER_ADDRESS, Attempts

PASSWORD = "a password of some length"


class Time:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


def test_an_address_may_try_so_often_in_a_minute(time: Time) -> None:
    attempts = Attempts(time)
    for _ in range(PER_ADDRESS):
        assert attempts.wait_s("a") == 0
        attempts.wrong("a")
    time.now_s += 20
    assert attempts.wait_s("a") == 40 and attempts.wait_s("b") == 0
    time.now_s += 40
    assert attempts.wait_s("a") == 0


def test_many_addresses_together_may_try_so_often_and_lock_out_none_that_knew_the_password(time: Time) -> None:
    attempts = Attempts(time)
    attempts.right("owner")
    tried = 0
    while attempts.wait_s(f"guesser {tried}") == 0:
        attempts.wrong(f"guesser {tried}")
        tried += 1
    assert tried == IN_ALL
    assert attempts.wait_s("owner") == 0 and attempts.wait_s("somebody") == 60
    time.now_s += 60
    assert attempts.wait_s("somebody") == 0


async def test_the_console_says_when_to_try_again_whatever_is_shown_meanwhile() -> None:
    async def page(_request: Request) -> PlainTextResponse:
        return PlainTextResponse("here")

    guard = Guard(Starlette(routes=[Route("/", page)]), PASSWORD)
    from_1, from_2 = (httpx.ASGITransport(guard, client=(f"192.0.2.{number}", 1)) for number in (1, 2))
    async with (
        httpx.AsyncClient(transport=from_1, base_url="http://c") as guesser,
        httpx.AsyncClient(transport=from_2, base_url="http://c") as owner,
    ):
        for _ in range(2 * PER_ADDRESS):  # to ask without a password is how a browser begins, and no attempt
            assert (await guesser.get("/")).status_code == 401
        for _ in range(PER_ADDRESS):
            assert (await guesser.get("/", auth=("any", "wrong"))).status_code == 401
        refused = await guesser.get("/", auth=("any", PASSWORD))
        assert refused.status_code == 429 and 0 < int(refused.headers["retry-after"]) <= 60
        assert (await owner.get("/", auth=("any", PASSWORD))).text == "here"
