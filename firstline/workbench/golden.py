"""Golden answers of a new bundle: inputs from files, and each edge variant's answers on this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from firstline.workbench.data.dataset import open_dataset
from firstline_core.bundle.golden import (
    GOLDEN_NAME,
    LIMIT_BYTES,
    ROWS_LIMIT,
    GoldenAnswers,
    encode_golden,
    golden_input,
    inputs_of,
    to_compare,
)
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.manifest import Golden, Manifest
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError, InvalidTensorError
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.storage.artefact import Artefact
from firstline_core.types import Array, Arrays, join_rows, payload_bytes

_DIGITS = 6  # of a number: far below any tolerance, and a third of the bytes


def answered_golden(
    bundle: Bundle, inputs: GoldenAnswers, options: RuntimeOptions, tolerance: float | None = None
) -> Golden:
    """Writes golden answers to the bundle's folder; the caller names them in the manifest.

    Args:
        bundle: whose edge variants answer.
        inputs: from `read_inputs`, or of the bundle that this one was derived from; earlier answers are replaced.
        options: for the runs.
        tolerance: see `Golden`; None for the default.

    Raises:
        ConfigError: an input does not fit, or the answers are too large for a device.
    """
    given = inputs_of(inputs, bundle.manifest)
    outputs = {}
    for model in bundle.manifest.edge:
        with closing(load_model(bundle, model, options)) as loaded:
            try:
                found = to_compare(loaded.predict(given), loaded.task)
            except InvalidTensorError as error:
                raise ConfigError(f"'{model.id}' does not take a golden input: {error.message}") from error
        outputs[model.id] = {name: _listed(array) for name, array in found.items()}
    content = encode_golden(msgspec.structs.replace(inputs, outputs=outputs))
    if len(content) > LIMIT_BYTES:
        raise ConfigError(
            f"The golden answers take {len(content)} bytes, and a device reads {LIMIT_BYTES}; give fewer or smaller "
            "inputs."
        )
    (bundle.path / GOLDEN_NAME).write_bytes(content)
    golden = Golden(Artefact(GOLDEN_NAME, hashlib.sha256(content).hexdigest(), len(content)))
    return golden if tolerance is None else msgspec.structs.replace(golden, tolerance=tolerance)


def _listed(array: Array) -> list[Any]:
    """Returns nested lists, with rounded numbers."""
    rounded = array.astype(np.float64).round(_DIGITS) if array.dtype.kind == "f" else array
    listed: list[Any] = rounded.tolist()
    return listed


def read_inputs(files: Sequence[Path], manifest: Manifest) -> GoldenAnswers:
    """Returns golden inputs without answers.

    Args:
        files: data sets as `open_dataset` reads them, such as an image, a folder or a table; of each, as many rows are
            taken as a device reads, spread evenly. A table may lack inputs that only the full model reads.
        manifest: of the bundle.

    Raises:
        ConfigError: a row does not fit, or the rows are too many or too large for a device.
    """
    rows, left_bytes = list[Arrays](), LIMIT_BYTES
    for file in files:
        for row in _rows_of(file, manifest):
            rows.append(row)
            left_bytes -= payload_bytes(row.values())
            if left_bytes < 0:
                raise ConfigError(f"The golden inputs have more than {LIMIT_BYTES} bytes; give fewer or smaller ones.")
    names = rows[0].keys()
    for name in names:
        if any(row.keys() != names for row in rows):
            raise ConfigError("The golden inputs have different names; give each file the same.")
        shapes = {row[name].shape[1:] for row in rows}
        if len(shapes) != 1:
            raise ConfigError(f"Golden inputs are rows of one shape, and these have {sorted(map(list, shapes))}.")
    if len(rows) > ROWS_LIMIT:
        raise ConfigError(f"There are {len(rows)} golden inputs; give 1 to {ROWS_LIMIT} rows.")
    return GoldenAnswers({name: golden_input(array) for name, array in join_rows(rows).items()}, {})


def _rows_of(file: Path, manifest: Manifest) -> Iterator[Arrays]:
    """Yields the rows of a data set: all of the bundle's inputs, or at least those that its edge variants read."""
    dataset = open_dataset(file, ROWS_LIMIT, inputs=[spec.name for spec in manifest.inputs])
    needed = {name for model in manifest.edge for name in model.input_names}
    columns = dataset.table.columns if dataset.table is not None else ()
    absent = {spec.name for spec in manifest.inputs if needed and spec.name not in (*needed, *columns)}
    for _, row in dataset.rows([spec for spec in manifest.inputs if spec.name not in absent]):
        yield row
