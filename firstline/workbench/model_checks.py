"""Checks of a new bundle: processing, model, labels and value ranges fit together. Each error says what to change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from firstline.workbench import row_checks
from firstline.workbench.step_syntax import spell
from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.manifest import Model
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError, FirstlineError, ModelLoadError, about
from firstline_core.processing.steps import (
    Binary,
    Datatype,
    InputSpec,
    LabelOffset,
    PreStep,
    Scale,
    Softmax,
    decoded_kind,
)
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.regression import SPREAD
from firstline_core.types import PROBABILITIES, Array, Arrays, TensorSpec, row_count

_TRIAL_ROWS = 4
_SUM_TOLERANCE = 0.02
_CLIPPED_SHARE = 0.1
_USED_SHARE = 0.6
# Half a quantisation step, and what resizing and rounding do at the ends.
_SLACK = 0.01


def input_of(name: str, port: TensorSpec, steps: Sequence[PreStep]) -> InputSpec:
    """Returns the bundle's input that follows from what a model takes, see `BundleSpec.inputs`.

    Args:
        name: of the bundle's input.
        port: the model's input.
        steps: from one to the other.
    """
    kind = decoded_kind(steps) or ("text" if port.datatype == "BYTES" else "tensor")
    if kind != "tensor":
        return InputSpec(name, "BYTES", (-1,), kind)
    return InputSpec(name, cast("Datatype", port.datatype), (-1, *port.shape[1:]))


def check_model(
    bundle: Bundle,
    model: Model,
    source: Path,
    *,
    options: RuntimeOptions,
    warn: Callable[[str], None],
    golden: Arrays | None = None,
) -> tuple[Model, int]:
    """Loads the model with its processing and runs it on noise.

    Args:
        bundle: its files are in place.
        model: one of its models.
        source: the user's name of the file, for messages.
        options: how the model runs.
        warn: receives a sentence about something that looks wrong but may be intended.
        golden: further inputs for the row check.

    Returns:
        The model, with `batch` 1 if its rows depend on each other, and the number of rows that were checked for it.

    Raises:
        ConfigError: the parts do not fit, or the same row gets different answers.
        ModelLoadError: the model file itself does not load.
    """
    try:
        with closing(load_model(bundle, model, options)) as loaded:
            found = row_checks.find_dependence(bundle, loaded, golden)
        if found is not None and found.depends_on == "run":
            raise ConfigError(row_checks.refusal(found, model))
        if found is not None and found.depends_on == "batch":
            model = replace(model, batch=1)
            warn(
                f"{source.name}: {found.sentence(model.id)} The manifest gets `batch: 1`, so every tier runs it with "
                "one row at a time."
            )
        with closing(load_model(bundle, model, options)) as loaded:
            _check_outputs(loaded, trial_rows(loaded), source, warn)
    except (ConfigError, ModelLoadError) as error:
        raise ConfigError(f"{source.name}: {error.message}") from error
    except FirstlineError as error:
        raise ConfigError(f"{source.name} fails on a trial run: {error.message}") from error
    return model, found.rows if found is not None else 0


def trial_rows(loaded: LoadedModel) -> Arrays | None:
    """Returns a made-up batch for a trial run, the same on every call; None if the sizes of an input are not fixed."""
    row = loaded.made_up_inputs(typical=False)
    return None if row is None else row_checks.noise(row, _TRIAL_ROWS)


def _check_outputs(loaded: LoadedModel, inputs: Arrays | None, source: Path, warn: Callable[[str], None]) -> None:
    if inputs is None:
        warn(f"{source.name}: not tried, because its input's sizes are free; add resize where they should not be.")
        return
    with about("preprocess"):
        rows = loaded.prepare(inputs)
        if (range_error := misfit(loaded, inputs, rows)) is not None:
            if range_error.hopeless:
                raise ConfigError(f"{range_error.sentence}.")
            warn(f"{source.name}: {range_error.sentence}.")
    with about("postprocess"):
        _check_answers(loaded, rows, source, warn)


def _check_answers(loaded: LoadedModel, rows: Arrays, source: Path, warn: Callable[[str], None]) -> None:
    if not isinstance(loaded.task, Classification):
        found = loaded.compute(rows)
        if problem := loaded.declared.fault(found.outputs):
            raise ConfigError(f"a trial run gives {problem}; correct the labels or the postprocessing.")
        if not found.evidence.get(SPREAD, np.ones(1)).all():
            warn(
                f"{source.name}: a trial run gives a spread of 0 or less, with which an answer looks certain. If the "
                "output holds logarithms, such as log variances, export the model with their exponential."
            )
        return
    raw = loaded.runtime.run(loaded.feeds(rows))[loaded.output_names[0]].reshape(row_count(rows), -1)
    outputs = loaded.compute(rows).outputs
    probabilities = outputs[PROBABILITIES]
    if not np.isfinite(probabilities).all():
        raise ConfigError("its outputs are NaN or infinite; check scale (mean, std) against what the model expects.")
    softmax = any(isinstance(step, Softmax) for step in loaded.model.postprocess)
    if Binary("probability") in loaded.model.postprocess and not may_be_probabilities(probabilities):
        raise ConfigError(
            f"its one output is not the probability of a label: a trial run gives {raw.min():.3g} to {raw.max():.3g}; "
            "write binary:logit as its postprocessing if it is a logit. A regression model needs a recipe with a "
            "table [regression]."
        )
    if problem := no_probabilities(outputs, loaded):
        raise ConfigError(problem)
    if problem := loaded.declared.fault(outputs):
        warn(f"{source.name}: a trial run gives {problem}. Such answers are refused.")
    elif softmax and may_be_probabilities(raw) and raw.sum(axis=1).min() > 0.5:
        warn(f"{source.name}: the model's outputs already look like probabilities; drop softmax, which flattens them.")
    if loaded.model.batch is not None and (probabilities == probabilities[0]).all():
        warn(
            f"{source.name}: one row at a time, it gives the same answer to every row of a trial run, and is of no use."
        )
    if loaded.task.labels[0].lower() == "background" and not any(
        isinstance(step, LabelOffset) for step in loaded.model.postprocess
    ):
        warn(
            f"{source.name}: the first label is 'background'; where your data does not count it, add label_offset:1 to "
            "the postprocessing and --labels-skip 1."
        )


def no_probabilities(outputs: Arrays, loaded: LoadedModel) -> str:
    """Returns why the outputs of a trial run cannot be probabilities, and what to change; "" if they can be.

    A sum that is too small is possible: rounding to eight bits may take most of an answer to noise.
    """
    if not isinstance(loaded.task, Classification):
        return ""
    problem = loaded.task.declared(rounded=loaded.model.is_rounded, cut=True).fault(outputs)
    if not problem:
        return ""
    advice = "Add softmax to its postprocessing (postprocess) if its outputs are logits"
    if may_be_independent(outputs[PROBABILITIES]):
        advice += ", or declare `independent_labels = true` in the recipe if each label has a probability of its own"
    return f"its outputs are not probabilities: a trial run gives {problem}. {advice}."


def may_be_independent(rows: NDArray[np.floating]) -> bool:
    """Whether the rows (n, labels) can be probabilities of independent labels."""
    return bool(rows.min() >= -1e-6 and rows.max() <= 1 + 1e-6)


def may_be_probabilities(rows: NDArray[np.floating]) -> bool:
    """Whether the rows (n, classes) can be probabilities. Quantised tails round to 0, so sums may be far below 1."""
    return may_be_independent(rows) and bool(rows.sum(axis=1).max() <= 1 + _SUM_TOLERANCE)


class Misfit(Struct, frozen=True):
    """A range that does not fit; `hopeless` if most values are clipped."""

    sentence: str
    hopeless: bool


def misfit(loaded: LoadedModel, inputs: Arrays, rows: Arrays) -> Misfit | None:
    """Compares the range that noise in 0..255 is processed to with the ranges of the model's inputs.

    Args:
        loaded: the model.
        inputs: the noise by name; inputs other than pixels are not checked.
        rows: from `LoadedModel.prepare`.

    Returns:
        The first input whose range does not fit; None if all fit.
    """
    fed = zip(loaded.inputs, loaded.model.inputs, strict=True)
    found = [
        _misfit(loaded.runtime.ranges[each.port.name], rows[each.port.name], declared.preprocess)
        for each, declared in fed
        if each.port.name in loaded.runtime.ranges and inputs[each.spec.name].dtype == np.uint8
    ]
    return next(filter(None, found), None)


def _misfit(data_range: tuple[float, float], rows: Array, steps: Sequence[PreStep]) -> Misfit | None:
    low, high = data_range
    slack = _SLACK * (high - low)
    clipped = float(((rows < low - slack) | (rows > high + slack)).mean())
    first, last = float(rows.min()), float(rows.max())
    used = (min(last, high) - max(first, low)) / (high - low)
    if clipped <= _CLIPPED_SHARE and used >= _USED_SHARE:
        return None
    wrong = f"{clipped:.0%} of them are clipped" if clipped > _CLIPPED_SHARE else f"they use {used:.0%} of it"
    declared = [step for step in steps if isinstance(step, Scale)]
    instead = f"instead of {spell(declared)}" if declared else "to its preprocessing"
    return Misfit(
        f"its quantised input holds {low:.4g} to {high:.4g}, but pixels become {first:.4g} to {last:.4g}, so {wrong}; "
        f"add {_fitting(low, high)} {instead}",
        hopeless=clipped > 0.5,
    )


def _fitting(low: float, high: float) -> str:
    """Returns the step that scales 0..255 to low..high."""
    std = 255 / (high - low)
    return f"scale:{_short(-low * std)}:{_short(std)}"


def _short(value: float) -> str:
    return f"{value + 0.0:.5g}"  # + 0.0: no minus zero
