import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import numpy as np
import pytest
from support.images import by_name, images

from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.errors import InvalidTensorError, PayloadTooLargeError, QueueFullError
from firstline_core.processing.cost import LIGHT_BYTES, LIGHT_PIXELS, DecodingCost, MeasuredInputs, PreparedRows
from firstline_core.processing.decoding import FairThreads, FileDecoding, MemoryBudget
from firstline_core.processing.image_header import ImageHeader, MeasuredImage
from firstline_core.types import Arrays
from firstline_core.units import MIB

PICTURE = by_name(images(b"picture"))


def cost_of(pixels: int, working_bytes: int, encoded_bytes: int = 0) -> DecodingCost:
    header = ImageHeader("PNG", pixels, 1, 1)
    return DecodingCost(((MeasuredImage(header, pixels, working_bytes, 0, encoded_bytes),),))


HEAVY = cost_of(LIGHT_PIXELS + 1, 40 * MIB)


class Model:
    """Prepares an image when it is let, and notes in which thread."""

    row_s = 0.0

    def __init__(self) -> None:
        self.go, self.began = threading.Event(), threading.Event()
        self.threads: list[str] = []

    def decoding_cost(self, inputs: Arrays) -> DecodingCost:
        self.threads.append(threading.current_thread().name)
        return HEAVY

    def prepare(self, inputs: Arrays) -> Arrays:
        self.threads.append(threading.current_thread().name)
        self.began.set()
        self.go.wait()
        if "bad" in inputs:
            raise InvalidTensorError("It is broken.")
        return {"x": np.zeros((1, 2))}


@pytest.fixture
def model() -> Iterator[Model]:
    model = Model()
    yield model
    model.go.set()


@pytest.fixture
def decoding(model: Model) -> Iterator[FileDecoding]:
    decoding = FileDecoding(2, 100 * MIB, SYSTEM_CLOCK)
    yield decoding
    model.go.set()
    decoding.close()


async def prepare(decoding: FileDecoding, model: Model, cost: DecodingCost = HEAVY, inputs: Arrays = PICTURE) -> Arrays:
    async with decoding.prepared(model, inputs, cost, "a", None) as prepared:
        return prepared


async def test_a_small_image_is_left_to_its_model(decoding: FileDecoding, model: Model) -> None:
    light = cost_of(LIGHT_PIXELS, MIB)
    left = await prepare(decoding, model, cost=light)
    assert isinstance(left, MeasuredInputs) and left == PICTURE and left.cost is light
    assert not model.threads


@pytest.mark.parametrize(
    ("cost", "left"),
    [
        (cost_of(64 * 64, MIB, encoded_bytes=MIB), True),
        (cost_of(64 * 64, MIB, encoded_bytes=2 * MIB), False),
        (cost_of(790, LIGHT_BYTES + 1), False),
        (DecodingCost(cost_of(1, 100).files * 8), True),
        (DecodingCost(cost_of(1, 100).files * 10), False),
    ],
    ids=["small", "in a large file", "becomes large", "eight", "ten"],
)
async def test_models_decode_tiny_images(decoding: FileDecoding, model: Model, cost: DecodingCost, left: bool) -> None:
    model.go.set()
    assert isinstance(await prepare(decoding, model, cost), MeasuredInputs if left else PreparedRows)


@pytest.mark.parametrize(
    ("row_s", "pixels", "left"), [(0.004, 16 * LIGHT_PIXELS, True), (0.003, 16 * LIGHT_PIXELS, False)]
)
async def test_cheap_image_is_prepared_in_its_models_thread(
    decoding: FileDecoding, model: Model, row_s: float, pixels: int, left: bool
) -> None:
    model.row_s = row_s
    model.go.set()
    assert isinstance(await prepare(decoding, model, cost_of(pixels, MIB)), MeasuredInputs) is left
    assert isinstance(await prepare(decoding, model, cost_of(pixels, 17 * MIB)), PreparedRows)


async def test_a_large_image_is_prepared_in_a_thread_of_its_own(decoding: FileDecoding, model: Model) -> None:
    model.go.set()
    prepared = await prepare(decoding, model)
    assert isinstance(prepared, PreparedRows)
    assert prepared["x"].shape == (1, 2)
    assert list(prepared) == ["x"] and prepared.sent is PICTURE
    assert model.threads[0].startswith("images")
    assert decoding.budget.held_bytes == 0


async def test_many_headers_are_read_in_a_thread(decoding: FileDecoding, model: Model) -> None:
    await decoding.cost(model, PICTURE, 100, "a")
    await decoding.cost(model, by_name(images(*[b"picture"] * 100)), 70_000, "a")
    await decoding.cost(model, PICTURE, 2 * MIB, "a")
    assert [name.startswith("images") for name in model.threads] == [False, True, True]


async def test_an_error_returns_the_memory(decoding: FileDecoding, model: Model) -> None:
    model.go.set()
    with pytest.raises(InvalidTensorError):
        await prepare(decoding, model, inputs=by_name(images(b"", name="bad")))
    await asyncio.sleep(0)
    assert decoding.budget.held_bytes == 0


async def test_memory_is_held_until_the_thread_is_done(decoding: FileDecoding, model: Model) -> None:
    asking = asyncio.create_task(prepare(decoding, model))
    await asyncio.to_thread(model.began.wait)
    asking.cancel()
    await asyncio.wait([asking])
    assert decoding.budget.held_bytes == HEAVY.memory_bytes
    model.go.set()
    await asyncio.to_thread(decoding.close)
    await asyncio.sleep(0)
    assert decoding.budget.held_bytes == 0


async def test_one_caller_leaves_a_thread_to_one_who_comes_later(model: Model) -> None:
    decoding, other = FileDecoding(1, 100 * MIB, SYSTEM_CLOCK), Model()
    greedy = [asyncio.create_task(prepare(decoding, model)) for _ in range(2)]
    await asyncio.to_thread(model.began.wait)
    other.go.set()
    async with decoding.prepared(other, PICTURE, HEAVY, "polite", None) as prepared:
        assert isinstance(prepared, PreparedRows)
        assert not any(task.done() for task in greedy)
    model.go.set()
    await asyncio.gather(*greedy)
    decoding.close()


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
    with pytest.raises(PayloadTooLargeError, match=r"decoding\.total_memory_bytes.*smaller images, recordings"):
        await MemoryBudget(100).take("a", 101, 10.0)


async def test_callers_who_leave_in_the_same_turn_get_their_own_errors() -> None:
    budget = MemoryBudget(100)
    await budget.take("a", 80, 1.0)
    late = [budget.take("b", 40, 0.001) for _ in range(3)]
    assert [type(each) for each in await asyncio.gather(*late, return_exceptions=True)] == [QueueFullError] * 3
    leaving = [asyncio.create_task(budget.take("b", 40, 10.0)) for _ in range(3)]
    await asyncio.sleep(0)
    for task in leaving:
        task.cancel()
    found = await asyncio.gather(*leaving, return_exceptions=True)
    assert [type(each) for each in found] == [asyncio.CancelledError] * 3
    budget.release("a", 80)
    assert budget.held_bytes == 0


async def test_request_that_does_not_fit_is_overtaken_few_times() -> None:
    budget = MemoryBudget(100)
    await budget.take("a", 30, 1.0)
    large = asyncio.create_task(budget.take("large", 90, 10.0))
    await asyncio.sleep(0)
    overtaken = 0
    with pytest.raises(QueueFullError):
        while overtaken < 100:
            await budget.take("small", 10, 0.01)
            budget.release("small", 10)
            overtaken += 1
    assert 0 < overtaken < 100
    assert not large.done()
    budget.release("a", 30)
    await large
    budget.release("large", 90)
    assert budget.held_bytes == 0


def held_threads(count: int) -> tuple[FairThreads, threading.Event]:
    return FairThreads(count), threading.Event()


def test_threads_serve_callers_in_turn() -> None:
    threads, go = held_threads(1)
    order: list[str] = []
    threads.submit("greedy", go.wait)
    works = [threads.submit("greedy", lambda: order.append("greedy")) for _ in range(5)]
    works += [threads.submit("polite", lambda: order.append("polite")) for _ in range(2)]
    go.set()
    for work in works:
        work.result(10)
    threads.close()
    assert order[:4] == ["polite", "greedy", "polite", "greedy"]


def test_one_caller_never_has_all_threads_while_another_is_active() -> None:
    threads, go = held_threads(2)
    begun = threading.Semaphore(0)

    def hold() -> None:
        begun.release()
        go.wait()

    threads.submit("polite", lambda: None).result(10)
    greedy = [threads.submit("greedy", hold) for _ in range(4)]
    assert begun.acquire(timeout=10)
    threads.submit("polite", lambda: None).result(10)
    assert not begun.acquire(blocking=False)
    go.set()
    for work in greedy:
        work.result(10)
    threads.close()


def test_closed_threads_cancel_work_that_has_not_begun() -> None:
    threads, go = held_threads(1)
    running, waiting = threads.submit("a", go.wait), threads.submit("b", go.wait)
    closing = threading.Thread(target=threads.close)
    closing.start()
    with pytest.raises(CancelledError):
        waiting.result(10)
    go.set()
    closing.join()
    assert running.result(10)
    with pytest.raises(RuntimeError):
        threads.submit("a", go.wait)
