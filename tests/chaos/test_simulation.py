"""The simulation keeps its promises: seeds hold, replay exactly, and faults that are planted are found."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from chaos.simulation.plan import draw
from chaos.simulation.run import Tally, run_many, run_seed, run_seeds
from firstline_core.routing import policy
from firstline_edge.cloud.breaker import CircuitBreaker
from firstline_edge.cloud.chain import LinkChain
from firstline_edge.models import loading
from firstline_edge.outbox import database
from firstline_edge.outbox.delivery import Delivery
from firstline_edge.outbox.outbox import Outbox
from firstline_gateway.serving.scheduling.admission import Shares
from firstline_gateway.store.service_clock import ServiceClock

SEEDS = 20


pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def many() -> Tally:
    """Seeds in another interpreter, whose sets and dictionaries have another order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONHASHSEED", "1")
        return run_many(0, SEEDS, 1)


def test_many_seeds_hold(many: Tally) -> None:
    """One of these seeds at least finds each fault that is planted below; `make -C bench chaos` runs thousands."""
    assert max(first for _, _, first in PLANTED) < SEEDS
    assert many.violations == []
    assert many.seeds == SEEDS
    assert many.simulated_s >= SEEDS * 300
    # All of it happens: what is promised, what is kept, what expires, what a kill cuts off.
    assert all(many.counts[fate] > 10 for fate in ("final", "promised", "refused", "cut", "corrected", "expired"))


def test_every_seed_has_an_outage_a_restart_and_a_clock_jump() -> None:
    for plan in map(draw, range(100)):
        assert plan.weather.off and plan.restarts and len(plan.asks) > 80
        assert plan.jumps and plan.gateway_jumps
        assert all(repeat.at_s[-1] > plan.quiet_from_s for repeat in plan.repeats)
        assert all(end <= plan.quiet_from_s for _, end in plan.weather.off)


def test_seed_determines_the_simulation(many: Tally) -> None:
    assert run_seed(7).trace == many.traces[7] != many.traces[8]


def forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery that loses what it could not send at once."""
    deliver = Delivery._deliver

    async def forgetful(self: Any, item: Any) -> Any:
        error = await deliver(self, item)
        if error is not None:
            request_id = item.request.request_id
            await self.outbox._write(lambda transaction: database.delete_promise(transaction, request_id))
        return error

    monkeypatch.setattr(Delivery, "_deliver", forgetful)


def acknowledges_before_it_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = Outbox._submit

    def hasty(self: Any, operation: Any) -> asyncio.Future[Any]:
        queued = submit(self, operation)
        if getattr(operation, "__name__", "") != "insert":
            return queued
        queued.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # no further check
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        done.set_result(True)
        return done

    monkeypatch.setattr(Outbox, "_submit", hasty)


def corrects_again_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was announced is never noted."""
    monkeypatch.setattr(database, "mark_announced", lambda *_, **__: None)


def takes_every_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.simulation.models.valid_certificate", lambda _, model: model.certificate)
    assert loading.valid_certificate(*_void()) is None


def _void() -> tuple[Any, Any]:
    from chaos.simulation.models import MANIFESTS, VOID

    return MANIFESTS[VOID], MANIFESTS[VOID].edge[0]


def sends_what_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "before", lambda *_, **__: None)


def never_closes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CircuitBreaker, "probe_succeeded", CircuitBreaker.probe_failed)


def turns_in_circles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prober that is never let through, and never waits."""
    monkeypatch.setattr(CircuitBreaker, "try_probe", lambda self: False)


def lets_the_outbox_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    insert = database.insert_promise

    def greedy(*arguments: Any, limit_items: int, **others: Any) -> bool:
        return insert(*arguments, limit_items=limit_items + 1, **others)

    monkeypatch.setattr(database, "insert_promise", greedy)


def lets_the_gateways_queue_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shares, "allows", lambda *_: True)


def gives_up_on_a_dead_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller hears of it, though the device has an answer."""
    infer = LinkChain.infer

    async def broken(self: Any, *arguments: Any) -> Any:
        if not self.available:
            raise ZeroDivisionError
        return await infer(self, *arguments)

    monkeypatch.setattr(LinkChain, "infer", broken)


def goes_by_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the gateway remembers grows old by a clock that is set."""
    monkeypatch.setattr(ServiceClock, "now_s", lambda self: self._clock.wall_s())


PLANTED = [
    (forgets, "acknowledged, and is lost|wait for ever|never announced", 0),
    (acknowledges_before_it_commits, "acknowledged, and is lost", 4),
    (corrects_again_after_a_restart, "announced twice", 0),
    (takes_every_certificate, "no certificate covers it", 0),
    (sends_what_is_private, "local_only", 1),
    (never_closes_again, "is not used|wait for ever", 0),
    (turns_in_circles, "time stands still", 0),
    (lets_the_outbox_grow, "the outbox", 4),
    (lets_the_gateways_queue_grow, "wait at the gateway", 19),
    (gives_up_on_a_dead_link, "ZeroDivisionError", 0),
    (goes_by_the_wall_clock, "audits count|audits the gateway knows|took effect twice at the gateway", 0),
]
"""Each fault, the pattern of its violation, and the first seed that finds it."""


@pytest.mark.parametrize(
    ("plant", "found", "first"), PLANTED, ids=lambda value: value.__name__ if callable(value) else ""
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], found: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    violations = run_seeds([first]).violations
    assert any(re.search(found, violation) for violation in violations), violations
