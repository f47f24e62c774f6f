"""Whatever is asked, loaded, unloaded and refused in whatever order: models in memory keep to their budget, requests
that were admitted keep their model, and no request waits forever.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.far_servers import MANIFEST
from support.waiting import until

from firstline_core import errors
from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.clock import SimulatedClock
from firstline_core.types import ModelKey
from firstline_gateway.models.memory import Place
from firstline_gateway.models.repository import Repository, ServedModel
from firstline_gateway.models.residency import Residency

NAMES = [f"m{number}" for number in range(6)]
SIZE_BYTES = 1 << 20
BUDGET = 3


class SmallModel(ServedModel):
    """Takes one of three places."""

    @property
    def memory_bytes(self) -> int:
        return self.copies * SIZE_BYTES


def served(name: str, digest: str = "d") -> ServedModel:
    return SmallModel(ModelKey(name, 1), Path(name), MANIFEST, None, digest)


class Engine:
    """Knows what it holds, and complains where it would run what is not there."""

    def __init__(self) -> None:
        self.held: dict[ModelKey, ServedModel] = {}

    async def put(self, model: ServedModel) -> None:
        assert (model.loaded is not None) == bool(model.copies)
        self.held[model.key] = model

    async def drop(self, key: ModelKey) -> None:
        del self.held[key]


class Room:
    """A residency whose loads fail, and take, as the test says."""

    def __init__(self, *, budget: int = BUDGET, background: bool = False) -> None:
        self.clock = SimulatedClock()
        self.engine = Engine()
        self.failing: set[str] = set()
        self.on_disk: dict[str, str] = dict.fromkeys(NAMES, "d")
        self.loads = 0
        self.gate = threading.Event()
        self.gate.set()
        self.repository = Repository({ModelKey(name, 1): served(name) for name in NAMES})
        self.residency = Residency(
            self.repository,
            self.engine,
            load=self._load,
            find=self._find,
            budget_bytes=budget * SIZE_BYTES,
            background=background,
            clock=self.clock,
        )

    def _load(self, model: ServedModel) -> LoadedModel:
        self.gate.wait(10)
        self.loads += 1
        if model.key.name in self.failing:
            raise errors.ModelLoadError("It is broken.")
        return SimpleNamespace(close=lambda: None)

    def _find(self, name: str) -> tuple[list[ServedModel], list[Any]]:
        return ([served(name, self.on_disk[name])], []) if name in self.on_disk else ([], [])


async def settled(*tasks: asyncio.Task[Any]) -> None:
    """Until the tasks, or everything that can go on, has ended."""
    await until(lambda: all(task.done() for task in tasks))


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.room = self.loop.run_until_complete(self._room())
        self.held: list[Place] = []

    async def _room(self) -> Room:
        return Room()

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    @property
    def full(self) -> bool:
        return len({place.served.key for place in self.held}) >= BUDGET

    @rule(name=st.sampled_from(NAMES), together=st.integers(1, 4))
    def ask(self, name: str, together: int) -> None:
        key, residency = ModelKey(name, 1), self.room.residency
        loads, was_there = self.room.loads, key in residency.memory.resident
        served_now = key in self.room.repository.models

        async def all_ask() -> list[Any]:
            tasks = [asyncio.ensure_future(residency.loaded(key, 1e9)) for _ in range(together)]
            if self.full and not was_there and served_now:  # no model is unloaded: the deadline ends the wait
                while not residency.memory.places[key].waiting and not all(task.done() for task in tasks):  # noqa: ASYNC110
                    await asyncio.sleep(0.0005)
                for task in tasks:
                    task.cancel()
            await settled(*tasks)
            return await asyncio.gather(*tasks, return_exceptions=True)

        found = self.run(all_ask())
        for each in found:
            if isinstance(each, Place):
                assert each.served is self.room.repository.models[key]
                self.held.append(each)
            elif not served_now:
                assert isinstance(each, errors.UnknownModelError)
            elif name in self.room.failing or residency.memory.places[key].problem:
                assert isinstance(each, errors.NotReadyError | asyncio.CancelledError)
            else:
                assert isinstance(each, asyncio.CancelledError)
                assert self.full
        assert self.room.loads - loads <= (0 if was_there else 1)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def answer(self, data: Any) -> None:
        place = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.room.residency.memory.release(place)

    @rule(name=st.sampled_from(NAMES), breaks=st.booleans())
    def break_or_mend(self, name: str, breaks: bool) -> None:
        (self.room.failing.add if breaks else self.room.failing.discard)(name)
        self.run(self.room.clock.advance(20))  # long enough to try again

    @rule(name=st.sampled_from(NAMES), digest=st.sampled_from(["d", "e"]))
    def change(self, name: str, digest: str) -> None:
        self.room.on_disk[name] = digest

    @rule(name=st.sampled_from(NAMES))
    def load(self, name: str) -> None:
        if any(place.served.key.name == name for place in self.held):
            return  # it would wait for them
        key, before = ModelKey(name, 1), self.room.engine.held.get(ModelKey(name, 1))
        try:
            self.run(self.room.residency.orders.load(name))
        except errors.FirstlineError:
            assert name in self.room.failing or self.full
            assert self.room.engine.held.get(key) is before
        else:
            assert self.room.engine.held[key].digest == self.room.on_disk[name]
            assert self.room.residency.memory.hold(key) is not None
            self.room.residency.memory.places[key].holders -= 1

    @rule(name=st.sampled_from(NAMES))
    def unload(self, name: str) -> None:
        if any(place.served.key.name == name for place in self.held):
            return
        try:
            self.run(self.room.residency.orders.unload(name))
        except errors.UnknownModelError:
            assert ModelKey(name, 1) in self.room.repository.away
        assert ModelKey(name, 1) not in self.room.engine.held

    @invariant()
    def memory_is_what_it_says(self) -> None:
        residency = self.room.residency
        assert set(residency.memory.resident) == set(self.room.engine.held)
        assert residency.memory.used_bytes <= BUDGET * SIZE_BYTES
        for place in self.held:
            assert place.served.key in self.room.engine.held

    def teardown(self) -> None:
        self.run(self.room.residency.close())
        self.loop.close()


Machine.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestResidency = Machine.TestCase


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    room = Room()
    yield room
    await room.residency.close()


async def test_waiting_requests_share_one_load(room: Room) -> None:
    room.gate.clear()
    tasks = [asyncio.create_task(room.residency.loaded(ModelKey("m0", 1), None)) for _ in range(20)]
    await asyncio.sleep(0)
    room.gate.set()
    await settled(*tasks)
    assert room.loads == 1
    assert room.residency.memory.places[ModelKey("m0", 1)].holders == 20


async def test_a_model_that_runs_elsewhere_alone_needs_no_load_and_stays(room: Room) -> None:
    elsewhere = replace(served("elsewhere"), copies=0)
    await room.residency.orders.add(elsewhere)
    room.residency.memory.release(await room.residency.loaded(elsewhere.key, None))
    assert (room.loads, room.residency.memory.used_bytes) == (0, 0)
    for name in NAMES:
        room.residency.memory.release(await room.residency.loaded(ModelKey(name, 1), None))
    assert elsewhere.key in room.residency.memory.resident
    assert len(room.residency.memory.resident) == BUDGET + 1


async def test_the_least_recently_used_model_is_evicted_unless_held(room: Room) -> None:
    residency = room.residency
    places = [await residency.loaded(ModelKey(name, 1), None) for name in ("m0", "m1", "m2")]
    residency.memory.release(places[1])
    residency.memory.release(places[0])
    place = residency.memory.hold(ModelKey("m1", 1))  # used after m0
    assert place is not None
    residency.memory.release(place)
    await residency.loaded(ModelKey("m3", 1), None)
    assert {key.name for key in residency.memory.resident} == {"m1", "m2", "m3"}
    waiting = [asyncio.create_task(residency.loaded(ModelKey(name, 1), 5.0)) for name in ("m4", "m5")]
    await settled(waiting[0])  # m1 was idle
    assert {key.name for key in residency.memory.resident} == {"m2", "m3", "m4"}
    await room.clock.advance(6)
    with pytest.raises(errors.NotReadyError, match="not loaded in the time") as refused:
        await waiting[1]
    assert refused.value.retry_after_s
    residency.memory.release(places[2])
    await residency.loaded(ModelKey("m0", 1), None)  # a cancelled request does not block the others


async def test_unload_refuses_waiting_requests(room: Room) -> None:
    for name in ("m0", "m1", "m2"):
        await room.residency.loaded(ModelKey(name, 1), None)
    waiting = asyncio.create_task(room.residency.loaded(ModelKey("m3", 1), None))
    await asyncio.sleep(0.01)
    await room.residency.orders.unload("m3")
    with pytest.raises(errors.UnknownModelError, match="unloaded"):
        await waiting


async def test_an_unload_waits_for_requests_in_flight(room: Room) -> None:
    place = await room.residency.loaded(ModelKey("m0", 1), None)
    unloading = asyncio.create_task(room.residency.orders.unload("m0"))
    await asyncio.sleep(0.01)
    assert ModelKey("m0", 1) in room.engine.held
    assert not unloading.done()
    room.residency.memory.release(place)
    await settled(unloading)
    assert ModelKey("m0", 1) not in room.engine.held


async def test_an_unload_after_a_running_load_wins(room: Room) -> None:
    key = ModelKey("m0", 1)
    room.gate.clear()
    loading = asyncio.create_task(room.residency.orders.load("m0"))
    await asyncio.sleep(0.01)
    unloading = asyncio.create_task(room.residency.orders.unload("m0"))
    await asyncio.sleep(0.01)
    room.gate.set()
    await settled(loading, unloading)
    assert key not in room.engine.held
    assert not room.residency.memory.resident
    assert room.repository.away[key].startswith("unloaded")
    await room.residency.orders.load("m0")
    assert room.residency.memory.resident == [key]


async def test_unload_continues_without_its_caller(room: Room) -> None:
    key = ModelKey("m0", 1)
    place = await room.residency.loaded(key, None)
    unloading = asyncio.create_task(room.residency.orders.unload("m0"))
    await asyncio.sleep(0.01)
    unloading.cancel()
    await settled(unloading)
    room.residency.memory.release(place)
    await until(lambda: room.repository.away[key].startswith("unloaded"))
    assert key not in room.engine.held


async def test_a_refused_replacement_keeps_the_served_model(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    key = ModelKey("m0", 1)
    room.residency.memory.release(await room.residency.loaded(key, None))

    async def refuse(_: ServedModel) -> None:
        raise errors.EngineUnavailableError("It is away.")

    with monkeypatch.context() as outage:
        outage.setattr(room.engine, "put", refuse)
        with pytest.raises(errors.RequestError, match="It is away"):
            await room.residency.orders.load("m0")
    assert room.residency.memory.hold(key) is not None
    assert room.loads == 2


async def test_a_model_larger_than_the_budget_is_never_loaded() -> None:
    room = Room(budget=0)
    room.residency.memory._budget_bytes = SIZE_BYTES - 1
    with pytest.raises(errors.NotReadyError, match=r"more than models\.memory_budget_mb"):
        await room.residency.loaded(ModelKey("m0", 1), None)
    assert room.loads == 0


async def test_failed_load_is_retried(room: Room) -> None:
    room.failing.add("m0")
    for _ in range(3):
        with pytest.raises(errors.NotReadyError, match="It is broken"):
            await room.residency.loaded(ModelKey("m0", 1), None)
    assert room.loads == 1
    assert room.residency.state(room.repository.models[ModelKey("m0", 1)], "").state == "UNAVAILABLE"
    room.failing.clear()
    await room.clock.advance(11)
    await room.residency.loaded(ModelKey("m0", 1), None)
    assert room.loads == 2


async def test_models_that_fit_are_loaded_in_the_background() -> None:
    room = Room(background=True)
    assert not room.residency.complete
    await room.residency.start()
    await until(lambda: room.residency.complete)
    assert len(room.residency.memory.resident) == BUDGET
    assert all(room.residency.ready(key) for key in room.repository.models)
    await room.residency.close()
