"""What `firstline compress` makes of the digits' edge model, and of a ResNet-56: cut, or teaching a ResNet-20.

A student is trained where PyTorch is (`.venv-train/bin/python`); elsewhere the students' rows are left out.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from figures import Figure
from msgspec import Struct
from pools import CIFAR10, DATA, DIGITS, Pair

from firstline.workbench.bundle import create_bundle
from firstline.workbench.compress import judge
from firstline.workbench.compress.compression import Compression, Promise, compress, promise_of, source_of
from firstline.workbench.compress.distilling import can_train
from firstline.workbench.compress.student import DEPTH, STARTED_RATE, Lesson
from firstline.workbench.dataset import open_dataset
from firstline.workbench.recipe import read_recipe
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.routing import binomial

TAUGHT = replace(CIFAR10, name="cifar10-cascade resnet20")
"""The student starts as a published ResNet-20, which this bundle has too."""
SUBJECTS = (DIGITS, CIFAR10, TAUGHT)
LESSONS = {
    CIFAR10.name: Lesson(depth=DEPTH, epochs=14),
    TAUGHT.name: Lesson(start="resnet20", epochs=6, rate=STARTED_RATE),
}
MAX_LOSS = 0.02
DELTA = 0.05
_MODELS = Path(__file__).parents[2] / "models"


class Technique(Struct, frozen=True):
    """One candidate. `figures` is None where it could not be made."""

    technique: str
    figures: judge.Figures | None
    accepted: bool
    reasons: tuple[str, ...]
    parameters: dict[str, str]


class Record(Struct, frozen=True):
    """One bundle.

    Attributes:
        rows: images of each part: make, judge, certify.
        certified_accuracy: of every model, by id, on the rows that certify, which chose nothing.
    """

    source: str
    promise: Promise
    rows: tuple[int, int, int]
    there: tuple[judge.Figures, ...]
    techniques: tuple[Technique, ...]
    certified_accuracy: dict[str, float] = {}


def measure(subject: Pair) -> Record:
    """Makes, judges and certifies all candidates."""
    with TemporaryDirectory() as folder:
        bundle = _bundle(subject, Path(folder) / "bundle")
        work = Path(folder) / "work"
        work.mkdir()
        found = compress(
            bundle,
            open_dataset(images_of(subject)),
            work,
            source=source_of(
                bundle.manifest, bundle.manifest.full.id if bundle.manifest.full and subject.images else ""
            ),
            promise=promise_of(bundle.manifest, None, None),
            max_loss=MAX_LOSS,
            lesson=LESSONS.get(subject.name) if can_train() else None,
            told=lambda words: print(words, file=sys.stderr, flush=True),
        )
    return record_of(found)


def record_of(found: Compression) -> Record:
    """What is kept of it."""
    return Record(
        found.source.id,
        found.promise,
        found.rows,
        found.there,
        tuple(
            Technique(
                one.technique,
                one.figures,
                one.verdict is not None and one.verdict.accepted,
                one.verdict.reasons if one.verdict is not None else (one.failed,),
                one.model.provenance.parameters if one.model is not None and one.model.provenance is not None else {},
            )
            for one in found.candidates
        ),
        found.certified_accuracy,
    )


def images_of(subject: Pair) -> Path:
    """The labelled images that its bundle is compressed with."""
    return DATA / subject.images / "dev" if subject.images else _MODELS / subject.recipe / "heldout"


def figures(records: dict[str, Record]) -> list[Figure]:
    """Figures, with the aims that were set."""
    found: list[Figure] = []
    for name, record in records.items():
        source = next(one for one in record.there if one.id == record.source)
        judged = record.rows[1]
        found += told(name, source, source, judged)
        for one in record.techniques:
            if one.figures is not None:
                if (new := record.certified_accuracy.get(one.figures.id)) is not None:
                    lost = (record.certified_accuracy[source.id] - new) * 100
                    found.append(Figure(f"{name}: {one.technique}: lost on rows that chose nothing", lost, "points"))
                found += told(f"{name}: {one.technique}", one.figures, source, judged)
                found.append(Figure(f"{name}: {one.technique}: accepted", int(one.accepted), "of 1"))
        if name == DIGITS.name:
            refused = [one for one in record.techniques if one.technique in ("static-int8", "dynamic-int8")]
            held = all(not one.accepted and "slower" in " ".join(one.reasons) for one in refused)
            found.append(
                Figure(
                    f"{name}: int8 refused, slower",
                    sum(not one.accepted for one in refused),
                    f"of {len(refused)}",
                    "static and dynamic",
                    held and len(refused) == 2,
                )
            )
            continue
        fit = [
            one.figures
            for one in record.techniques
            if one.figures is not None and one.figures.accuracy >= source.accuracy - MAX_LOSS - 1e-9
        ]
        faster = max((source.latency_ms / one.latency_ms for one in fit), default=0.0)
        smaller = max((source.size_bytes / one.size_bytes for one in fit), default=0.0)
        aim = ">= 4 times faster, or 8 times smaller"
        held = faster >= 4 or smaller >= 8
        found.append(Figure(f"{name}: fastest within 2 points", faster, "times", aim, held))
        found.append(Figure(f"{name}: smallest within 2 points", smaller, "times", aim, held))
    return found


def told(name: str, one: judge.Figures, source: judge.Figures, judged: int) -> list[Figure]:
    """Of one model beside the source, in figures that begin with its name; `judged` rows told its accuracy."""
    wrong = round((1 - one.accuracy) * judged)
    least = 1 - binomial.upper_bound(wrong, judged, DELTA)
    rows = [
        Figure(f"{name}: accuracy", one.accuracy, "share"),
        Figure(f"{name}: accuracy, at least with 95 %", least, "share"),
        Figure(f"{name}: latency p50 of the model alone", one.latency_ms, "ms"),
        Figure(f"{name}: size", one.size_bytes, "bytes"),
    ]
    if one.kept is not None:
        rows.append(Figure(f"{name}: kept by its certificate", one.kept, "share"))
    if one.loss is not None:
        rows.append(Figure(f"{name}: lost on the judging rows", 100 * one.loss.seen, "points"))
        rows.append(Figure(f"{name}: lost, at most with 95 % for all candidates", 100 * one.loss.at_most, "points"))
    if one is not source:
        rows.append(Figure(f"{name}: times faster", source.latency_ms / one.latency_ms, "times"))
        rows.append(Figure(f"{name}: times smaller", source.size_bytes / one.size_bytes, "times"))
    return rows


def _bundle(subject: Pair, folder: Path) -> Bundle:
    if not subject.images:
        return open_bundle(_MODELS / subject.recipe / "bundle")
    spec = read_recipe(_MODELS / subject.recipe / "recipe.toml", DATA / subject.recipe)
    if subject is TAUGHT and spec.full is not None:
        small = replace(spec.full, id="resnet20", file=spec.full.file.with_name("resnet20_cifar10.onnx"))
        spec = replace(spec, edge=(*spec.edge, small))
    return create_bundle(spec, folder)
