"""Row checks of a bundle's models, see `row_check.py`: the rows that run, and what the commands refuse."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np

from firstline.workbench.data.dataset import Dataset
from firstline_core.bundle.golden import inputs_of, read_golden
from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.manifest import Model
from firstline_core.bundle.row_check import RowCheck, check_model_rows
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError, ModelLoadError
from firstline_core.processing.trial import made_up_files
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import Array, Arrays, join_rows, object_array, payload_bytes

LIMIT_S = 1.0
"""Limits the first of four passes over the rows; fewer rows run if they take longer."""
_ROWS = 256
_FEWEST_ROWS = 8
_LIMIT_BYTES = 64 << 20
_MAGNITUDES = np.array([1.0, 0.5, 0.1])
_SEVERITY = ("nothing", "batch", "run")


def find_dependence(bundle: Bundle, loaded: LoadedModel, *given: Arrays | None) -> RowCheck | None:
    """Checks a model on made-up rows, on the bundle's golden inputs and on given ones.

    Args:
        bundle: has the model.
        loaded: the model.
        given: inputs of the bundle by name, or None.

    Returns:
        The worst result, with the number of all rows that ran, which is smaller if the model is slow. None if no rows
        are known, because the input's sizes are free.

    Raises:
        RequestError: an input does not fit the bundle.
        InferenceError: the model fails on a single row.
        IntegrityError: the golden inputs cannot be read.
    """
    candidates = [made_up_rows(loaded), _golden_rows(bundle), *given]
    checks = [
        check_model_rows(bundle, loaded, inputs, limit_s=LIMIT_S)
        for inputs in candidates
        if inputs is not None and inputs.keys() >= set(loaded.input_names)
    ]
    worst = max(checks, key=lambda found: _SEVERITY.index(found.depends_on), default=None)
    return worst._replace(rows=sum(found.rows for found in checks)) if worst is not None else None


def require_independent_rows(
    bundle: Bundle,
    models: Sequence[Model],
    dataset: Dataset | None = None,
    options: RuntimeOptions = RuntimeOptions(),  # noqa: B008 (frozen)
) -> dict[str, int]:
    """Refuses models whose answer to a row depends on more than the manifest says.

    Args:
        bundle: has the models; those that do not load here are not checked.
        models: to check.
        dataset: of which some rows run; None for none.
        options: how the models run.

    Returns:
        For each model that ran, by id, the number of rows that were checked.

    Raises:
        ConfigError: a model is refused; names the operator, if it is known, and the remedy.
    """
    given = None if dataset is None else data_rows(dataset, bundle)
    checked = dict[str, int]()
    for model in models:
        try:
            loaded = load_model(bundle, model, options)
        except ModelLoadError:
            continue
        with closing(loaded):
            found = find_dependence(bundle, loaded, given)
        if found is None:
            continue
        if found.depends_on != "nothing":
            raise ConfigError(refusal(found, model))
        checked[model.id] = found.rows
    return checked


def refusal(found: RowCheck, model: Model) -> str:
    """Returns why a model is refused, and what to do about it."""
    if found.depends_on == "batch":
        return (
            f"{found.sentence(model.id)} Export it differently, or create the bundle again, which runs it with one row "
            "at a time; if `create` does not notice it, name rows that show it with --golden."
        )
    advice = "" if found.operator is not None else " Export it without random numbers and without state."
    return found.sentence(model.id) + advice


def made_up_rows(loaded: LoadedModel) -> Arrays | None:
    """Returns noise of different magnitudes, the same on every call; None if the sizes of an input are not fixed.

    A model that is quantised by the range of each batch shows it only to rows of different ranges.
    """
    row = loaded.made_up_inputs(typical=False)
    if row is None:
        return None
    rows = noise(row, int(np.clip(_LIMIT_BYTES // payload_bytes(row.values()), _FEWEST_ROWS, _ROWS)))
    for array in rows.values():
        if array.dtype.kind == "f" or array.dtype == np.uint8:
            factors = np.resize(_MAGNITUDES, len(array)).reshape(-1, *(1,) * (array.ndim - 1))
            np.multiply(array, factors, out=array, casting="unsafe")
    return rows


def noise(row: Arrays, rows: int) -> dict[str, Array]:
    """Returns `rows` made-up rows in the shapes and types of one, the same on every call."""
    rng = np.random.default_rng(0)
    return {name: _noise(array, rows, rng) for name, array in row.items()}


def _noise(row: Array, rows: int, rng: np.random.Generator) -> Array:
    shape, dtype = (rows, *row.shape[1:]), row.dtype
    if dtype.hasobject:
        return object_array(made_up_files(row[0], rows))
    if dtype.kind == "f":
        return rng.random(shape, np.float64 if dtype == np.float64 else np.float32).astype(dtype, copy=False)
    return rng.integers(0, 256 if dtype == np.uint8 else 2, shape, dtype)


def data_rows(dataset: Dataset, bundle: Bundle) -> Arrays:
    """Returns some of the data's rows, spread evenly, as the bundle's inputs.

    Raises:
        ConfigError: a row cannot be read.
    """
    rows, left_bytes = list[Arrays](), _LIMIT_BYTES
    for _, row in dataset.some(_ROWS).rows(bundle.manifest.inputs):
        left_bytes -= payload_bytes(row.values())
        if left_bytes < 0 and len(rows) >= _FEWEST_ROWS:
            break
        rows.append(row)
    return join_rows(rows)


def _golden_rows(bundle: Bundle) -> Arrays | None:
    golden = bundle.manifest.golden
    if golden is None or not bundle.file(golden.artefact).is_file():
        return None
    return inputs_of(read_golden(bundle, golden.artefact), bundle.manifest)
