import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.gateway import DIGITS, Doubler, pool_of, request_of
from support.waiting import until

from firstline_core import errors
from firstline_core.clock import SimulatedClock
from firstline_core.runtime.batch_times import LOOP_LIMIT_S, WINDOW, LoopTimes
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import Arrays, ModelKey, row_count, slice_rows
from firstline_gateway.executors.local import LocalExecutor, run_batch
from firstline_gateway.models.folder import ModelsFolder
from firstline_gateway.serving.scheduling.admission import Bounds
from firstline_gateway.serving.scheduling.batcher import Batcher

M = ModelKey("m", 1)


class Meeting(Doubler):
    """A model that returns only once `parties` threads run it at the same moment."""

    def __init__(self, parties: int) -> None:
        super().__init__()
        self.barrier = threading.Barrier(parties, timeout=10)
        self.met = False
        self.closed = False

    def run(self, rows: Arrays) -> Arrays:
        self.met = True
        self.barrier.wait()
        return super().run(rows)

    def close(self) -> None:
        self.closed = True


async def test_as_many_batches_run_side_by_side_as_there_are_sessions() -> None:
    model = Meeting(3)
    executor = LocalExecutor({M: model}, sessions=3, max_batch_rows=4)
    assert executor.slots == 3
    inputs = {"x": np.ones((1, 1), np.float32)}
    answers = await asyncio.gather(*(asyncio.wrap_future(executor.run(M, [inputs], [None])) for _ in range(3)))
    assert [outcome["probabilities"].tolist() for (outcome,) in answers] == [[[2]]] * 3
    assert await executor.close(10)
    assert model.closed


async def test_closing_waits_for_its_timeout_and_reports_running_batches() -> None:
    model = Meeting(2)
    executor = LocalExecutor({M: model}, sessions=1, max_batch_rows=4)
    inputs = {"x": np.ones((1, 1), np.float32)}
    running = executor.run(M, [inputs], [None])
    await until(lambda: model.met)
    assert not await executor.close(0)
    assert not model.closed
    model.barrier.wait()
    (outcome,) = await asyncio.wrap_future(running)
    assert outcome["probabilities"].tolist() == [[2]]
    assert await executor.close(10)
    assert model.closed


async def test_a_report_stays_as_it_is_while_batches_run() -> None:
    other = ModelKey("other", 1)
    executor = LocalExecutor({M: Meeting(1), other: Meeting(1)}, sessions=1, max_batch_rows=4)
    inputs = [{"x": np.ones((1, 1), np.float32)}]
    executor.run_on_loop(M, inputs, [None])
    report = executor.report()
    executor.run_on_loop(other, inputs, [None])
    assert report.overhead.keys() == {M}
    assert await executor.close(10)


async def test_a_real_bundle_answers_each_request_with_its_own_rows(tmp_path: Path) -> None:
    repository = ModelsFolder(DIGITS).load(RuntimeOptions())
    executor = LocalExecutor({served.key: served.loaded for served in repository}, sessions=2, max_batch_rows=3)
    file = tmp_path / "blank.png"
    Image.new("L", (8, 8), 128).save(file)
    encoded = np.array([file.read_bytes()], dtype=np.object_)
    running = executor.run(
        ModelKey("digits", 1),
        [
            {"image": encoded},
            {"image": np.array([b"not an image"], dtype=np.object_)},
            {"image": np.repeat(encoded, 4)},
        ],
        [None, None, None],
    )
    one, bad, four = await asyncio.wrap_future(running)
    await executor.close(10)
    assert isinstance(bad, Exception)
    assert "Row 0" in str(bad) or "row 0" in str(bad)
    assert one["probabilities"].shape == (1, 10)
    np.testing.assert_allclose(four["probabilities"], np.repeat(one["probabilities"], 4, axis=0), atol=1e-6)


class Taking(Doubler):
    """A model whose batches take a given time of a simulated clock; notes which were run on the event loop."""

    def __init__(self, clock: SimulatedClock, loaded_s: float, takes_s: float) -> None:
        super().__init__(batch_s={1: loaded_s})
        self.clock = clock
        self.takes_s = takes_s
        self.on_loop: list[bool] = []

    def run(self, rows: Arrays) -> Arrays:
        self.on_loop.append(threading.current_thread() is threading.main_thread())
        self.clock._now_s += self.takes_s
        return super().run(rows)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("loaded_s", "takes_s", "ends_on_loop"),
    [
        (0.005, 0.0002, True),  # the machine was busy while it was loaded
        (0.005, 0.0009, False),  # too little to tell: it would leave again
        (0.005, 0.004, False),
        (0.0002, 0.0002, True),
    ],
)
async def test_a_model_loaded_while_busy_is_measured_again(loaded_s: float, takes_s: float, ends_on_loop: bool) -> None:
    clock = SimulatedClock()
    model = Taking(clock, loaded_s, takes_s)
    executor = LocalExecutor({M: model}, sessions=1, max_batch_rows=4, clock=clock)
    bounds = Bounds(requests=100, size_bytes=1 << 20, seconds=100.0, batch_rows=4)
    batcher = Batcher(pool_of(executor, M, clock=clock), clock=clock, bounds=bounds)
    for value in range(2 * WINDOW):
        assert (await batcher.submit(M, request_of(float(value))))["probabilities"].tolist() == [[2.0 * value]]
    begins_on_loop = loaded_s < LOOP_LIMIT_S
    assert model.on_loop[:WINDOW] == [begins_on_loop] * WINDOW
    assert model.on_loop[WINDOW:] == [ends_on_loop] * WINDOW
    assert await executor.close(10)


async def test_failed_batches_are_not_measurements() -> None:
    clock = SimulatedClock()
    model = Taking(clock, 0.005, 0.0001)
    executor = LocalExecutor({M: model}, sessions=1, max_batch_rows=4, clock=clock)
    for _ in range(2 * WINDOW):
        running = executor.run(M, [{"x": np.full((1, 1), -1.0, np.float32)}], [None])
        await asyncio.wrap_future(running)
    assert executor.loop_times(M).measured == {1: 0.005}
    assert await executor.close(10)


def test_a_quarter_of_quick_batches_moves_a_model_to_the_loop() -> None:
    for quick, small in ((WINDOW // 4 - 1, False), (WINDOW // 4, True)):
        live = LoopTimes({1: 0.005}, 0.0)
        for at in range(WINDOW):
            live.observe_in_thread(1 + at % 2, 0.0003 if at < quick else 0.006, 0.0)
        assert live.measured == ({1: 0.0003, 2: 0.0003} if small else {1: 0.005})


def tensors(*rows: list[float]) -> list[Arrays]:
    return [{"x": np.array(values, np.float32).reshape(-1, 1)} for values in rows]


def test_all_rows_run_together_and_come_back_to_their_requests() -> None:
    model = Doubler()
    outcomes = run_batch(model, tensors([1], [2, 3], [4]), max_rows=8)
    assert [outcome["probabilities"].tolist() for outcome in outcomes] == [[[2]], [[4], [6]], [[8]]]
    assert model.runs == [4]


def test_more_rows_than_the_model_may_see_run_in_steps() -> None:
    model = Doubler()
    (outcome,) = run_batch(model, tensors([1, 2, 3, 4, 5]), max_rows=2)
    assert outcome["probabilities"].tolist() == [[2], [4], [6], [8], [10]]
    assert model.runs == [2, 2, 1]


def test_a_request_that_cannot_be_prepared_fails_alone() -> None:
    model = Doubler()
    good, bad, also_good = run_batch(model, tensors([1], [-1], [3]), max_rows=8)
    assert isinstance(bad, errors.InvalidTensorError)
    assert good["probabilities"].tolist() == [[2]]
    assert also_good["probabilities"].tolist() == [[6]]
    assert model.runs == [2]


def test_a_single_request_that_fails_runs_once() -> None:
    model = Doubler(fails_above=5)
    (bad,) = run_batch(model, tensors([9]), max_rows=8)
    assert isinstance(bad, errors.FirstlineError)
    assert model.runs == [1]


class Poisoned(Doubler):
    """Has not the memory for a request of a certain value, to prepare it or to run it."""

    def __init__(self, prepares: float = -1, runs: float = -1) -> None:
        super().__init__()
        self._prepares, self._runs = prepares, runs

    def prepare(self, inputs: Arrays) -> Arrays:
        if (inputs["x"] == self._prepares).any():
            raise MemoryError
        return super().prepare(inputs)

    def run(self, rows: Arrays) -> Arrays:
        if (rows["x"] == self._runs).any():
            raise MemoryError
        return super().run(rows)


@pytest.mark.parametrize(
    ("model", "error"),
    [
        (Doubler(fails_above=5), errors.FirstlineError),
        (Poisoned(prepares=9), errors.CapacityError),
        (Poisoned(runs=9), errors.CapacityError),
    ],
)
def test_request_that_fails_a_run_fails_alone(model: Doubler, error: type[errors.FirstlineError]) -> None:
    good, bad, also_good = run_batch(model, tensors([1], [9], [3]), max_rows=8)
    assert isinstance(bad, error)
    assert good["probabilities"].tolist() == [[2]]
    assert also_good["probabilities"].tolist() == [[6]]


def test_a_request_that_expires_during_preparation_is_skipped() -> None:
    clock = SimulatedClock()

    class Slow(Doubler):
        def prepare(self, inputs: Arrays) -> Arrays:
            asyncio.run(clock.advance(1))
            return super().prepare(inputs)

    model = Slow()
    outcomes = run_batch(model, tensors([1], [2], [3]), 8, [None, 1.0, 9.0], clock)
    assert [type(outcome) for outcome in outcomes] == [dict, errors.DeadlineExceededError, dict]
    assert model.runs == [2]


def test_rows_of_different_shapes_run_in_groups_of_their_own() -> None:
    model = Doubler()
    mixed = [{"x": np.full((2, width), width, np.float32)} for width in (1, 3, 1)]
    narrow, wide, also_narrow = run_batch(model, mixed, max_rows=8)
    assert wide["probabilities"].shape == (2, 3)
    assert narrow["probabilities"].tolist() == also_narrow["probabilities"].tolist() == [[2], [2]]
    assert model.runs == [4, 2]


def test_encoded_inputs_of_row_by_row_models_stay_single() -> None:
    class Reader(Doubler):
        def prepare(self, inputs: Arrays) -> Arrays:
            return {"x": np.array([[float(each)] for each in inputs["x"]], np.float32)}

    model = Reader()
    files = [{"x": np.array(values, object)} for values in ([b"1"], [b"2", b"3"], [b"4"])]
    expected = [[[2]], [[4], [6]], [[8]]]
    for by_row, runs in ((False, [4]), (True, [1, 2, 1])):
        model.by_row, model.runs = by_row, []
        assert [outcome["probabilities"].tolist() for outcome in run_batch(model, files, max_rows=8)] == expected
        assert model.runs == runs


def test_a_model_that_loses_rows_fails() -> None:
    class Loser(Doubler):
        def run(self, rows: Arrays) -> Arrays:
            return slice_rows(super().run(rows), 1, row_count(rows))

    outcomes = run_batch(Loser(), tensors([1], [2]), max_rows=8)
    assert [type(outcome) for outcome in outcomes] == [errors.InferenceError, errors.InferenceError]
