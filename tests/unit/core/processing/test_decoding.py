from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from support.images import images

from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.errors import InvalidTensorError, PayloadTooLargeError, QueueFullError
from firstline_core.processing.decoding import LIGHT_PIXELS, ImageDecoding, MemoryBudget, PreparedTensor
from firstline_core.processing.image_header import ImageCost
from firstline_core.types import Array, Tensor

MIB = 1 << 20
HEAVY = ImageCost(LIGHT_PIXELS + 1, 40 * MIB)
PICTURE = images(b"picture")


class Model:
    """Prepares an image when it is let, and notes in which thread."""

    def __init__(self) -> None:
        self.go, self.began = threading.Event(), threading.Event()
        self.threads: list[str] = []

    def image_cost(self, tensor: Tensor) -> ImageCost:
        self.threads.append(threading.current_thread().name)
        return HEAVY

    def prepare(self, tensor: Tensor) -> Array:
        self.threads.append(threading.current_thread().name)
        self.began.set()
        self.go.wait()
        if tensor.name == "bad":
            raise InvalidTensorError("It is broken.")
        return np.zeros((1, 2))


@pytest.fixture
def model() -> Iterator[Model]:
    made = Model()
    yield made
    made.go.set()


@pytest.fixture
def decoding(model: Model) -> Iterator[ImageDecoding]:
    made = ImageDecoding(2, 100 * MIB, SYSTEM_CLOCK)
    yield made
    model.go.set()
    made.close()


async def prepare(decoding: ImageDecoding, model: Model, cost: ImageCost = HEAVY, tensor: Tensor = PICTURE) -> Tensor:
    async with decoding.prepared(model, tensor, cost, "a", None) as prepared:
        return prepared


async def test_a_small_image_is_left_to_its_model(decoding: ImageDecoding, model: Model) -> None:
    assert await prepare(decoding, model, cost=ImageCost(LIGHT_PIXELS, MIB)) is PICTURE
    assert not model.threads


async def test_a_large_image_is_prepared_in_a_thread_of_its_own(decoding: ImageDecoding, model: Model) -> None:
    model.go.set()
    prepared = await prepare(decoding, model)
    assert isinstance(prepared, PreparedTensor)
    assert prepared.shape == (1, 2)
    assert model.threads[0].startswith("images")
    assert decoding.budget.held_bytes == 0


async def test_many_headers_are_read_in_a_thread(decoding: ImageDecoding, model: Model) -> None:
    await decoding.cost(model, PICTURE, 100)
    await decoding.cost(model, images(*[b"picture"] * 100), 700)
    assert [name.startswith("images") for name in model.threads] == [False, True]


async def test_an_error_returns_the_memory(decoding: ImageDecoding, model: Model) -> None:
    model.go.set()
    with pytest.raises(InvalidTensorError):
        await prepare(decoding, model, tensor=images(b"", name="bad"))
    await asyncio.sleep(0)
    assert decoding.budget.held_bytes == 0


async def test_a_caller_who_leaves_holds_its_memory_until_the_thread_is_done(
    decoding: ImageDecoding, model: Model
) -> None:
    asking = asyncio.create_task(prepare(decoding, model))
    await asyncio.to_thread(model.began.wait)
    asking.cancel()
    await asyncio.wait([asking])
    assert decoding.budget.held_bytes == HEAVY.memory_bytes
    model.go.set()
    await asyncio.to_thread(decoding.close)
    await asyncio.sleep(0)
    assert decoding.budget.held_bytes == 0


async def test_one_caller_holds_at_most_half_and_delays_no_other() -> None:
    budget = MemoryBudget(100)
    await budget.take("greedy", 40, 1.0)
    waiting = [asyncio.create_task(budget.take("greedy", 40, 10.0)) for _ in range(3)]
    await asyncio.sleep(0)
    await budget.take("polite", 40, 0.01)
    assert budget.held_bytes == 80
    budget.release("greedy", 40)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sum(task.done() for task in waiting) == 1
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    budget.release("polite", 40)
    budget.release("greedy", 40)
    assert budget.held_bytes == 0


async def test_memory_that_is_not_free_in_time_is_a_full_queue() -> None:
    budget = MemoryBudget(100)
    await budget.take("a", 80, 1.0)
    with pytest.raises(QueueFullError):
        await budget.take("b", 40, 0.001)
    budget.release("a", 80)
    await budget.take("b", 90, 0.001)
    assert budget.held_bytes == 90


async def test_more_than_the_whole_budget_is_refused_at_once() -> None:
    with pytest.raises(PayloadTooLargeError, match=r"images\.total_memory_bytes"):
        await MemoryBudget(100).take("a", 101, 10.0)
