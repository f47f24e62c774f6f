"""Tolerances, scores and figures of regression models."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from firstline_core.errors import ConfigError, InferenceError, InvalidTensorError, ModelLoadError
from firstline_core.processing.geometry import InputSize
from firstline_core.processing.standardize import STANDARDIZATION
from firstline_core.processing.steps import Columns, Graph, Sigmoid, Softmax, Spread, Unstandardize
from firstline_core.storage.artefact import Artefact
from firstline_core.tasks.base import ModelOutputs, Postprocess, check_outputs
from firstline_core.tasks.regression import SCALE, SPREAD, VALUES, Regression
from firstline_core.types import Array, Arrays, TensorSpec

PRICE = Regression(("price",), absolute=10)
FORECAST = Regression(scaled=0.5)


def values(*rows: float | tuple[float, ...], scale: tuple[float, ...] = ()) -> dict[str, Array]:
    found = {VALUES: np.array(rows, np.float32).reshape(len(rows), -1)}
    return found | ({SCALE: np.array(scale, np.float32)} if scale else {})


def spread(*rows: float | tuple[float, ...]) -> dict[str, Array]:
    return {SPREAD: np.array(rows, np.float32).reshape(len(rows), -1)}


@pytest.mark.parametrize(
    ("task", "scale", "expected"),
    [
        (PRICE, (), [0, 0, 1]),  # 0, 10 and 20 apart
        (Regression(relative=0.15), (), [0, 0, 1]),  # 15 % of 100
        (Regression(absolute=5, relative=0.15), (), [0, 0, 0]),
        (FORECAST, (1, 40, 40), [0, 0, 0]),
        (FORECAST, (1, 10, 40), [0, 1, 0]),
        (replace(PRICE, loss_kind="error"), (), [0, 1, 1]),
        (Regression(absolute=40, loss_kind="error"), (), [0, 0.25, 0.5]),
    ],
)
def test_loss_is_outside_the_tolerance(task: Regression, scale: tuple[float, ...], expected: list[float]) -> None:
    edge, full = values(100, 110, 80, scale=scale), values(100, 100, 100, scale=scale)
    found = task.loss(edge, full)
    assert found.dtype == np.float32 and found.tolist() == expected


def test_every_value_of_a_row_counts() -> None:
    task = Regression(("a", "b"), absolute=1)
    assert task.loss(values((0, 0), (0, 5)), values((1, 1), (0, 0))).tolist() == [0, 1]


def test_the_worst_value_of_a_row_is_its_graded_loss() -> None:
    pair = Regression(("a", "b"), absolute=10, loss_kind="error")
    found = pair.loss(values((100, 205), (100, 200), (102.5, 260)), values((100, 200), (100, 200), (100, 200)))
    assert found.tolist() == [0.5, 0, 1]


def test_scores_compare_the_spread_with_the_tolerance() -> None:
    found, evidence = values(100, 100, 1000), spread(10, 40, 0)
    assert PRICE.score("spread", found, evidence).tolist() == pytest.approx([0.5, 0.2, 1])
    expected = [1 - np.exp(-1), 1 - np.exp(-0.25), 1]
    np.testing.assert_allclose(PRICE.score("within", found, evidence), expected, rtol=1e-6)
    np.testing.assert_allclose(PRICE.supposed_losses(found, evidence), 1 - np.array(expected), atol=1e-6)
    scaled = FORECAST.score("spread", values(0, 0, scale=(1, 100)), spread(0.5, 0.5))
    np.testing.assert_allclose(scaled, [0.5, 1 / 1.01], rtol=1e-6)


@pytest.mark.parametrize("kind", ["within", "spread"])
def test_a_model_without_spread_says_which_scores_remain(kind: str) -> None:
    with pytest.raises(InvalidTensorError, match="needs a spread"):
        PRICE.score(kind, values(1), {})
    assert "small_values and learned" in PRICE.unscored(kind, (Columns((0,)),))
    assert PRICE.unscored(kind, (Spread("spread"),)) == ""
    assert PRICE.unscored("small_values", ()) == PRICE.unscored("learned", ()) == ""
    assert PRICE.score("small_values", values(0, 10, 90), {}).tolist() == pytest.approx([1, 0.5, 0.1])


@pytest.mark.parametrize("evidence", [{}, spread((0.0, 1e9), (1.0, 2.0))])
def test_features_are_finite_with_and_without_spread(evidence: dict[str, Array]) -> None:
    task = Regression(("a", "b"), relative=0.1)
    found = task.features(values((0, -1e30), (3, 4)), evidence)
    assert found.shape == (2, task.feature_count) and np.isfinite(found).all()
    assert Regression(tuple(map(str, range(100))), absolute=1).feature_count == 3


def test_quality_against_true_values() -> None:
    outputs, truth = values(1, 2, 3, scale=(1, 2, 4)), values(1, 4, np.nan)
    assert FORECAST.truth_loss(outputs, truth).tolist() == [0, 1, 1]
    found = FORECAST.summary(outputs, {}, truth)
    assert found == pytest.approx({"mae": 0.5, "mae_values": 1, "rmse_values": 2**0.5, "outside": 0.5})
    assert FORECAST.quality in found
    with pytest.raises(ConfigError, match="the data has none"):
        FORECAST.summary(outputs, {}, values(np.nan, np.nan, np.nan))


def test_an_answer_for_people() -> None:
    assert PRICE.describe(values(326.1), 0) == {"values": {"price": 326.1}}
    drawn = PRICE.draw(Image.new("RGB", (200, 100)), values(326.1), 0)
    assert drawn.size == (200, 100) and np.asarray(drawn).any()


@pytest.mark.parametrize(("actual", "expected"), [(values(101), 0.01), (values((100, 1)), np.inf)])
def test_difference_is_relative_to_the_value(actual: Arrays, expected: float) -> None:
    assert PRICE.difference(values(100), actual) == pytest.approx(expected)


def test_difference_is_that_of_the_worst_value_and_of_the_scale() -> None:
    """Of (100, 4) and (101, 6) it is 2 of 100; of scales 4 and 3 it is a quarter."""
    pair = Regression(("a", "b"), absolute=1)
    assert pair.difference(values((100, 4), (8, 0)), values((101, 6), (8, 0))) == pytest.approx(0.02)
    assert FORECAST.difference(values(100, scale=(4,)), values(101, scale=(3,))) == pytest.approx(0.25)
    assert FORECAST.difference(values(100, scale=(4,)), values(150, scale=(4,))) == pytest.approx(0.5)


def test_difference_of_small_values_is_relative_to_the_tolerance() -> None:
    assert PRICE.difference(values(0), values(1)) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("task", "found", "message"),
    [
        (FORECAST, values(1, scale=(0,)), "scale that is not above 0"),
        (FORECAST, values(1), "'scale' is nothing"),
        (PRICE, values((1, 2)), "'values' is float32"),
    ],
)
def test_outputs_that_are_not_declared_are_refused(task: Regression, found: Arrays, message: str) -> None:
    with pytest.raises(InferenceError, match=message):
        check_outputs(task.declared(rounded=False, cut=False), found, 1)


@pytest.mark.parametrize(
    ("fields", "message"), [({}, "needs a tolerance"), ({"absolute": 1, "names": ("a", "a")}, "names of values differ")]
)
def test_a_configuration_without_meaning_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Regression(**fields)


def compiled(task: Regression, *steps: Any, outputs: tuple[str, ...] = ("y",), output: str = "y") -> Postprocess:
    ports = [TensorSpec(name, "FP32", (-1, -1)) for name in outputs]
    return task.postprocess(
        ModelOutputs("Model 'm'", steps, ports, output, lambda: InputSize(1, 1), lambda _: lambda array: array + 1)
    )


def test_values_and_spread_are_mapped_back_to_the_units_of_the_row() -> None:
    post = compiled(FORECAST, Spread("s"), Unstandardize(), outputs=("y", "s"))
    assert (post.reads, post.needs) == (("y", "s"), (STANDARDIZATION,))
    moments = {"x": np.zeros((2, 3)), STANDARDIZATION: np.array([[6e7, 1000], [5, 1]])}
    found = post.run({"y": np.array([[1], [-2]], np.float32), "s": np.array([[0.5], [-0.1]], np.float32)}, moments)
    assert found.outputs[VALUES].tolist() == [[60001000], [3]] and found.outputs[SCALE].tolist() == [1000, 1]
    assert found.evidence[SPREAD].tolist() == [[500], [0]]  # rounding may cause a spread just below 0
    check_outputs(FORECAST.declared(rounded=False, cut=False), found.outputs, 2)


def test_columns_of_one_output_are_values_and_spread() -> None:
    post = compiled(PRICE, Columns((1,)), Spread(columns=(0,)))
    found = post.run({"y": np.array([[2, 300]], np.float32)}, {"x": np.zeros((1, 3))})
    assert (found.outputs[VALUES].tolist(), found.evidence[SPREAD].tolist()) == ([[300]], [[2]])


def test_a_graph_and_a_sigmoid_are_steps() -> None:
    post = compiled(PRICE, Sigmoid(), Graph(Artefact("g.onnx", "0" * 64, 1)))
    assert post.run({"y": np.zeros((1, 1), np.float32)}, {"x": np.zeros((1, 3))}).outputs[VALUES].tolist() == [[1.5]]


@pytest.mark.parametrize(
    ("task", "steps", "message"),
    [
        (PRICE, (Softmax(),), "columns, sigmoid, graph, at most one spread"),
        (PRICE, (Spread("y"), Spread("y")), "at most one spread"),
        (PRICE, (Unstandardize(), Columns((0,))), "last unstandardize"),
        (PRICE, (Spread("other"),), "no output 'other'"),
        (FORECAST, (), "needs unstandardize as the last step"),
    ],
)
def test_steps_that_do_not_fit_are_refused(task: Regression, steps: Any, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        compiled(task, *steps)


def test_an_output_of_another_size_is_refused() -> None:
    with pytest.raises(InferenceError, match="but the bundle has 1 values"):
        compiled(PRICE).run({"y": np.zeros((2, 3), np.float32)}, {"x": np.zeros((2, 1))})
    with pytest.raises(InferenceError, match="NaN or infinity"):
        compiled(PRICE, Spread("y")).run({"y": np.full((2, 1), np.nan, np.float32)}, {"x": np.zeros((2, 1))})
