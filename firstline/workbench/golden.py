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
from firstline_core.processing.steps import InputSpec
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.storage.artefact import Artefact
from firstline_core.storage.files import naming, unreadable
from firstline_core.types import DATATYPES, Array, payload_bytes

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
        files: of a bundle with one input: encoded images or recordings, one row each, or folders or zip archives of
            images, of which as many are taken as a device reads, spread evenly; text files, one row a line; for
            tensors `.npy` files of rows. Of a bundle with several inputs: `.npz` files with an array for each.
        manifest: of the bundle.

    Raises:
        ConfigError: a file has another format, or is too large for a device.
    """
    parts = [_inputs_of(file, manifest) for file in files]
    names, arrays = parts[0].keys(), dict[str, Array]()
    for name in names:
        if any(part.keys() != names for part in parts):
            raise ConfigError("The golden inputs have different names; give each file the same.")
        shapes = {part[name].shape[1:] for part in parts}
        if len(shapes) != 1:
            raise ConfigError(f"Golden inputs are rows of one shape, and these have {sorted(map(list, shapes))}.")
        arrays[name] = np.concatenate([part[name] for part in parts])
    rows = {len(array) for array in arrays.values()}
    if len(rows) > 1 or not 0 < (count := rows.pop()) <= ROWS_LIMIT:
        raise ConfigError(f"There are {sorted(rows) or count} golden inputs; give 1 to {ROWS_LIMIT} rows.")
    if payload_bytes(arrays.values()) > LIMIT_BYTES:
        raise ConfigError(f"The golden inputs have more than {LIMIT_BYTES} bytes; give fewer or smaller ones.")
    return GoldenAnswers({name: golden_input(array) for name, array in arrays.items()}, {})


def _inputs_of(file: Path, manifest: Manifest) -> dict[str, Array]:
    spec, *others = manifest.inputs
    if others:
        return _named_rows(file, manifest)
    if spec.kind == "tensor":
        return {spec.name: _checked_rows(file, _loaded(file), spec)}
    rows = _bytes_of(file).splitlines() if spec.kind == "text" else list(_within_limit(_images_of(file)))
    array = np.empty(len(rows), object)
    array[:] = rows
    return {spec.name: array}


def _named_rows(file: Path, manifest: Manifest) -> dict[str, Array]:
    """Returns the arrays of an `.npz` file: all of the bundle's inputs, or those that its edge variants read."""
    archive = _loaded(file)
    names = [spec.name for spec in manifest.inputs]
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ConfigError(f"The golden input {file} is one array; give an .npz file with {', '.join(names)}.")
    needed = {name for model in manifest.edge for name in model.input_names} or set(names)
    with archive:
        given = set(archive.files)
        if not needed <= given <= set(names):
            raise ConfigError(
                f"The golden input {file} has {', '.join(sorted(given))}; the bundle takes {', '.join(names)}."
            )
        return {
            spec.name: _checked_rows(file, archive[spec.name], spec) for spec in manifest.inputs if spec.name in given
        }


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
    with naming(f"The golden input {file}"):
        if file.stat().st_size > LIMIT_BYTES:
            raise ConfigError(f"The golden input {file} has more than {LIMIT_BYTES} bytes; give a smaller one.")
        return file.read_bytes()


def _loaded(file: Path) -> Any:
    try:
        return np.load(file, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise ConfigError(f"The golden input {file} {unreadable(error)}") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"The golden input {file} is no .npy file, and this bundle takes tensors, not images: {error}."
        ) from error


def _checked_rows(file: Path, array: Any, spec: InputSpec) -> Array:
    """Returns (rows, ...) little-endian, in C order; texts as bytes."""
    dtype = np.dtype(DATATYPES[spec.datatype])
    fits = isinstance(array, np.ndarray) and array.ndim == len(spec.shape)
    if not fits or any(size not in (-1, has) for size, has in zip(spec.shape[1:], array.shape[1:], strict=True)):
        has = list(array.shape) if isinstance(array, np.ndarray) else "several arrays"
        raise ConfigError(f"The golden input {file} has shape {has}, and the bundle takes {list(spec.shape)}.")
    if spec.datatype == "BYTES" and array.dtype.kind in "SU":
        texts = np.empty(len(array), object)
        texts[:] = [text.encode() if isinstance(text, str) else text for text in array.tolist()]
        return texts
    if array.dtype != dtype:
        raise ConfigError(f"The golden input {file} holds {array.dtype}, and the bundle takes {spec.datatype}.")
    if array.nbytes > LIMIT_BYTES:
        raise ConfigError(f"The golden input {file} has {array.nbytes} bytes; give at most {LIMIT_BYTES}.")
    return np.ascontiguousarray(array, dtype=dtype.newbyteorder("<"))
