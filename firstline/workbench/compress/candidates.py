"""Makes the candidates: applies each technique to one model, and records how to repeat it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import chain, count
from pathlib import Path

import msgspec
from msgspec import Struct

from firstline.workbench.compress import onnx_techniques, tflite_techniques
from firstline.workbench.compress.evaluation import preprocessed_rows
from firstline.workbench.compress.judge import Figures, Verdict
from firstline.workbench.compress.partition import Parts
from firstline.workbench.compress.sensitivity import sensitive_nodes
from firstline.workbench.compress.student import Lesson, start_of, student
from firstline.workbench.precision import precision_of, weights_of
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.manifest import Model, Provenance
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.storage.artefact import Artefact
from firstline_core.types import Array

CALIBRATION_ROWS = 400
SENSITIVITY_ROWS = 300
_READY = "ready.onnx"
_NAME_CHARACTERS = 59  # with a hyphen, and a number of three digits at the end, what a name may have
_LIBRARIES = {"onnx": onnx_techniques.libraries, "tflite": tflite_techniques.libraries}

_BYTES = ("int8", "uint8")
_STORES = {
    "static-int8": _BYTES,
    "dynamic-int8": _BYTES,
    "int8-weights": _BYTES,
    "student-static-int8": _BYTES,
    "fp16": ("fp16",),
}
"""Weight formats that a technique must have added to the file."""

Make = Callable[[Path, Array, Path], None]
"""Writes a file (last) from a model's file (first), calibrated by rows as the model takes them."""

Report = Callable[[str], None]
"""Receives in a few words what is done next."""


class Candidate(Struct, frozen=True):
    """A model that was made; `failed` says why it could not be made or measured."""

    model: Model | None
    technique: str
    figures: Figures | None = None
    verdict: Verdict | None = None
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """The input of every technique.

    Attributes:
        data: describes the data and its parts, for the provenance.
        checkpoints: folder of saved trainings; None for none.
    """

    bundle: Bundle
    source: Model
    data: Mapping[str, str]
    options: RuntimeOptions
    report: Report
    progress: Callable[[int, int], None]
    checkpoints: Path | None = None


def make_candidates(work: Work, parts: Parts, lesson: Lesson | None, others: Mapping[str, Make]) -> list[Candidate]:
    """Makes all candidates; their files are in the bundle's folder.

    Raises:
        ConfigError: a model that a quantiser cannot read, or that cannot teach a student.
    """
    if lesson is not None and work.source.runtime != "onnx":
        raise ConfigError(f"A student is cut from an ONNX model; '{work.source.id}' is {work.source.runtime}.")
    if lesson is not None and not work.source.shows_logits:
        raise ConfigError(f"A student is taught by logits; '{work.source.id}' declares no softmax behind its output.")
    work.report("Reading images")
    file = work.bundle.file(work.source.artefact)
    with _scratch(work.bundle.path) as scratch:
        with closing(load_model(work.bundle, work.source, work.options)) as loaded:
            limit = None if lesson is not None else CALIBRATION_ROWS + SENSITIVITY_ROWS
            rows = preprocessed_rows(loaded, parts.make, work.bundle.manifest.input, limit, scratch / "rows")
        of_runtime = _of_onnx if work.source.runtime == "onnx" else _of_tflite
        made = of_runtime(work, file, scratch, rows)
        if lesson is not None:
            made += _students(work, scratch, rows, lesson)
        return made + [_plain(work, technique, make, file, rows) for technique, make in others.items()]


def _of_onnx(work: Work, file: Path, scratch: Path, rows: Array) -> list[Candidate]:
    ready = scratch / _READY
    nodes = onnx_techniques.prepared(file, ready)
    made = [_static(work, "static-int8", ready, nodes, rows)]
    for technique, make in onnx_techniques.PLAIN.items():
        work.report(technique)
        made.append(_candidate(work, technique, {}, partial(make, ready)))
    return made


def _of_tflite(work: Work, file: Path, scratch: Path, rows: Array) -> list[Candidate]:
    ready = scratch / "ready.tflite"
    tflite_techniques.prepared(file, ready)
    return [_plain(work, technique, make, ready, rows) for technique, make in tflite_techniques.TECHNIQUES.items()]


def _students(work: Work, scratch: Path, rows: Array, lesson: Lesson) -> list[Candidate]:
    work.report("Training a student")
    whole, ready = scratch / "student.onnx", scratch / "ready-student.onnx"
    start = None
    if lesson.start:
        start = scratch / "ready-start.onnx"
        model = start_of(work.bundle.manifest, work.source, lesson.start)
        onnx_techniques.prepared(work.bundle.file(model.artefact), start)
    try:
        parameters = student(
            scratch / _READY,
            whole,
            rows,
            lesson,
            options=work.options,
            start=start,
            checkpoints=work.checkpoints,
            say=work.report,
            progress=work.progress,
        )
    except Exception as error:  # noqa: BLE001 (PyTorch and the converter raise whatever comes)
        return [Candidate(None, "student", failed=_one_line(error))]
    made = _candidate(work, "student", parameters, partial(shutil.copyfile, whole))
    try:
        nodes = onnx_techniques.prepared(whole, ready)
    except ConfigError as error:  # the student itself, which took an hour, is there
        return [made, Candidate(None, "student-static-int8", failed=error.message)]
    return [made, _static(work, "student-static-int8", ready, nodes, rows, parameters)]


def _plain(work: Work, technique: str, make: Make, file: Path, rows: Array) -> Candidate:
    work.report(technique)
    calibration = rows[: _calibration_rows(rows)]
    parameters = {"calibration_rows": str(len(calibration))} if "static" in technique else {}  # others see none
    return _candidate(work, technique, parameters, partial(make, file, calibration))


def _static(
    work: Work, technique: str, ready: Path, nodes: list[str], rows: Array, *known: dict[str, str]
) -> Candidate:
    """Static int8, calibrated on other rows than those that measure sensitivity."""
    work.report(f"{technique}: sensitivity")
    cut = _calibration_rows(rows)
    calibration, others = rows[:cut], rows[cut : cut + SENSITIVITY_ROWS]
    try:
        left_out = sensitive_nodes(
            ready, nodes, calibration, others, ready.parent, output=work.source.output, progress=work.progress
        )
    except Exception as error:  # noqa: BLE001 (the quantiser raises whatever comes)
        return Candidate(None, technique, failed=_one_line(error))
    parameters = {
        "calibration_rows": str(len(calibration)),
        "sensitivity_rows": str(len(others)),
        "operators": str(len(nodes)),
        "excluded": ", ".join(left_out) or "none",
    }
    for more in known:
        parameters |= more
    make = partial(onnx_techniques.static_int8, ready, rows=calibration, exclude=left_out)
    return _candidate(work, technique, parameters, make)


def _candidate(work: Work, technique: str, parameters: dict[str, str], make: Callable[[Path], object]) -> Candidate:
    """Makes the file and loads it once; any error of quantiser or runtime is a failure."""
    bundle, source = work.bundle, work.source
    name = free_name(bundle, source, technique)
    file = bundle.path / f"{name}.{source.runtime}"
    try:
        make(file)
        if not _touched(work, file, _STORES.get(technique, ())):
            return Candidate(None, technique, failed=f"'{source.id}' has no operator that it takes")
        content = file.read_bytes()
        model = msgspec.structs.replace(
            source,
            id=name,
            artefact=Artefact(file.name, hashlib.sha256(content).hexdigest(), len(content)),
            precision=precision_of(file, source.runtime),
            measured={},
            certificate=None,
            provenance=Provenance(
                technique=technique,
                source=source.id,
                source_digest=source.digest,
                parameters={**work.data, **parameters},
                libraries={"firstline": version("firstline")} | _LIBRARIES[source.runtime](),
            ),
        )
        load_model(bundle, model, RuntimeOptions()).close()
    except Exception as error:  # noqa: BLE001 (the quantiser raises whatever comes)
        return Candidate(None, technique, failed=_one_line(error))
    return Candidate(model, technique)


def _touched(work: Work, made: Path, formats: Sequence[str]) -> bool:
    """Whether more weights have these formats than before; a quantiser copies the file if it has nothing to do."""
    source = work.bundle.file(work.source.artefact)
    before, after = (weights_of(file, work.source.runtime) for file in (source, made))
    return not formats or sum(after[one] for one in formats) > sum(before[one] for one in formats)


def free_name(bundle: Bundle, source: Model, technique: str) -> str:
    """Returns an id that no model and no file of the bundle has."""
    ids = {model.id for model in bundle.manifest.models}
    files = {artefact.file for artefact in bundle.manifest.artefacts}
    wanted = f"{source.id[: _NAME_CHARACTERS - len(technique)]}-{technique}"
    names = chain([wanted], (f"{wanted}-{number}" for number in count(2)))
    return next(name for name in names if name not in ids and f"{name}.{source.runtime}" not in files)


def _calibration_rows(rows: Array) -> int:
    return min(CALIBRATION_ROWS, len(rows) * CALIBRATION_ROWS // (CALIBRATION_ROWS + SENSITIVITY_ROWS))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    made = folder / ".scratch"
    made.mkdir()
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
