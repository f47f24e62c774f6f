"""Regression and forecasts: numbers with a tolerance. Pure.

The output is `values` FP32 [n, d]. If the tolerance is in units of each row's own scale, the output `scale` FP32 [n]
follows, because both tiers compute the loss from outputs alone. The spread, which is the absolute error that a model
expects of its values, is evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from firstline_core.errors import InferenceError, InvalidTensorError, ModelLoadError
from firstline_core.processing.compile import compile_postprocess
from firstline_core.processing.standardize import STANDARDIZATION
from firstline_core.processing.steps import Columns, Graph, PostStep, Sigmoid, Spread, Unstandardize
from firstline_core.tasks.arrays import labelled_rows, nested, of_shape, some_labelled
from firstline_core.tasks.base import ConfiguredTask, ModelOutputs, Postprocess, Prediction, Scores
from firstline_core.tasks.view import WHOLE, View
from firstline_core.types import Array, Arrays, TensorSpec, all_finite, row_count

VALUES, SCALE, SPREAD = "values", "scale", "spread"
"""Outputs FP32 (n, d) and FP32 (n,), and the evidence FP32 (n, d)."""

_Tolerance = Annotated[float, Meta(ge=0, le=1e30)]
_Floats = NDArray[np.float64]
_TINY = 1e-30  # keeps quotients finite where a tolerance is 0
_VALUES_AT_MOST = 16  # with more, no selection part has enough rows for a weight of each
_LARGEST_ERROR = 5.0  # in units of the row's scale


class Regression(ConfiguredTask, frozen=True, tag="regression"):
    """A model of numbers.

    The edge model's value agrees with the full model's if they differ by at most `absolute` + `relative` * the size of
    the full model's value + `scaled` * the scale of the row.

    Attributes:
        names: of the values, in their order.
        absolute: part of the tolerance, in units of the values.
        relative: part of the tolerance, as a share of the full model's value.
        scaled: part of the tolerance, in units of the row's scale, see `processing/standardize.py`.
        loss_kind: "outside" counts rows with a value outside of the tolerance. "error" is the largest difference, in
            units of the tolerance and at most 1; then nearly every answer counts as changed.
    """

    score_kinds: ClassVar[tuple[str, ...]] = ("within", "spread", "small_values")
    quality: ClassVar[str] = "mae"

    names: Annotated[tuple[str, ...], Meta(min_length=1, max_length=4096)] = ("value",)
    absolute: _Tolerance = 0.0
    relative: _Tolerance = 0.0
    scaled: _Tolerance = 0.0
    loss_kind: Literal["outside", "error"] = "outside"

    def __post_init__(self) -> None:
        if not self.absolute + self.relative + self.scaled > 0:
            raise ValueError("a regression needs a tolerance: absolute, relative or scaled")
        if len(set(self.names)) < len(self.names):
            raise ValueError("the names of values differ")

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        values = TensorSpec(VALUES, "FP32", (-1, len(self.names)))
        return (values, TensorSpec(SCALE, "FP32", (-1,))) if self.scaled else (values,)

    @property
    def evidence(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(SPREAD, "FP32", (-1, len(self.names))),)

    @property
    def truth(self) -> tuple[TensorSpec, ...]:
        """Returns the true values; NaN where one is not known."""
        return (TensorSpec(VALUES, "FP32", (-1, len(self.names))),)

    def fault(self, outputs: Arrays) -> str:
        if problem := super().fault(outputs):
            return problem
        return "a scale that is not above 0" if self.scaled and not (outputs[SCALE] > 0).all() else ""

    def postprocess(self, model: ModelOutputs) -> Postprocess:
        """Compiles the steps: those of the values, any `spread`, and `unstandardize` last."""
        steps, back = list(model.steps), False
        if steps and isinstance(steps[-1], Unstandardize):
            steps, back = steps[:-1], True
        spreads = [step for step in steps if isinstance(step, Spread)]
        others = [step for step in steps if not isinstance(step, Spread)]
        if len(spreads) > 1 or not all(isinstance(step, Columns | Graph | Sigmoid) for step in others):
            raise ModelLoadError(
                "Postprocessing of a regression: columns, sigmoid, graph, at most one spread, and last unstandardize."
            )
        if self.scaled and not back:
            raise ModelLoadError(
                "Postprocessing: a tolerance in units of the scale needs unstandardize as the last step."
            )
        name = model.port(model.output)
        to_values = compile_postprocess(others, model.load_graph)
        source = model.port(spreads[0].output or model.output) if spreads else ""
        selected = [Columns(step.columns) for step in spreads if step.columns]
        to_spread = compile_postprocess(selected, model.load_graph)

        wanted = f"the bundle has {len(self.names)} values; correct their names, the output's name or columns"

        def run(raw: Arrays, rows: Arrays) -> Prediction:
            shape = row_count(rows), len(self.names)
            outputs = {VALUES: of_shape(to_values(raw[name]), shape, model.what, wanted)}
            evidence: dict[str, Array] = {}
            if source:
                evidence[SPREAD] = _spread(of_shape(to_spread(raw[source]), shape, f"{model.what}, as spread,", wanted))
            if back:
                mean, scale = np.split(rows[STANDARDIZATION], 2, axis=1)
                outputs[VALUES] = (outputs[VALUES] * scale + mean).astype(np.float32)
                evidence = {key: (spread * scale).astype(np.float32) for key, spread in evidence.items()}
                if self.scaled:
                    outputs[SCALE] = scale[:, 0].astype(np.float32)
            return Prediction(outputs, evidence)

        reads = tuple(dict.fromkeys((name, source))) if source else (name,)
        return Postprocess(reads, run, needs=(STANDARDIZATION,) if back else ())

    def score(self, kind: str, outputs: Arrays, evidence: Arrays, *, temperature: float = 1.0) -> Scores:
        """Returns the confidence of each row, in [0, 1].

        - `within`: the probability that all values are within the tolerance, if errors have a Laplace distribution
          whose mean size is the spread. For one value it orders rows as `spread` does.
        - `spread`: 1 / (1 + the largest spread in units of the tolerance).
        - `small_values`: 1 / (1 + the largest size of a value in units of the tolerance), for models without a spread
          whose errors grow with their values, such as prices. It says nothing about other models.

        Args:
            kind: one of `score_kinds`.
            outputs: canonical outputs.
            evidence: has `spread`, except for `small_values`.
            temperature: without effect, because there are no logits.

        Raises:
            InvalidTensorError: the evidence has no spread.
        """
        tolerance, spread = np.maximum(self.tolerance(outputs), _TINY), evidence.get(SPREAD)
        if kind == "small_values":
            found = 1 / (1 + (np.abs(outputs[VALUES]) / tolerance).max(axis=1))
        elif spread is None:
            raise InvalidTensorError(f"The score '{kind}' needs a spread; this model gives none.")
        elif kind == "spread":
            found = 1 / (1 + (spread / tolerance).max(axis=1))
        else:
            found = (-np.expm1(-tolerance / np.maximum(spread, _TINY))).prod(axis=1)
        return np.asarray(found, np.float32)

    def unscored(self, kind: str, steps: Sequence[PostStep]) -> str:
        if kind in ("within", "spread") and not any(isinstance(step, Spread) for step in steps):
            return "needs the step spread in its postprocessing; without it there are small_values and learned"
        return ""

    def features(self, outputs: Arrays, evidence: Arrays) -> NDArray[np.float32]:
        """Returns the inputs of learned scores, (n, feature_count).

        Logarithms of the largest and the mean spread in units of the tolerance (0 without a spread), and of the largest
        value in these units; then, for up to 16 values, the sign of each times the logarithm of its size.
        """
        values = outputs[VALUES].astype(np.float64)
        tolerance = np.maximum(self.tolerance(outputs), _TINY)
        ratio = np.log(np.maximum(evidence[SPREAD] / tolerance, _TINY)) if SPREAD in evidence else np.zeros_like(values)
        columns = [ratio.max(axis=1), ratio.mean(axis=1), np.log1p((np.abs(values) / tolerance).max(axis=1))]
        if len(self.names) <= _VALUES_AT_MOST:
            columns += list((np.sign(values) * np.log1p(np.abs(values))).T)
        return np.column_stack(columns).astype(np.float32)

    def supposed_losses(self, outputs: Arrays, evidence: Arrays) -> Scores:
        """Returns 1 - the score `within`, or 1 - `small_values` without a spread."""
        supposed: Scores = 1 - self.score("within" if SPREAD in evidence else "small_values", outputs, evidence)
        return supposed

    def tolerance(self, outputs: Arrays) -> _Floats:
        """Returns the largest difference that is not a loss, FP64 (n, d), in units of the values."""
        tolerance: _Floats = self.absolute + self.relative * np.abs(outputs[VALUES].astype(np.float64))
        return tolerance + self.scaled * outputs[SCALE].astype(np.float64)[:, None] if self.scaled else tolerance

    def loss(self, edge: Arrays, full: Arrays) -> Scores:
        difference = np.abs(edge[VALUES].astype(np.float64) - full[VALUES])
        tolerance = self.tolerance(full)
        if self.loss_kind == "outside":
            return np.asarray((difference > tolerance).any(axis=1), np.float32)
        return np.asarray(np.minimum(difference / np.maximum(tolerance, _TINY), 1).max(axis=1), np.float32)

    def truth_loss(self, outputs: Arrays, truth: Arrays) -> Scores:
        known = labelled_rows(truth)
        true = np.where(known[:, None], truth[VALUES], 0).astype(np.float32)
        losses = self.loss(outputs, {**outputs, VALUES: true})
        return np.asarray(np.where(known, losses, 1), np.float32)

    def summary(self, outputs: Arrays, evidence: Arrays, truth: Arrays) -> dict[str, float]:
        """Returns the mean absolute error, the root mean square error, and the share of rows outside of the tolerance.

        With a tolerance in units of the row's scale, `mae` is in these units, and errors above 5 count as 5, because a
        few rows would otherwise decide it. `mae_values` and `rmse_values` are then in units of the values.
        """
        known = some_labelled(truth, "The mean absolute error")
        error = np.abs(outputs[VALUES][known].astype(np.float64) - truth[VALUES][known])
        mae, rmse = error.mean(), np.sqrt((error**2).mean())
        figures = {"mae": mae, "rmse": rmse}
        if self.scaled:
            scaled = np.minimum(error / outputs[SCALE][known][:, None], _LARGEST_ERROR).mean()
            figures = {"mae": scaled, "mae_values": mae, "rmse_values": rmse}
        outside = msgspec.structs.replace(self, loss_kind="outside").truth_loss(outputs, truth)[known].mean()
        return {name: float(figure) for name, figure in (figures | {"outside": outside}).items()}

    def describe(self, outputs: Arrays, row: int, view: View = WHOLE) -> dict[str, Any]:
        """Returns the values by name."""
        return {"values": dict(zip(self.names, nested(outputs[VALUES][row]), strict=True))}

    def title(self, outputs: Arrays, row: int) -> str:
        values = self.describe(outputs, row)["values"]
        return "\n".join(f"{name} {value:.5g}" for name, value in values.items())

    def distance(self, expected: Arrays, actual: Arrays) -> float:
        """Returns the largest difference, relative to the row's largest value or to its tolerance."""
        values = expected[VALUES].astype(np.float64)
        size = np.maximum(np.abs(values).max(axis=1), self.tolerance(expected).max(axis=1))
        worst = (np.abs(values - actual[VALUES]).max(axis=1) / np.maximum(size, _TINY)).max(initial=0)
        if self.scaled:
            scale = expected[SCALE].astype(np.float64)
            worst = max(worst, (np.abs(scale - actual[SCALE]) / np.maximum(scale, _TINY)).max(initial=0))
        return float(worst)


def _spread(found: Array) -> NDArray[np.float32]:
    """Returns the spread without negative numbers, which rounding causes."""
    if not all_finite(found):
        raise InferenceError("The spread has NaN or infinity.")
    return np.maximum(found, 0)
