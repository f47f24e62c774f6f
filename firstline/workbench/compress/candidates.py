"""Makes the candidates: applies each technique to one model, and records how to repeat it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from importlib.metadata import version
from itertools import chain, count
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct
from msgspec.structs import replace

from firstline.workbench.compress import onnx_techniques, tflite_techniques
from firstline.workbench.compress.evaluation import Parts, preprocessed_rows
from firstline.workbench.compress.judge import Figures, Verdict
from firstline.workbench.compress.student import Lesson, start_of, train_student
from firstline.workbench.precision import precision_of, weights_of
from firstline.workbench.row_checks import find_dependence, refusal
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.manifest import Model, Provenance
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.storage.artefact import Artefact
from firstline_core.types import Array, Arrays

CALIBRATION_ROWS = 400
SENSITIVITY_ROWS = 300
_NAME_CHARACTERS = 59  # with a hyphen, and a number of three digits at the end, what a name may have
_TECHNIQUES = {"onnx": onnx_techniques, "tflite": tflite_techniques}

Make = Callable[[Path, Array, Path], None]
"""Writes a file (last) from a model's file (first), calibrated by rows as the model takes them."""


class Candidate(Struct, frozen=True):
    """A model that was made; `failed` says why it could not be made or measured."""

    model: Model | None
    technique: str
    figures: Figures | None = None
    verdict: Verdict | None = None
    failed: str = ""


class Work(Struct, frozen=True):
    """The input of every technique.

    Attributes:
        bundle: a copy, whose folder receives the candidates' files.
        source: the model that they are made of.
        data: describes the data and its parts, for the provenance.
        options: how the models run.
        report: receives in a few words what is done next.
        progress: receives how much of it is done.
        trial: some images as the bundle's input, for the row check of each candidate.
        lesson: how a student is trained; None for no student.
    """

    bundle: Bundle
    source: Model
    data: Mapping[str, str]
    options: RuntimeOptions
    report: Callable[[str], None]
    progress: Callable[[int, int], None]
    trial: Arrays
    lesson: Lesson | None = None


def make_candidates(work: Work, parts: Parts) -> list[Candidate]:
    """Makes all candidates; their files are in the bundle's folder.

    Raises:
        ConfigError: a model that a quantiser cannot read.
    """
    work.report("Preparing rows")
    file = work.bundle.file(work.source.artefact)
    with TemporaryDirectory(prefix=".scratch-", dir=work.bundle.path) as folder:
        ready = Path(folder) / f"ready.{work.source.runtime}"
        with closing(load_model(work.bundle, work.source, work.options)) as loaded:
            limit = None if work.lesson is not None else CALIBRATION_ROWS + SENSITIVITY_ROWS
            rows = preprocessed_rows(loaded, parts.make, work.bundle.manifest.inputs, limit, Path(folder) / "rows")
        if work.source.runtime == "tflite":
            tflite_techniques.prepared(file, ready)
            return [_plain(work, name, make, ready, rows) for name, make in tflite_techniques.TECHNIQUES.items()]
        nodes = onnx_techniques.prepared(file, ready)
        candidates = [_static(work, "static-int8", ready, rows, nodes)]
        candidates += [_plain(work, name, make, ready, rows) for name, make in onnx_techniques.PLAIN.items()]
        return candidates + (_students(work, work.lesson, ready, rows) if work.lesson is not None else [])


def _students(work: Work, lesson: Lesson, teacher: Path, rows: Array) -> list[Candidate]:
    work.report("Training a student")
    start, trained, ready = (teacher.parent / f"{name}.onnx" for name in ("start", "student", "ready-student"))
    model = start_of(work.bundle.manifest, work.source, lesson.start)
    onnx_techniques.prepared(work.bundle.file(model.artefact), start)
    try:
        parameters = train_student(
            teacher,
            start,
            trained,
            rows,
            lesson,
            options=work.options,
            one_by_one=work.source.batch is not None,
            progress=work.progress,
        )
    except Exception as error:  # noqa: BLE001 (PyTorch and the converter raise whatever comes)
        return [Candidate(None, "student", failed=_one_line(error))]
    made = _candidate(work, "student", parameters, partial(shutil.copyfile, trained))
    try:
        nodes = onnx_techniques.prepared(trained, ready)
    except ConfigError as error:  # the student itself, which took an hour, is there
        return [made, Candidate(None, "student-static-int8", failed=error.message)]
    return [made, _static(work, "student-static-int8", ready, rows, nodes, known=parameters)]


def _plain(work: Work, technique: str, make: Make, file: Path, rows: Array) -> Candidate:
    work.report(technique)
    calibration = rows[: _calibration_rows(rows)]
    parameters = {"calibration_rows": str(len(calibration))} if "static" in technique else {}  # others see none
    return _candidate(work, technique, parameters, partial(make, file, calibration))


def _static(
    work: Work, technique: str, ready: Path, rows: Array, nodes: list[str], *, known: Mapping[str, str] = {}
) -> Candidate:
    """Static int8, calibrated on other rows than those that measure sensitivity."""
    work.report(f"{technique}: sensitivity")
    cut = _calibration_rows(rows)
    calibration, others = rows[:cut], rows[cut : cut + SENSITIVITY_ROWS]
    try:
        left_out = onnx_techniques.sensitive_nodes(
            ready, nodes, calibration, others, ready.parent, output=work.source.output, progress=work.progress
        )
    except Exception as error:  # noqa: BLE001 (the quantiser raises whatever comes)
        return Candidate(None, technique, failed=_one_line(error))
    parameters = {
        "calibration_rows": str(len(calibration)),
        "sensitivity_rows": str(len(others)),
        "operators": str(len(nodes)),
        "excluded": ", ".join(left_out) or "none",
        **known,
    }
    make = partial(onnx_techniques.static_int8, ready, calibration, exclude=left_out)
    return _candidate(work, technique, parameters, make)


def _candidate(work: Work, technique: str, parameters: dict[str, str], make: Callable[[Path], object]) -> Candidate:
    """Makes the file and loads it once; any error of quantiser or runtime is a failure."""
    bundle, source = work.bundle, work.source
    name = free_name(bundle, source, technique)
    file = bundle.path / f"{name}.{source.runtime}"
    try:
        make(file)
        if not _has_changed(work, file, technique):
            return Candidate(None, technique, failed=f"'{source.id}' has no operator that it takes")
        content = file.read_bytes()
        model = replace(
            source,
            id=name,
            artefact=Artefact(file.name, hashlib.sha256(content).hexdigest(), len(content)),
            batch=None,
            precision=precision_of(file, source.runtime),
            measured={},
            certificate=None,
            provenance=Provenance(
                technique=technique,
                source=source.id,
                source_digest=source.digest,
                parameters={**work.data, **parameters},
                libraries={name: version(name) for name in ("firstline", *_TECHNIQUES[source.runtime].LIBRARIES)},
            ),
        )
        with closing(load_model(bundle, model, RuntimeOptions())) as loaded:
            found = find_dependence(bundle, loaded, work.trial)
    except Exception as error:  # noqa: BLE001 (the quantiser raises whatever comes)
        return Candidate(None, technique, failed=_one_line(error))
    if found is not None and found.depends_on == "run":
        return Candidate(None, technique, failed=refusal(found, model))
    if found is not None and found.depends_on == "batch":
        work.report(f"{found.sentence(name)} It gets `batch: 1`")
        model = replace(model, batch=1)
    return Candidate(model, technique)


def _has_changed(work: Work, made: Path, technique: str) -> bool:
    """Whether more weights are in the wanted format than before; a quantiser copies a file that it cannot change."""
    formats = ("int8", "uint8") if "int8" in technique else ("fp16",) if technique == "fp16" else ()
    before, after = (
        sum(weights_of(file, work.source.runtime)[one] for one in formats)
        for file in (work.bundle.file(work.source.artefact), made)
    )
    return not formats or after > before


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
