"""Golden answers of a new bundle: inputs from files, and each edge variant's answers on this machine."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from firstline.workbench.data.dataset import open_dataset
from firstline_core.bundle.golden import (
    GOLDEN_NAME,
    LIMIT_BYTES,
    ROWS_LIMIT,
    GoldenAnswers,
    encode_golden,
    tensor_of,
    to_compare,
)
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.manifest import Golden
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError, InvalidTensorError
from firstline_core.processing.steps import InputSpec
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.storage.artefact import Artefact
from firstline_core.types import DATATYPES, Array

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
    tensor = tensor_of(inputs, bundle.manifest.input)
    outputs = {}
    for model in bundle.manifest.edge:
        with closing(load_model(bundle, model, options)) as loaded:
            try:
                found = to_compare(loaded.predict(tensor), loaded.task)
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


def read_inputs(files: Sequence[Path], spec: InputSpec) -> GoldenAnswers:
    """Returns golden inputs without answers.

    Args:
        files: for an input of type BYTES encoded images, one row each, or folders or zip archives of images, of which
            as many are taken as a device reads, spread evenly; for other inputs `.npy` files of rows.
        spec: the bundle's input.

    Raises:
        ConfigError: a file has another format, or is too large for a device.
    """
    if spec.datatype == "BYTES":
        golden = GoldenAnswers(tuple(_within_limit(image for file in files for image in _images_of(file))), {})
    else:
        arrays = [_rows_of(file, spec) for file in files]
        shapes = {array.shape[1:] for array in arrays}
        if len(shapes) != 1:
            raise ConfigError(f"Golden inputs are rows of one shape, and these have {sorted(map(list, shapes))}.")
        golden = GoldenAnswers(tuple(row.tobytes() for array in arrays for row in array), {}, shapes.pop())
    if not 0 < len(golden.inputs) <= ROWS_LIMIT:
        raise ConfigError(f"There are {len(golden.inputs)} golden inputs; give 1 to {ROWS_LIMIT} rows.")
    return golden


def _within_limit(images: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the images; raises ConfigError if they exceed what a device reads."""
    left_bytes = LIMIT_BYTES
    for image in images:
        left_bytes -= len(image)
        if left_bytes < 0:
            raise ConfigError(f"The golden inputs have more than {LIMIT_BYTES} bytes; give fewer or smaller ones.")
        yield image


def _images_of(file: Path) -> Iterator[bytes]:
    if file.is_dir() or zipfile.is_zipfile(file):
        yield from open_dataset(file, ROWS_LIMIT).contents()
    else:
        yield _bytes_of(file)


def _bytes_of(file: Path) -> bytes:
    try:
        if file.stat().st_size > LIMIT_BYTES:
            raise ConfigError(f"The golden input {file} has more than {LIMIT_BYTES} bytes; give a smaller one.")
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"The golden input {file} cannot be read: {error.strerror}.") from error


def _rows_of(file: Path, spec: InputSpec) -> NDArray[np.generic]:
    """(rows, ...) little-endian, in C order."""
    dtype = np.dtype(DATATYPES[spec.datatype])
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise ConfigError(f"The golden input {file} cannot be read: {error.strerror or error}.") from error
    except (ValueError, EOFError) as error:
        raise ConfigError(
            f"The golden input {file} is no .npy file, and this bundle takes tensors, not images: {error}."
        ) from error
    fits = isinstance(array, np.ndarray) and array.ndim == len(spec.shape)
    if not fits or any(size not in (-1, has) for size, has in zip(spec.shape[1:], array.shape[1:], strict=True)):
        has = list(array.shape) if isinstance(array, np.ndarray) else "several arrays"
        raise ConfigError(f"The golden input {file} has shape {has}, and the bundle takes {list(spec.shape)}.")
    if array.dtype != dtype:
        raise ConfigError(f"The golden input {file} holds {array.dtype}, and the bundle takes {spec.datatype}.")
    if array.nbytes > LIMIT_BYTES:
        raise ConfigError(f"The golden input {file} has {array.nbytes} bytes; give at most {LIMIT_BYTES}.")
    return np.ascontiguousarray(array, dtype=dtype.newbyteorder("<"))
