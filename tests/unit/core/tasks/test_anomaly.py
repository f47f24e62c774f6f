"""Decisions, events and figures of anomaly models."""

from typing import Any

import numpy as np
import pytest
from PIL import Image

from firstline_core.errors import ConfigError, InferenceError, InvalidTensorError, ModelLoadError
from firstline_core.processing.geometry import InputSize
from firstline_core.processing.standardize import OBSERVED, STANDARDIZATION
from firstline_core.processing.steps import ClassMap, Columns, Reconstruction, Residual, Sigmoid, Softmax, Threshold
from firstline_core.tasks.anomaly import ANOMALOUS, DISTANCE, SCORE, Anomaly
from firstline_core.tasks.base import ModelOutputs, Postprocess, check_outputs
from firstline_core.types import Array, TensorSpec

TASK = Anomaly()


def decisions(*anomalous: int, score: float = 1.0) -> dict[str, Array]:
    return {SCORE: np.full(len(anomalous), score, np.float32), ANOMALOUS: np.array(anomalous, np.bool_)}


def test_decisions_are_compared_and_not_scores() -> None:
    edge, full = decisions(0, 0, 1, 1, score=7), decisions(0, 1, 0, 1, score=-3)
    assert TASK.loss(edge, full).tolist() == [0, 1, 1, 0]
    missed, invented = TASK.events_of(["missed anomaly", "invented anomaly"], edge, full).values()
    assert (missed.counts.tolist(), missed.loss.tolist()) == ([False, True, False, True], [0, 1, 0, 0])
    assert (invented.counts.tolist(), invented.loss.tolist()) == ([False, False, True, True], [0, 0, 1, 0])
    assert TASK.occurrences(edge).tolist() == [[0], [0], [1], [1]]
    assert TASK.groups(edge) == ["normal", "normal", "anomaly", "anomaly"]
    assert Anomaly(("fine", "broken")).events == ("missed broken", "invented broken")
    with pytest.raises(ConfigError, match="no event 'missed normal'"):
        TASK.events_of(["missed normal"], edge, full)
    with pytest.raises(ValueError, match="same label"):
        Anomaly(("a", "a"))


def test_scores_follow_the_distance_from_the_operating_score() -> None:
    evidence = {DISTANCE: np.array([-3, 0, 1], np.float32)}
    assert TASK.score("decisiveness", decisions(0, 1, 1), evidence).tolist() == [0.75, 0, 0.5]
    assert TASK.score("normality", decisions(0, 1, 1), evidence).tolist() == [0.875, 0.5, 0.25]
    assert TASK.supposed_losses(decisions(0, 1, 1), evidence).tolist() == [0.125, 0.5, 0.25]
    assert TASK.unscored("decisiveness", ()) == ""
    with pytest.raises(InvalidTensorError, match="distance from the operating score"):
        TASK.score("normality", decisions(0), {})


def test_figures_of_rows_and_events() -> None:
    #       event: rows 2 to 4, found in row 3      not found   of another recording
    true = [0, 0, 1, 1, 1, 0, 0, 1, 0, -1, 1, 0]
    predicted = [0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 1, 0]
    truth = {
        "label": np.array(true),
        "time": np.array([0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 1000, 1010.0]),
        "sequence": np.array([0] * 10 + [1] * 2),
    }
    found = TASK.summary(decisions(*predicted), {}, truth)
    assert found == pytest.approx(
        {
            "f1": 2 * 3 / (5 + 5),
            "precision": 3 / 5,
            "recall": 3 / 5,
            "events_found": 2 / 3,
            "delay_rows": 0.5,
            "delay_s": 5,
            "false_alarms_per_day": 2 * 86400 / 90,
        }
    )
    assert set(TASK.summary(decisions(*predicted), {}, {"label": truth["label"]})) == set(found) - {
        "delay_s",
        "false_alarms_per_day",
    }
    alternating = np.array([0, 10, 1, 11, *range(2, 10)])  # two recordings alternate in the data
    assert TASK.summary(
        decisions(*np.array(predicted)[alternating]), {}, {name: array[alternating] for name, array in truth.items()}
    ) == pytest.approx(found)
    assert TASK.truth_loss(decisions(*predicted), truth).tolist() == np.not_equal(true, predicted).tolist()
    assert "delay_rows" not in TASK.summary(decisions(0, 0), {}, {"label": np.array([0, 1])})
    with pytest.raises(ConfigError, match="the data has none"):
        TASK.summary(decisions(0), {}, {"label": np.array([-1])})


def test_an_answer_for_people() -> None:
    assert TASK.describe(decisions(1, score=0.1), 0) == {"anomalous": True, "score": 0.1}
    assert np.asarray(TASK.draw(Image.new("RGB", (200, 100)), decisions(1), 0)).any()


@pytest.mark.parametrize(
    ("actual", "expected"), [(decisions(1, score=101), 0.01), (decisions(1, 1, score=100), np.inf)]
)
def test_difference_is_relative_to_large_scores(actual: dict[str, Array], expected: float) -> None:
    assert TASK.difference(decisions(1, score=100), actual) == pytest.approx(expected)


def compiled(*steps: Any) -> Postprocess:
    ports = [TensorSpec(name, "FP32", (-1, -1)) for name in ("y", "error")]
    return TASK.postprocess(
        ModelOutputs("Model 'm'", steps, ports, "y", lambda: InputSize(1, 1), lambda _: lambda array: array)
    )


@pytest.mark.parametrize(
    ("step", "anomalous", "distance"),
    [
        (Threshold(2), [False, True, True], [-0.5, 0, 1]),
        (Threshold(2, "below"), [True, True, False], [0.5, 0, -1]),
        (Threshold(2, scale=0.5), [False, True, True], [-2, 0, 4]),
        (Threshold(0), [True, True, True], [1, 2, 4]),
    ],
)
def test_each_model_has_an_operating_score(step: Threshold, anomalous: list[bool], distance: list[float]) -> None:
    found = compiled(step).run({"y": np.array([[1], [2], [4]], np.float32)}, {"x": np.zeros((3, 2))})
    assert found.outputs[SCORE].tolist() == [1, 2, 4]
    assert (found.outputs[ANOMALOUS].tolist(), found.evidence[DISTANCE].tolist()) == (anomalous, distance)
    check_outputs(TASK.declared(rounded=False, cut=False), found.outputs, 3)


def test_the_second_of_two_classes_is_a_score() -> None:
    post = compiled(Softmax(), Columns((1,)), Threshold(0.5))
    found = post.run({"y": np.array([[0, 0], [9, 0]], np.float32)}, {"x": np.zeros((2, 2))})
    assert found.outputs[ANOMALOUS].tolist() == [True, False]
    sigmoid = compiled(Sigmoid(), Threshold(0.5)).run({"y": np.array([[-1]], np.float32)}, {"x": np.zeros((1, 2))})
    assert sigmoid.outputs[SCORE] == pytest.approx([1 / (1 + np.exp(1))])


@pytest.mark.parametrize(
    ("of", "expected"), [("mean_square", [0, 2.5]), ("mean_absolute", [0, 1.5]), ("largest", [0, 2])]
)
def test_an_autoencoder_is_compared_with_its_input(of: Any, expected: list[float]) -> None:
    rows = {"x": np.array([[1, 2], [3, 4]], np.float32), STANDARDIZATION: np.zeros((2, 2))}
    found = compiled(Reconstruction(of), Threshold(1)).run({"y": np.array([[1, 2], [4, 6]], np.float32)}, rows)
    assert found.outputs[SCORE].tolist() == expected and found.outputs[ANOMALOUS].tolist() == [False, True]
    with pytest.raises(InferenceError, match="none fits"):
        compiled(Reconstruction(of), Threshold(1)).run({"y": np.zeros((2, 9), np.float32)}, rows)


def test_a_reconstruction_in_another_layout_is_refused() -> None:
    rows, output = {"x": np.zeros((2, 3, 8, 8))}, {"y": np.zeros((2, 8, 8, 3), np.float32)}
    with pytest.raises(InferenceError, match="both in one layout"):
        compiled(Reconstruction(), Threshold(1)).run(output, rows)


@pytest.mark.parametrize(
    ("shape", "rebuilt"),
    [((2, 3, 8, 8), (2, 192)), ((2, 8, 8, 1), (2, 1, 8, 8)), ((2, 1, 9), (2, 9, 1)), ((2, 8, 8), (2, 8, 8, 1))],
)
def test_layouts_with_one_order_of_values_are_compared(shape: tuple[int, ...], rebuilt: tuple[int, ...]) -> None:
    values = np.arange(2 * 192, dtype=np.float32)
    rows, output = {"x": np.resize(values, shape)}, {"y": np.resize(values, rebuilt)}
    assert not compiled(Reconstruction(), Threshold(1)).run(output, rows).outputs[SCORE].any()


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (Residual("largest"), [2, 4]),
        (Residual("mean_absolute"), [1.5, 2]),
        (Residual(), [2.5, 8]),
        (Residual("largest", spread="error"), [4, 1]),
    ],
)
def test_a_forecast_is_compared_with_what_was_observed(step: Residual, expected: list[float]) -> None:
    post = compiled(step, Threshold(1.5))
    observed = np.array([[1, 2], [3, 0]], np.float64)
    raw = {"y": np.array([[2, 4], [3, 4]], np.float32), "error": np.array([[1, 0.5], [0, 4]], np.float32)}
    found = post.run({name: raw[name] for name in post.reads}, {"x": np.zeros((2, 9)), OBSERVED: observed})
    assert (post.needs, found.outputs[SCORE].tolist()) == ((OBSERVED,), expected)
    assert found.outputs[ANOMALOUS].tolist() == [score >= 1.5 for score in expected]
    for name in post.reads:
        other = raw | {name: np.zeros((2, 3), np.float32)}
        with pytest.raises(InferenceError, match=r"\[2, 3\] with \[2, 2\] observed numbers"):
            post.run(other, {OBSERVED: observed})


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((), "threshold comes last, and once"),
        ((Threshold(1), Sigmoid()), "threshold comes last"),
        ((Threshold(1), Threshold(1)), "threshold comes last, and once"),
        ((Sigmoid(), Reconstruction(), Threshold(1)), "reconstruction or residual first"),
        ((Residual(), Reconstruction(), Threshold(1)), "reconstruction or residual first"),
        ((ClassMap((1,)), Threshold(1)), "reconstruction or residual first, then sigmoid"),
    ],
)
def test_steps_that_do_not_fit_are_refused(steps: Any, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        compiled(*steps)


def test_several_numbers_are_no_score() -> None:
    with pytest.raises(InferenceError, match="select it with columns"):
        compiled(Threshold(1)).run({"y": np.zeros((2, 2), np.float32)}, {"x": np.zeros((2, 2))})
