from __future__ import annotations

import asyncio

import numpy as np
import pytest
from support.gateway import Doubler

from firstline_core import errors
from firstline_core.clock import SimulatedClock
from firstline_core.types import Arrays, row_count, slice_rows
from firstline_gateway.executors.local import run_batch


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


def test_a_request_that_makes_the_run_fail_is_found_and_the_others_are_answered() -> None:
    good, bad, also_good = run_batch(Doubler(fails_above=5), tensors([1], [9], [3]), max_rows=8)
    assert isinstance(bad, errors.FirstlineError)
    assert good["probabilities"].tolist() == [[2]]
    assert also_good["probabilities"].tolist() == [[6]]


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


@pytest.mark.parametrize("where", ["prepares", "runs"])
def test_a_request_that_needs_too_much_memory_fails_alone(where: str) -> None:
    good, bad, also_good = run_batch(Poisoned(**{where: 9}), tensors([1], [9], [3]), max_rows=8)
    assert isinstance(bad, errors.CapacityError)
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


def test_encoded_inputs_of_a_model_that_runs_row_by_row_are_not_joined() -> None:
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
