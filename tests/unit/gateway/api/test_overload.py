"""The refusal of requests that are not read."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.databases import sqlite_store
from support.keys import create_key
from support.waiting import work_for

from firstline_gateway.api.overload import OverloadGuard, client_key
from firstline_gateway.identity.client_certificate import ClientCertificate
from firstline_gateway.identity.identity import IdentityService


class Overload:
    """A guard whose queue takes `wait_s`, and whose event loop is late when the test says so."""

    def __init__(self, wait_s: float = 0.2) -> None:
        self.refused = 0
        self.guard = OverloadGuard(lambda: wait_s, self._count)

    def _count(self) -> None:
        self.refused += 1

    def late(self, lag_s: float) -> None:
        self.guard._lags_s = (lag_s, lag_s)


def test_impatient_client_is_refused_for_a_quarter_wait() -> None:
    overload = Overload()
    guard = overload.guard
    for _ in range(20):
        guard.queue_full(1, 10.0)
        assert not guard.refuses(lambda: 1, 10.0)
    guard.queue_full(1, 10.0)
    assert guard.refuses(lambda: 1, 10.0)
    assert guard.refuses(lambda: 1, 10.049)
    assert not guard.refuses(lambda: 2, 10.0)  # another client
    assert not guard.refuses(lambda: 1, 10.051)
    assert overload.refused == 2


def test_a_client_that_is_seldom_refused_is_always_read() -> None:
    guard = Overload().guard
    for second in range(100):
        guard.queue_full(1, 10.0 + second / 10)
        assert not guard.refuses(lambda: 1, 10.0 + second / 10)


@pytest.mark.parametrize(("lag_s", "queue_full", "is_asked"), [(0.0, 20, False), (0.0, 21, True), (0.2, 0, True)])
def test_clients_are_distinguished_only_under_overload(lag_s: float, queue_full: int, is_asked: bool) -> None:
    overload, calls = Overload(), list[int]()

    def other_client() -> int:
        calls.append(2)
        return 2

    overload.late(lag_s)
    for _ in range(queue_full):
        overload.guard.queue_full(1, 10.0)
    assert not overload.guard.refuses(other_client, 10.0)
    assert bool(calls) == is_asked


def test_a_late_event_loop_refuses_the_busiest_clients() -> None:
    overload = Overload()
    guard = overload.guard
    overload.late(0.2)
    for _ in range(30):
        guard.refuses(lambda: 1, 10.0)
    assert overload.refused == 10  # alone, it is the busiest
    assert not guard.refuses(lambda: 2, 10.0)
    assert guard.refuses(lambda: 1, 10.0)
    overload.late(0.0)
    assert not guard.refuses(lambda: 1, 11.5)


def test_late_event_loop_with_few_requests_refuses_no_client() -> None:
    overload = Overload()
    overload.late(0.2)
    for _ in range(19):
        assert not overload.guard.refuses(lambda: 2, 10.0)
    for _ in range(1000):
        assert not overload.guard.refuses(lambda: 1, 10.0)
        overload.guard.ended()
    assert not overload.guard.refuses(lambda: 1, 10.0)
    assert overload.guard.refuses(lambda: 1, 10.0)


def test_a_late_event_loop_with_few_requests_refuses_no_client() -> None:
    overload = Overload()
    overload.late(0.2)
    for second in range(10):
        assert not any(overload.guard.refuses(lambda: 1, 10.0 + second * 1.1) for _ in range(20))


@pytest.mark.parametrize(("spend", "is_behind"), [(work_for, True), (time.sleep, False)])
async def test_only_work_of_its_own_puts_the_event_loop_behind(spend: Callable[[float], None], is_behind: bool) -> None:
    guard = Overload().guard
    guard.watch(asyncio.get_running_loop())
    for _ in range(3):
        spend(0.15)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert guard.is_behind is is_behind


async def test_one_pause_of_the_event_loop_is_no_overload() -> None:
    guard = Overload().guard
    guard.watch(asyncio.get_running_loop())
    await asyncio.sleep(0.03)
    assert not guard.is_behind


def test_only_a_trusted_proxy_speaks_for_several_clients(proxied: IdentityService) -> None:
    def keys(address: str, serial: str = "1") -> set[int]:
        certificate = ClientCertificate("press-7", serial, 0.0, 1e12)
        return {client_key(proxied, address, certificate, {"x-client-cert": text}) for text in "abc"}

    assert len(keys("192.0.2.7")) == 3
    assert len(keys("192.0.2.8")) == len(keys("")) == 1
    assert keys("192.0.2.8") != keys("192.0.2.8", serial="2")


async def test_a_client_with_changing_keys_is_one_client(proxied: IdentityService, tmp_path: Path) -> None:
    shop, till = (create_key(sqlite_store(tmp_path), name) for name in ("shop", "till"))
    await proxied.gatekeeper.refreshed()

    def client(authorization: str) -> int:
        return client_key(proxied, "192.0.2.8", None, {"authorization": authorization})

    without = client_key(proxied, "192.0.2.8", None, {})
    assert {client(f"Bearer {number}") for number in range(9)} == {without}
    assert len({without, client(f"Bearer {shop}"), client(f"bearer  {shop} "), client(f"Bearer {till}")}) == 3
    guard = Overload().guard
    guard._lags_s = (0.2, 0.2)
    for number in range(1000):
        guard.refuses(partial(client, f"Bearer {number}"), 10.0)
    assert not guard.refuses(partial(client, f"Bearer {shop}"), 10.0)
